"""Transposes and other permutations: inverses, shapes, both forms of a tie, optimizer states, chains and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.tying import (
    Functions,
    Scale,
    Slice,
    Tie,
    TieError,
    equal_leaves,
    find_ties,
    resolve,
    retie,
    store,
    symmetrise,
    untie,
    view,
)
from tiejax.tying.transforms import Transpose, compose, swap_last_two


def test_the_transpose_is_its_own_inverse():
    transpose, x = Transpose(), np.arange(24.0).reshape(2, 3, 4)
    transformed = transpose.apply(x)
    assert transformed.shape == swap_last_two(x.shape) == (2, 4, 3)
    np.testing.assert_array_equal(transpose.put(None, transformed), x)
    assert compose("transpose", "transpose") == "identity"
    assert compose("transpose", "identity") == compose("identity", "transpose") == "transpose"
    assert [swap_last_two(shape) for shape in ((), (5,))] == [(), (5,)]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e4m3fn, jnp.float16, jnp.float32])
def test_a_scale_of_numpy_arrays_is_that_of_jax(dtype):
    """Which rounds the factor first: otherwise a checkpoint of equal leaves would be refused as one of different ones."""
    x, scale = jnp.linspace(-3, 3, 1001).astype(dtype), Scale(0.3)
    assert np.asarray(scale.apply(x)).tobytes() == scale.apply(np.asarray(x)).tobytes()
    params = view({"a": x, "b": None}, Tie("a", "b", transform=scale))
    assert equal_leaves(jax.device_get(params), Tie("a", "b", transform=scale)) == {"b": True}


# A rotation of rows, which is not its own inverse.
LEFT = Tie("a", "b", transform=Functions(lambda x: jnp.roll(x, -1, axis=0), lambda x: jnp.roll(x, 1, axis=0), rearranges=True))


def loss(params):
    return jnp.sum(params["a"] * jnp.arange(3.0)) + jnp.sum(params["b"] * jnp.array([5.0, 7.0, 11.0]))


def test_a_rotation_in_both_forms_of_a_tie():
    params = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.zeros(3)}
    stored = store(params, [LEFT])
    full = view(stored, [LEFT])
    assert full["b"].tolist() == [2.0, 3.0, 1.0]
    # b_i reads a_{i+1}, so a_i receives the gradient of b_{i-1}.
    total = [0.0 + 11.0, 1.0 + 5.0, 2.0 + 7.0]
    assert jax.grad(lambda stored: loss(view(stored, [LEFT])))(stored)["a"].tolist() == total
    both = symmetrise(jax.grad(loss)(full), [LEFT], True)
    assert (both["a"].tolist(), both["b"].tolist()) == (total, [*total[1:], total[0]])


def test_a_rotation_of_optimizer_states():
    optimizer = optax.sgd(1.0, momentum=0.9)
    stored = {"a": jnp.array([1.0, 2.0, 3.0]), "b": None}
    _, state = optimizer.update({"a": jnp.arange(3.0), "b": None}, optimizer.init(stored), stored)
    params, state = untie(optimizer, stored, state, [LEFT])
    assert equal_leaves(params, [LEFT]) == {"b": True}
    assert state[0].trace["b"].tolist() == [1.0, 2.0, 0.0]
    again, state = retie(optimizer, params, state, [LEFT])
    assert (again["a"].tolist(), state[0].trace["a"].tolist()) == ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0])


def test_transposes_in_chains_and_errors():
    params = {name: jnp.ones((2, 2)) for name in "abc"}
    transposed = Tie("a", "b", transform="transpose")
    assert resolve([transposed, Tie("b", "c", transform="transpose")], params)[1] == Tie("a", "c")
    with pytest.raises(TieError, match=r"transpose needs at least 2 axes, got a \(\) float32"):
        resolve([transposed], {"a": jnp.float32(0), "b": jnp.float32(0)})
    with pytest.raises(TieError, match="transform must be 'identity' or 'transpose', got 'up'"):
        Tie("a", "b", transform="up")


def test_suggested_transform():
    with pytest.raises(TieError, match=r"a \(2, 3\) float32 and b \(3, 2\) float32; transform='transpose' fits the shapes"):
        store({"a": jnp.zeros((2, 3)), "b": jnp.zeros((3, 2))}, [Tie("a", "b")])


def test_symmetric_matrices_are_found_as_identity():
    symmetric = np.array([[0.0, 1.0], [1.0, 2.0]])
    assert find_ties([symmetric, symmetric.copy()]) == [Tie("0", "1")]


MOVED = {  # what jax itself makes of the array
    "transpose": lambda x: x.swapaxes(-1, -2),
    Slice(0, axis=-1): lambda x: x[..., 0],
    Slice(0, axis=-2): lambda x: x[:, 0],
    Slice(1, axis=0): lambda x: x[1],
}


@pytest.mark.parametrize("spec", [(), ("x",), ("x", "y"), ("x", None, "y")], ids=str)
@pytest.mark.parametrize("transform", MOVED, ids=str)
def test_partitions_that_are_shorter_than_the_shape(spec, transform):
    mesh = jax.make_mesh((1, 1), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    x = jax.ShapeDtypeStruct((2, 4, 8), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P(*spec)))
    found = view({"a": x, "b": None}, Tie("a", "b", transform))["b"].sharding.spec
    with jax.set_mesh(mesh):
        expected = jax.eval_shape(MOVED[transform], x).sharding.spec
    assert (*found, *(None,) * (3 - len(found))) == (*expected, *(None,) * (3 - len(expected)))
