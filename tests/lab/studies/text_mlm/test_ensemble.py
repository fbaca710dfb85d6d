"""Unrolled members (as on a CPU) and vmapped members (as on an accelerator) of the text study agree."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import models, training
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.text_mlm import text
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble, reach
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.pretraining.step_plan import StepPlan
from tiejax.training.placement import DATA

SMALL = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 32, "max_length": 32, "vocab_size": 400, "batch_size": 12}


@pytest.fixture(scope="module")
def ensemble(data):
    """An ensemble of two seeds, tied and untied, with recorded training loss and tables."""
    places = {"corpus": [str(data / "corpus")], "data_dir": str(data / "prepared")}
    settings = Settings(**SMALL, **places, seeds=2, steps=12, learning_rate=0.003).resolved()
    whole = build_ensemble(settings, *text.prepare(settings, Console(quiet=True)))

    def measure(params, masked, seed_key, step):
        tables = {"input": params["embed"]["embedding"], "output": params["head"]["embedding"]}
        return {"loss": whole.loss(params, masked, None)[0], **tables}

    return dataclasses.replace(whole, recorders={"record": training.Recorder(4, measure)})


@pytest.fixture(scope="module")
def built(data):
    """Return a function: further settings -> an ensemble of one seed, a batch, and the initial parameters of its two arms."""

    def build(**more):
        places = {"corpus": [str(data / "corpus")], "data_dir": str(data / "prepared")}
        settings = Settings(**SMALL, **places, seeds=1, steps=12, learning_rate=0.003, **more).resolved()
        whole = build_ensemble(settings, *text.prepare(settings, Console(quiet=True)))
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), next(whole.source.open([(0, 0)], range(1), 1, 0)))
        keys = jax.tree.map(lambda leaf: leaf[0], training.seed_keys([0]))
        masked = jax.jit(lambda rows: whole.sample(keys, jnp.int32(0), rows))(rows)
        return whole, masked, whole.start([0]).state.params

    return build


def loss_of(ensemble, params, masked):
    """The loss of one member on one device."""
    mapped = jax.vmap(lambda _: ensemble.loss(params, masked, None)[0], axis_name=DATA)
    return jax.jit(mapped)(jnp.arange(1))[0]


@pytest.mark.slow
def test_bias_is_added_to_the_logits(built):
    """It starts at 0; with any other, the loss is that of encoded states times table plus bias."""
    whole, masked, params = built(head_bias=True)
    without = built()[0]
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], params)
    assert not one["head"]["bias"].any()
    np.testing.assert_allclose(loss_of(whole, one, masked), loss_of(without, one, masked), rtol=1e-6)
    bias = jax.random.normal(jax.random.key(1), one["head"]["bias"].shape)
    biased = one | {"head": one["head"] | {"bias": bias}}
    states = jax.jit(lambda: whole.loss.__self__.encode(biased, masked, None).reshape(-1, SMALL["width"]))()
    used = np.asarray(masked.weight) > 0
    table = np.asarray(one["head"]["embedding"], np.float64)
    logits = np.asarray(states, np.float64)[masked.slot[used]] @ table.T + np.asarray(bias, np.float64)
    nats = np.log(np.exp(logits).sum(-1)) - logits[np.arange(used.sum()), np.asarray(masked.target)[used]]
    np.testing.assert_allclose(loss_of(whole, biased, masked), nats.mean(), rtol=1e-5)


@pytest.mark.slow
def test_tables_have_a_factor_of_the_learning_rate(built):
    """After the first step with the same gradients, tables have moved three times as far, and other parameters as far."""
    moves = []
    for rate in (1.0, 3.0):
        whole, _, params = built(table_rate=rate, weight_decay=0.5)
        one = jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], params)

        @jax.jit
        def first(one, optimizer=whole.optimizer):
            return optimizer.update(jax.tree.map(jnp.ones_like, one), optimizer.init(one), one)[0]

        moves.append(first(one))
    flat = jax.tree_util.tree_flatten_with_path(moves[0])[0]
    for (path, before), after in zip(flat, jax.tree.leaves(moves[1]), strict=True):
        factor = 3 if jax.tree_util.keystr(path, simple=True, separator="/") in models.TABLE_PATHS else 1
        np.testing.assert_allclose(after, factor * before, rtol=1e-5)


def test_reach_counts_the_rate_of_the_tables(data):
    settings = Settings(**SMALL, seeds=1, steps=12, corpus=["x"]).resolved()
    plan = StepPlan(12, 4, 8, 1, 0.0, 100.0)
    once, twice = (reach(dataclasses.replace(settings, table_rate=rate), plan) for rate in (1.0, 2.0))
    assert twice == {"per_coordinate": pytest.approx(2 * once["per_coordinate"]), "initial": once["initial"]}


@pytest.mark.slow
def test_unrolled_and_vmapped_members_agree(ensemble):
    apart, together = (
        training.train(dataclasses.replace(ensemble, members=members), [0, 3]).records["record"]
        for members in (training.Unrolled(), training.Vmapped())
    )
    assert apart["loss"].shape == (4, 2, 2)
    for name in ("loss", "input", "output"):
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert (np.abs(np.diff(apart["loss"], axis=0)) > 1e-3).all()


@pytest.mark.slow
def test_vmapped_members_share_their_matrix_products(ensemble):
    """Four members, two arms of two seeds: unrolled they have four times as many matrix products as vmapped."""
    counts = {}
    for members in (training.Unrolled(), training.Vmapped()):
        traced = training.trace_ensemble(
            dataclasses.replace(ensemble, members=members, recorders={}), [0, 3], ensemble.start([0, 3])
        )
        counts[type(members)] = len(re.findall("dot_general", traced.lower(lowering_platforms=("cuda",)).as_text()))
    assert counts[training.Unrolled] == 4 * counts[training.Vmapped]
