"""Sizes, schedule and losses of the models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.lab.studies.causal_untying.model import Objective, build_model, in_batches, schedule_of, shape_of
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.models import counts

SETTINGS = Settings(corpus=["x"], vocab_size=60, layers=2, width=16, heads=4, context=8, out="out").resolved()
ARMS = {arm.name: arm for arm in SETTINGS.arms}


def leaves_of(name):
    model = build_model(SETTINGS, 60, ARMS[name])
    objective = Objective(model, np.zeros(60, np.int32), 1)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(params)), params


@pytest.mark.parametrize("name", ["tied", "never-equal", "tied-wide"])
def test_parameters_are_those_of_the_model(name):
    number, params = leaves_of(name)
    once = params["head"]["embedding"].size if ARMS[name].tied else 0
    assert shape_of(SETTINGS, 60, ARMS[name]).parameters == number - once


def test_the_wide_model_has_the_parameters_of_the_untied_one():
    """At the size of the study: within 1 %, 160 wide."""
    study = Settings(corpus=["x"], out="out").resolved()
    wide, untied = (shape_of(study, 4096, ARMS[name]) for name in ("tied-wide", "never-equal"))
    assert wide.width == 160
    assert wide.parameters == pytest.approx(untied.parameters, rel=0.001)
    assert untied.parameters == 2 * 4096 * 128 + 128 * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128


def test_gpt2_has_its_published_number_of_parameters():
    """124,439,808, the number of the released model."""
    assert counts.gpt2(50_257, 12, 768, 3072, 1024, tied=True) == 124_439_808


def test_the_learning_rate_is_constant_at_every_fork():
    rate = schedule_of(300, cosine=False)
    at = {step: float(rate(jnp.int32(step))) for step in (0, 5, 6, 50, 100, 200, 239, 240, 270, 299)}
    assert at == pytest.approx({0: 1 / 6, 5: 1, 6: 1, 50: 1, 100: 1, 200: 1, 239: 1, 240: 1, 270: 0.5, 299: 1 / 60})


def test_the_cosine_falls_to_0():
    rate = schedule_of(300, cosine=True)
    assert [float(rate(jnp.int32(step))) for step in (6, 153, 300)] == pytest.approx([1, 0.5, 0], abs=1e-6)


def test_sums_by_bucket_are_those_of_the_logits():
    objective = Objective(build_model(SETTINGS, 60, ARMS["never-equal"]), np.arange(60, dtype=np.int32) % 3, 3)
    params = objective.init(jax.random.key(1))
    blocks = np.random.default_rng(0).integers(0, 60, (5, 8))
    count, nats = objective.sums(params, *map(jnp.asarray, in_batches(blocks, 2)))
    logits = np.asarray(objective.model.apply({"params": params}, jnp.asarray(blocks)), float)[:, :-1]
    each = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, blocks[:, 1:, None], -1)[..., 0]
    expected = [each[blocks[:, 1:] % 3 == bucket].sum() for bucket in range(3)]
    np.testing.assert_allclose(nats, expected, rtol=1e-5)
    np.testing.assert_allclose(count, [(blocks[:, 1:] % 3 == bucket).sum() for bucket in range(3)])


def test_validation_blocks_are_spread_over_the_split():
    tokens, weight = in_batches(np.arange(10)[:, None] * np.ones(4, int), 2, most=5)
    assert tokens[..., 0].ravel().tolist() == [0, 2, 4, 6, 8, 0]
    assert weight.ravel().tolist() == [1, 1, 1, 1, 1, 0]
