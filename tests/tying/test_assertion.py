"""`assert_tied`, outside and inside a compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.tying import Tie, TieError, assert_tied

TIES = [Tie("a", "b", transform="transpose")]
A = jnp.array([[1.0, jnp.nan, 3.0]])


def test_equal_leaves_pass():
    assert_tied({"a": A, "b": A.T}, TIES)
    jax.jit(lambda tree: assert_tied(tree, TIES))({"a": A, "b": A.T})
    jax.effects_barrier()


def test_different_leaves_are_named():
    with pytest.raises(TieError, match="tie a -> b: the values of the two leaves differ"):
        assert_tied({"a": A, "b": A.T + 1}, TIES)


def test_different_leaves_are_named_from_a_compiled_step():
    @jax.jit
    def step(tree):
        assert_tied(tree, TIES)
        return tree["a"] + 1

    np.testing.assert_array_equal(step({"a": A, "b": A.T}), A + 1)

    def wrong():
        jax.block_until_ready(step({"a": A, "b": A.T.at[0].add(1)}))
        jax.effects_barrier()

    with pytest.raises(Exception, match="tie a -> b: the values of the two leaves differ"):
        wrong()


@pytest.mark.parametrize("atol", [-1.0, float("nan")])
def test_a_tolerance_that_is_no_distance(atol):
    with pytest.raises(ValueError, match=r"atol: expected a number >= 0"):
        assert_tied({"a": A, "b": A.T}, TIES, atol=atol)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1.0, 2]), np.array([1 + 1e-12, 2])),
        (np.float32([1e-40]), np.float32([0])),
        (np.array([1, 2]), np.array([1, 3])),
    ],
    ids=["float64", "denormal", "integers"],
)
def test_small_differences(one, other):
    with pytest.raises(TieError, match="differ"):
        assert_tied({"a": one, "b": other}, Tie("a", "b"))
