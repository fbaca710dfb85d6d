"""Minimisation of the exact loss, and the optimum whose embeddings are far apart: known minima, brute force, constructions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import models, tying
from tiejax.lab.studies.exor.contexts import all_contexts
from tiejax.lab.studies.exor.ensemble import build_engine
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.exor.task import EXor, bayes_risk, split
from tiejax.lab.studies.exor.theory import Minimiser, distances, reading_map, smallest_share, training_loss

pytestmark = pytest.mark.usefixtures("x64")
TIES = [tying.Tie(*models.TABLE_PATHS)]
UNSEEN = np.array([0.5, -0.5, 0.5, 0.5])


def engine_of(**fields):
    settings = Settings(seeds=1, steps=1, **fields).resolved()
    return build_engine(settings), settings


def initial(engine, bits, seed=0):
    """Return random parameters in float64, with LayerNorm gains and biases that are not 1 and 0."""
    tokens = jnp.zeros((1, bits + 1), jnp.int32)
    params = jax.jit(engine.model.init)(jax.random.key(seed), tokens, jnp.zeros(1, jnp.int32))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, float) + 0.1 * rng.normal(size=leaf.shape)), params)


def blind(params):
    """Return parameters whose keys and values do not change along UNSEEN: the first linear map W is not injective."""
    qkv = params["encoder"]["layers"]["qkv"]
    width = len(UNSEEN)
    seen = jnp.eye(width) - jnp.outer(UNSEEN, UNSEEN)
    kernel = jnp.concatenate([qkv["kernel"][..., :width], seen @ qkv["kernel"][..., width:]], axis=-1)
    layers = {**params["encoder"]["layers"], "qkv": {**qkv, "kernel": kernel}}
    return {**params, "encoder": {"layers": layers}}


def moved(params, symbol, by):
    table = np.array(params["embed"]["embedding"])
    table[symbol] += by
    return {**params, "embed": {"embedding": jnp.asarray(table)}}


def logits(engine, params, ordered=False):
    """Return the logits of every context."""
    inputs = jax.tree.map(jnp.asarray, engine.inputs(all_contexts(engine.tasks[0], ordered)))
    return np.asarray(jax.jit(engine.encode)(params, inputs)) @ np.asarray(params["head"]["embedding"]).T


@pytest.mark.parametrize(
    "fields", [{}, *(pytest.param(of, marks=pytest.mark.slow) for of in ({"engine": "plain"}, {"softmax": "asked"}))], ids=str
)
def test_training_loss_is_the_expectation_over_contexts(fields):
    engine, settings = engine_of(bits=3, **fields)
    params, task = initial(engine, 3), settings.tasks[0]
    found = jax.jit(training_loss(engine, settings.ordered))(params)
    contexts, scores = all_contexts(task, settings.ordered), logits(engine, params)
    used = task.asked if settings.softmax == "asked" else range(task.vocabulary)
    expected = 0.0
    for weight, target, row in zip(contexts.weight[0], contexts.target, scores, strict=True):
        total = math.log(sum(math.exp(row[s]) for s in used))
        expected += weight * sum(target[s] * (total - row[s]) for s in used)
    # A logarithm in float32 would be seen in the eighth digit.
    assert float(found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_minimum_of_a_quadratic(tied):
    engine, _ = engine_of(bits=3)
    params, goal = initial(engine, 3), initial(engine, 3, seed=1)

    def loss(params):
        return sum(jnp.sum((leaf - best) ** 2) for leaf, best in zip(*map(jax.tree.leaves, (params, goal)), strict=True))

    found = Minimiser(loss, params, TIES if tied else []).minimise(params, 100)
    iterations, path = list(found.path), list(found.path.values())
    tables = np.asarray(goal["embed"]["embedding"]), np.asarray(goal["head"]["embedding"])
    middle = (tables[0] + tables[1]) / 2
    best = goal | ({"embed": {"embedding": middle}, "head": {"embedding": middle}} if tied else {})
    for leaf, expected in zip(*map(jax.tree.leaves, (path[-1], best)), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-8)
    assert found.losses[1] == pytest.approx(float(2 * np.sum((tables[0] - middle) ** 2)) if tied else 0, abs=1e-12)
    assert found.gradients[1] < 1e-8 < found.gradients[0]
    assert iterations[0] == 0
    assert iterations == sorted(iterations)
    assert float(loss(path[0])) == pytest.approx(found.losses[0])
    assert float(loss(path[-1])) == pytest.approx(found.losses[1], abs=1e-12)


def test_distances_of_pairs():
    task = EXor(3, (0.1, 0.9), (0.5, 0.5))
    table = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 6.0], [0.0, 8.0], [9.0, 9.0], [9.0, 9.0], [9.0, 9.0]])
    scale = (6 + 8 + math.hypot(3, 2) + 5) / 4
    found = distances(table, task)
    assert found["zero"] == pytest.approx((5, 5 / scale))
    assert found["one"] == pytest.approx((2, 2 / scale))
    assert set(distances(table, EXor(3, (1.0, 0.0), (0.5, 0.5)))) == {"one"}


@pytest.mark.parametrize("heads", [1, 2])
def test_a_transformer_reads_of_an_embedding_what_the_reading_map_says(heads):
    engine, _ = engine_of(bits=3, heads=heads)
    params = initial(engine, 3)
    assert smallest_share(reading_map(engine, params)) > 1e-9
    params = blind(params)
    reading = reading_map(engine, params)
    unseen = np.linalg.svd(reading)[2][-1]
    assert abs(unseen @ UNSEEN) == pytest.approx(1)
    assert smallest_share(reading) < 1e-12
    before = logits(engine, params)
    np.testing.assert_allclose(logits(engine, moved(params, 2, 100 * unseen)), before, atol=1e-9)
    assert np.abs(logits(engine, moved(params, 2, np.array([0.1, 0, 0, 0]))) - before).max() > 1e-4
    # The mask is also read by its query and by the residual connection.
    assert np.abs(logits(engine, moved(params, engine.tasks[0].mask, unseen)) - before).max() > 1e-4


def test_a_map_that_only_the_scores_complete_is_injective():
    """Values alone are blind along UNSEEN, but the attention score is not."""
    engine, _ = engine_of(bits=3)
    params = initial(engine, 3)
    keys = np.array(params["encoder"]["layers"]["qkv"]["kernel"][..., 4:8])
    params = blind(params)
    kernel = np.array(params["encoder"]["layers"]["qkv"]["kernel"])
    kernel[..., 4:8] = keys
    params["encoder"]["layers"]["qkv"]["kernel"] = jnp.asarray(kernel)
    assert smallest_share(reading_map(engine, params)) > 1e-9


def test_models_with_more_layers_have_no_reading_map():
    engine, _ = engine_of(bits=3, layers=2)
    assert reading_map(engine, initial(engine, 3)) is None


@pytest.mark.slow
def test_far_apart_optimum_breaks_the_assumption_that_the_first_map_is_injective():
    """The counterexample: an optimal model that treats both spellings of 1 alike, though their embeddings are far apart."""
    engine, settings = engine_of(bits=2)
    task, (first, second) = settings.tasks[0], settings.tasks[0].used["one"]
    loss = jax.jit(training_loss(engine, settings.ordered))
    start = initial(engine, 2)
    found = Minimiser(lambda params: loss(blind(params)), start, []).minimise(start, 1000)
    optimum = blind(list(found.path.values())[-1])
    bayes = bayes_risk(task, split(2)["train"])[1]
    assert float(loss(optimum)) - bayes < 1e-6

    reading = reading_map(engine, optimum)
    unseen = np.linalg.svd(reading)[2][-1]
    assert smallest_share(reading) < 1e-9  # the assumption of the theorem: an injective map would have no such direction
    table = np.array(optimum["embed"]["embedding"])
    # Equal but for the unseen direction, so that every context predicts the same for both ...
    alike = moved(optimum, second, table[first] - table[second])
    apart = moved(alike, second, 1000 * unseen)
    assert distances(np.asarray(apart["embed"]["embedding"]), task)["one"][0] == pytest.approx(1000)
    np.testing.assert_allclose(logits(engine, apart), logits(engine, alike), atol=1e-7)
    # ... and moving one of them a long way from an optimum leaves it an optimum.
    assert float(loss(moved(optimum, second, 1000 * unseen))) - bayes < 1e-6
