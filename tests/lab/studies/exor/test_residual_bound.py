"""The bound on output distances that holds in every model: brute force, tightness, and models of both engines."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.lab.studies.exor.contexts import all_contexts, asking_pairs
from tiejax.lab.studies.exor.ensemble import build_engine
from tiejax.lab.studies.exor.residual_bound import bound, check
from tiejax.lab.studies.exor.settings import Settings


def test_bound_against_loops():
    rng = np.random.default_rng(0)
    states, share, difference = rng.normal(size=(5, 3)), rng.dirichlet(np.ones(5)), rng.normal(size=3)
    distance, limit = bound(states, share, difference)
    rms = math.sqrt(sum(w * float(h @ difference) ** 2 for w, h in zip(share, states, strict=True)))
    gram = sum(w * np.outer(h, h) for w, h in zip(share, states, strict=True))
    assert limit == pytest.approx(rms / math.sqrt(np.linalg.eigvalsh(gram)[0]), rel=1e-9)
    assert distance == pytest.approx(math.dist(difference, np.zeros(3)))
    assert distance < limit


def test_bound_is_tight_in_one_dimension_and_infinite_if_a_direction_is_not_seen():
    distance, limit = bound(np.array([[2.0], [-1.0]]), np.array([0.5, 0.5]), np.array([3.0]))
    assert (distance, limit) == pytest.approx((3.0, 3.0))
    unseen = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    assert bound(unseen, np.full(3, 1 / 3), np.array([0.0, 1.0]))[1] == math.inf
    assert bound(np.ones((1, 2)), np.ones(1), np.array([0.0, 1.0]))[1] == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "plain"])
def test_bound_holds_in_random_models(engine):
    settings = Settings(seeds=3, bits=4, steps=1, engine=engine).resolved()
    built = build_engine(settings)

    def init(key):
        tokens = jnp.zeros((1, 5), jnp.int32)
        return built.model.init(key, tokens, jnp.zeros(1, jnp.int32))["params"]

    @jax.jit
    def draw(keys):
        # At first LayerNorm has gain 1 and bias 0, so that the entries of a state sum to 0: sigma is 0 but for rounding.
        params = jax.vmap(jax.vmap(init))(keys)
        return jax.tree.map(lambda leaf: leaf + 0.5 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)

    params = draw(jax.random.split(jax.random.key(0), (3, 2)))
    params["head"]["embedding"] = params["head"]["embedding"].at[1, 0].set(np.nan)  # a member that diverged
    rows = check(params, built, settings.ordered)
    assert [(row["pair"], row["arm"], row["members"], row["holds"]) for row in rows] == [
        (pair, arm, finite, finite) for pair in ("zero", "one") for arm, finite in (("untied", 2), ("tied", 3))
    ]
    # The distance and the bound of one member, from its states.
    contexts = all_contexts(settings.tasks[0], settings.ordered)
    (first, second), share = asking_pairs(settings.tasks[0], contexts)["one"]
    member = jax.tree.map(lambda leaf: leaf[2, 1], params)
    states = np.asarray(built.encode(member, jax.tree.map(jnp.asarray, built.inputs(contexts))), float)
    difference = np.asarray(member["head"]["embedding"][first] - member["head"]["embedding"][second], float)
    gram = (states * share[:, None]).T @ states
    rms, smallest = math.sqrt(difference @ gram @ difference), math.sqrt(np.linalg.eigvalsh(gram)[0])
    assert rows[3]["distance"][2] == pytest.approx(np.linalg.norm(difference), rel=1e-6)
    assert rows[3]["bound"][2] == pytest.approx(rms / smallest, rel=1e-3)
    assert math.isnan(rows[2]["bound"][1])


def test_bound_is_omitted_if_there_are_too_many_contexts():
    settings = Settings(seeds=1, bits=10, steps=1, model="mixer").resolved()
    assert check({}, build_engine(settings), settings.ordered) is None
