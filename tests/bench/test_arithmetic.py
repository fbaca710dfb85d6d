"""The counted work, compared with the matrix products of traced computations."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench.arithmetic import device_rates, exor_floor, exor_work, text_flops
from experiments.bench.settings import ExorBench, TextBench
from experiments.bench.text import everywhere
from tiejax import training
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.text_mlm.ensemble import build_model
from tiejax.lab.studies.text_mlm.text import Text
from tiejax.text.tokenizer import Vocabulary
from tiejax.text.twins import Twins


class Batch(NamedTuple):
    tokens: Any
    segments: Any
    slot: Any
    target: Any
    weight: Any


def product_flops(jaxpr):
    """Return the multiplications and additions of all matrix products in a jaxpr, times the iterations of their loops."""
    flops = 0
    for equation in jaxpr.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            first = equation.invars[0].aval.shape
            flops += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(first[axis] for axis in contracted)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                flops += times * product_flops(inner)
    return flops


def test_text_flops_are_those_of_the_published_loss():
    settings = TextBench().study_settings("published")
    nothing = np.zeros(0, np.int32), np.zeros(1, np.int64)
    size = 30_000  # reading a table with few rows would be a matrix product
    vocabulary = Vocabulary(size, *range(5), tokens=("",) * size)
    text = Text(vocabulary, Twins(size, ("a", "b"), (7, 8), (0.5, 0.5)), nothing, nothing, {}, b"")
    tokens, slots = jax.ShapeDtypeStruct((3, settings.max_length), jnp.int32), jax.ShapeDtypeStruct((7,), jnp.int32)
    params = jax.eval_shape(build_model(settings, text).init, jax.random.key(0), tokens)["params"]
    forward = jax.make_jaxpr(everywhere(settings, text), axis_env=[(training.DATA, 1)])
    traced = forward(params, Batch(tokens, tokens, slots, slots, slots), None)
    positions = 3 * settings.max_length
    assert 3 * product_flops(traced.jaxpr) == text_flops(settings, size + 2, positions, predicted=positions)


# The second layer of the medium model computes its attention without a matrix product; the first has a query per symbol.
@pytest.mark.parametrize(("size", "tolerance"), [("small", 0), ("medium", 0.01)])
def test_exor_flops_are_those_of_the_fast_engine(size, tolerance):
    settings = ExorBench(size=size).study_settings("fast", 1)
    ensemble = build_ensemble(settings)
    key = jax.tree.map(lambda leaf: leaf[0], training.seed_keys([0]))
    params, batch = jax.eval_shape(lambda: (ensemble.init(key.key), ensemble.sample(key, jnp.int32(0), None)))
    traced = jax.make_jaxpr(lambda params, batch: ensemble.loss(params, batch, None)[0])(params, batch)
    assert exor_work(settings)["flops"] == pytest.approx(3 * product_flops(traced.jaxpr), rel=tolerance, abs=0)


def test_exor_bytes_are_those_of_parameters_moments_and_batch():
    settings = ExorBench().study_settings("fast", 1)
    ensemble = build_ensemble(settings)
    key = jax.tree.map(lambda leaf: leaf[0], training.seed_keys([0]))
    params, batch = jax.eval_shape(lambda: (ensemble.init(key.key), ensemble.sample(key, jnp.int32(0), None)))

    def bytes_of(tree):
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    assert exor_work(settings)["bytes"] == 2 * 3 * bytes_of(params) + bytes_of(batch)


def test_floor_divides_work_by_rates():
    work = {"flops": 10.0, "exponentials": 6.0, "bytes": 8.0}
    rates = {"flops": 40.0, "exponentials": 8.0, "bytes": 4.0}
    assert exor_floor(work, rates) == {"arithmetic": 1.0, "memory": 0.5}


@pytest.mark.slow
def test_device_rates_are_plausible():
    rates = device_rates()
    assert set(rates) == {"flops", "exponentials", "bytes"}
    for rate in rates.values():
        assert 1e6 < rate < 1e17
