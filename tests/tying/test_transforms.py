"""The table of transforms: inverses, shapes, and a new transform that works everywhere without further changes."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from tiejax.tying import Tie, TieError, equal_leaves, find_ties, resolve, retie, store, symmetrise, untie, view
from tiejax.tying.transforms import TRANSFORMS, Transform, compose


@pytest.mark.parametrize("name", TRANSFORMS)
def test_inverses_and_shapes(name):
    transform, x = TRANSFORMS[name], np.arange(24.0).reshape(2, 3, 4)
    transformed = transform.apply(x)
    assert transformed.shape == transform.shape(x.shape)
    np.testing.assert_array_equal(TRANSFORMS[transform.inverse].apply(transformed), x)
    assert compose(name, transform.inverse) == "identity"
    assert compose(name, "identity") == compose("identity", name) == name


@pytest.fixture
def left(monkeypatch):
    """Add rotations of rows to the table, which are not their own inverses, and return a tie with one."""
    monkeypatch.setitem(TRANSFORMS, "left", Transform(lambda x: jnp.roll(x, -1, axis=0), tuple, "right", 1))
    monkeypatch.setitem(TRANSFORMS, "right", Transform(lambda x: jnp.roll(x, 1, axis=0), tuple, "left", 1))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the Literal of names cannot be extended
    return Tie("a", "b", transform="left")


def loss(params):
    return jnp.sum(params["a"] * jnp.arange(3.0)) + jnp.sum(params["b"] * jnp.array([5.0, 7.0, 11.0]))


def test_new_transform_in_both_forms_of_a_tie(left):
    params = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.zeros(3)}
    stored = store(params, [left])
    full = view(stored, [left])
    assert full["b"].tolist() == [2.0, 3.0, 1.0]
    # b_i reads a_{i+1}, so a_i receives the gradient of b_{i-1}.
    total = [0.0 + 11.0, 1.0 + 5.0, 2.0 + 7.0]
    assert jax.grad(lambda stored: loss(view(stored, [left])))(stored)["a"].tolist() == total
    both = symmetrise(jax.grad(loss)(full), [left], True)
    assert (both["a"].tolist(), both["b"].tolist()) == (total, [*total[1:], total[0]])


def test_new_transform_of_optimizer_states(left):
    optimizer = optax.sgd(1.0, momentum=0.9)
    stored = {"a": jnp.array([1.0, 2.0, 3.0]), "b": None}
    _, state = optimizer.update({"a": jnp.arange(3.0), "b": None}, optimizer.init(stored), stored)
    params, state = untie(optimizer, stored, state, [left])
    assert equal_leaves(params, [left]) == {"b": True}
    assert state[0].trace["b"].tolist() == [1.0, 2.0, 0.0]
    again, state = retie(optimizer, params, state, [left])
    assert (again["a"].tolist(), state[0].trace["a"].tolist()) == ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0])


def test_new_transform_in_chains_and_errors(left):
    params = {name: jnp.arange(3.0) for name in "abc"}
    assert resolve([left, Tie("b", "c", transform="right")], params)[1] == Tie("a", "c")
    with pytest.raises(TieError, match="no transform equals left followed by left; let both ties read a"):
        resolve([left, Tie("b", "c", transform="left")], params)
    with pytest.raises(TieError, match=r"left needs at least 1 axes, got a \(\) float32"):
        resolve([left], {"a": jnp.float32(0), "b": jnp.float32(0)})
    with pytest.raises(TieError, match="transform must be 'identity', 'transpose', 'left' or 'right', got 'up'"):
        Tie("a", "b", transform="up")


def test_new_transform_is_found(left):
    rows = np.arange(3, dtype=np.float32)
    assert find_ties([rows, np.roll(rows, -1)]) == [Tie("0", "1", transform="left")]


def test_suggested_transform():
    with pytest.raises(TieError, match=r"a \(2, 3\) float32 and b \(3, 2\) float32; transform='transpose' fits the shapes"):
        store({"a": jnp.zeros((2, 3)), "b": jnp.zeros((3, 2))}, [Tie("a", "b")])


def test_symmetric_matrices_are_found_as_identity():
    symmetric = np.array([[0.0, 1.0], [1.0, 2.0]])
    assert find_ties([symmetric, symmetric.copy()]) == [Tie("0", "1")]
