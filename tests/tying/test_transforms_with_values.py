"""Casts, scales, reshapes, slices, pairs of functions, and several in a row. Oracles: numpy, and the Jacobian by columns."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from tiejax.tying import (
    Cast,
    Functions,
    Reshape,
    Scale,
    Slice,
    Tie,
    TieError,
    assert_tied,
    copy_to_targets,
    equal_leaves,
    resolve,
    retie,
    retie_switched,
    store,
    symmetrise,
    tied_loss,
    untie,
    view,
)

SHAPE = (2, 3, 4)
BFLOAT16 = jnp.bfloat16.dtype
# Transform, the same in numpy, and the same for moments: entries move, but keep their values.
CASES = {
    "cast": (Cast("bfloat16"), lambda a: a.astype(BFLOAT16), lambda a: a.astype(BFLOAT16)),
    "scale": (Scale(-0.5), lambda a: -0.5 * a, lambda a: a),
    "reshape": (Reshape((6, 4)), lambda a: a.reshape(6, 4), lambda a: a.reshape(6, 4)),
    "index": (Slice(1), lambda a: a[1], lambda a: a[1]),
    "range": (Slice((0, 4, 2), axis=-1), lambda a: a[..., 0:4:2], lambda a: a[..., 0:4:2]),
    "several": (["transpose", Scale(2.0), Slice(-1)], lambda a: 2 * a[-1].T, lambda a: a[-1].T),
    "rearranging": (
        Functions(lambda a: a[::-1], lambda a: a[::-1], rearranges=True),
        lambda a: a[::-1],
        lambda a: a[::-1],
    ),
    "functions": ((lambda a: 3 * a, lambda a: a / 3), lambda a: 3 * a, None),
}
each = pytest.mark.parametrize("name", CASES)


def case(name):
    """Return the tie, full parameters whose leaves differ, and both transforms in numpy."""
    transform, forward, moved = CASES[name]
    rng = np.random.default_rng(0)
    a = rng.normal(size=SHAPE).astype(np.float32)
    b = forward(rng.normal(size=SHAPE).astype(np.float32))
    return Tie("a", "b", transform=transform), {"a": jnp.asarray(a), "b": jnp.asarray(b)}, forward, moved


def loss(params):
    """A loss whose gradients are known: 2 a, and the position of each entry of b."""
    b = params["b"].astype(jnp.float32)
    return jnp.sum(jnp.square(params["a"])) + jnp.sum(b * jnp.arange(b.size).reshape(b.shape))


def total(params, forward):
    """Return the gradient of the shared array in numpy: 2 a + J^T (0, 1, 2, ...), J being the Jacobian of `forward`."""
    a = np.asarray(params["a"])
    basis = np.eye(a.size, dtype=np.float32).reshape(a.size, *a.shape)
    jacobian = np.stack([forward(one).astype(np.float32).ravel() for one in basis])
    return 2 * a + (jacobian @ np.arange(jacobian.shape[1])).reshape(a.shape)


@each
def test_target_and_gradient(name):
    tie, params, forward, _ = case(name)
    stored = store(params, tie)
    full = view(stored, tie)
    np.testing.assert_array_equal(full["b"], forward(np.asarray(params["a"])))
    assert full["b"].dtype == params["b"].dtype
    assert equal_leaves(full, tie) == {"b": True}
    assert equal_leaves(params, tie) == {"b": False}
    assert_tied(full, tie)
    once = jax.grad(tied_loss(loss, tie))(stored)["a"]
    np.testing.assert_allclose(once, total(params, forward), rtol=1e-2 if name == "cast" else 1e-6)
    np.testing.assert_array_equal(symmetrise(jax.grad(loss)(full), tie, True)["a"], once)
    owner = Tie("a", "b", transform=tie.transform, gradient="source")
    np.testing.assert_array_equal(jax.grad(tied_loss(loss, owner))(stored)["a"], 2 * params["a"])
    shapes = view(jax.eval_shape(lambda: stored), tie)["b"]
    assert (shapes.shape, shapes.dtype) == (params["b"].shape, params["b"].dtype)


@each
def test_switched_form_trains_as_the_stored_one(name):
    tie, params, _, _ = case(name)
    optimizer, stored = optax.adamw(1e-2), store(params, tie)
    state, full = optimizer.init(stored), view(stored, tie)
    full_state = optimizer.init(full)

    @jax.jit
    def both(stored, state, full, full_state):
        updates, state = optimizer.update(jax.grad(tied_loss(loss, tie))(stored), state, stored)
        stored = optax.apply_updates(stored, updates)
        updates, full_state = optimizer.update(symmetrise(jax.grad(loss)(full), tie, True), full_state, full)
        full_state = copy_to_targets(full_state, full, tie, True)
        return stored, state, copy_to_targets(optax.apply_updates(full, updates), full, tie, True), full_state

    for _ in range(3):
        stored, state, full, full_state = both(stored, state, full, full_state)
    np.testing.assert_allclose(full["a"], stored["a"], rtol=1e-6)
    assert equal_leaves(full, tie) == {"b": True}
    np.testing.assert_allclose(full_state[0].nu["a"], state[0].nu["a"], rtol=1e-6)
    assert np.all(np.asarray(full_state[0].nu["b"]) >= 0)


def test_a_state_of_unknown_meaning_is_not_carried_through_a_scale():
    """An average of the parameters would have to be scaled, moments not."""

    def update(updates, state, params):
        return updates, Average(jax.tree.map(lambda mean, new: 0.9 * mean + 0.1 * new, state.mean, params))

    optimizer = optax.chain(optax.adam(1e-2), optax.GradientTransformation(Average, update))
    stored = {"a": jnp.ones(2), "b": None}
    with pytest.raises(
        TieError, match=r"1/mean/a of the optimizer state \(Average\) may hold moments, which are not scaled, or"
    ):
        untie(optimizer, stored, optimizer.init(stored), Tie("a", "b", Scale(0.1)))
    for transform in ("identity", Cast("bfloat16")):
        assert untie(optimizer, stored, optimizer.init(stored), Tie("a", "b", transform))[1][1].mean["b"].tolist() == [1, 1]


class Average(NamedTuple):
    mean: Any


@each
def test_untie_copies_moments_without_scaling_them(name):
    tie, params, forward, moved = case(name)
    optimizer, stored = optax.adamw(1e-2), store(params, tie)
    _, state = optimizer.update(jax.grad(tied_loss(loss, tie))(stored), optimizer.init(stored), stored)
    if moved is None:
        with pytest.raises(TieError, match=r"0/mu/a of the optimizer state cannot be carried through a pair of functions"):
            untie(optimizer, stored, state, tie)
        untied, after = untie(optimizer, stored, state, tie, policy="zero-keep-count")
        assert not np.any(after[0].nu["b"])
    else:
        untied, after = untie(optimizer, stored, state, tie)
        for found, old in ((after[0].mu, state[0].mu), (after[0].nu, state[0].nu)):
            np.testing.assert_array_equal(found["b"], moved(np.asarray(old["a"])))
            assert found["b"].dtype == params["b"].dtype
    np.testing.assert_array_equal(untied["b"], forward(np.asarray(params["a"])))
    np.testing.assert_array_equal(after[0].nu["a"], state[0].nu["a"])


@each
@pytest.mark.parametrize("keep", ["source", "target", "mean"])
def test_retie_keeps_the_values_of_a_leaf_or_their_mean(name, keep):
    """By hand: the target of the shared array is the target, the source's or their mean; unread entries do not change."""
    tie, params, forward, moved = case(name)
    optimizer, a = optax.sgd(1e-2), np.asarray(params["a"])
    stored, _ = retie(optimizer, params, optimizer.init(params), tie, keep=keep)
    found, b = np.asarray(stored["a"]), np.asarray(params["b"], np.float32)
    theirs = {"source": forward(a), "target": b, "mean": (np.asarray(forward(a), np.float32) + b) / 2}[keep]
    np.testing.assert_allclose(np.asarray(forward(found), np.float32), theirs.astype(np.float32), rtol=2e-2, atol=1e-2)
    read = np.asarray(moved(np.arange(a.size).reshape(SHAPE)) if moved and name != "cast" else np.arange(a.size), int)
    unread = np.setdiff1d(np.arange(a.size), read)
    np.testing.assert_array_equal(found.ravel()[unread], a.ravel()[unread])
    if keep == "source" or moved is not None:
        momentum = optax.sgd(1e-2, momentum=0.9)
        retie(momentum, params, momentum.init(params), tie, keep=keep)
    else:
        momentum = optax.sgd(1e-2, momentum=0.9)
        with pytest.raises(TieError, match="for retie, keep='source'"):
            retie(momentum, params, momentum.init(params), tie, keep=keep)


def test_mean_of_several_slices_is_over_the_leaves_that_have_an_entry():
    params = {"stack": jnp.zeros((3, 2)), "x": jnp.full(2, 2.0), "y": jnp.full(2, 4.0), "z": jnp.full((2, 2), 9.0)}
    ties = [Tie("stack", "x", Slice(0)), Tie("stack", "y", Slice(1)), Tie("stack", "z", Slice((0, 2)))]
    optimizer = optax.sgd(1.0)
    stored, _ = retie(optimizer, params, optimizer.init(params), ties)
    np.testing.assert_allclose(stored["stack"], [[11 / 3] * 2, [13 / 3] * 2, [0, 0]], rtol=1e-6)
    with pytest.raises(TieError, match="keep: target is ambiguous for stack, which x, y, z read"):
        retie_switched(optimizer, params, optimizer.init(params), ties, "target")
    joined, _ = retie_switched(optimizer, params, optimizer.init(params), ties[:2], "target")
    np.testing.assert_array_equal(joined["stack"], [[2, 2], [4, 4], [0, 0]])


def test_layers_of_a_scanned_stack():
    """A stack of two layers, applied by `scan`, reads two layers of a larger one."""
    params = {"large": jnp.arange(12.0).reshape(3, 2, 2) / 10, "small": jnp.zeros((2, 2, 2))}
    tie = Tie("large", "small", transform=Slice((1, 3)))

    def apply(params, x):
        for stack in (params["large"], params["small"]):
            x = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]
        return x

    x, large = jnp.ones(2), params["large"]
    by_hand = x
    for layer in (0, 1, 2, 1, 2):
        by_hand = jnp.tanh(by_hand @ large[layer])
    np.testing.assert_allclose(apply(view(store(params, tie), tie), x), by_hand, rtol=1e-6)


def test_chains_of_transforms():
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones((3, 2)), "c": jnp.ones(2)}
    ties = [Tie("a", "b", ["transpose", Scale(2.0)]), Tie("b", "c", Slice(0))]
    assert resolve(ties, params)[1] == Tie("a", "c", ["transpose", Scale(2.0), Slice(0)])
    np.testing.assert_array_equal(view(store(params, ties), ties)["c"], [2, 2])


def test_ties_with_values_are_equal_and_can_be_static_arguments():
    ties = (Tie("a", "b", Reshape([6, 4])), Tie("a", "c", Slice(slice(0, 2))), Tie("a", "d", ("transpose", Cast(jnp.bfloat16))))
    same = (Tie("a", "b", Reshape((6, 4))), Tie("a", "c", Slice((0, 2))), Tie("a", "d", ["transpose", Cast("bfloat16")]))
    assert ties == same
    assert hash(ties) == hash(same)
    assert Tie("a", "b", ["identity"]) == Tie("a", "b")
    assert Tie("a", "b", ["transpose"]) == Tie("a", "b", "transpose")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cast("int32"), "Cast: expected a floating-point dtype, such as 'bfloat16', got 'int32'"),
        (lambda: Cast("float99"), "Cast: expected a floating-point dtype"),
        (lambda: Scale(0), "Scale: expected a finite number other than 0, got 0"),
        (lambda: Scale(float("nan")), "Scale: expected a finite number"),
        (lambda: Scale("2"), "Scale: expected a finite number"),
        (lambda: Reshape((-1, -1)), r"Reshape: expected a shape .*, in which one axis may be -1, got \(-1, -1\)"),
        (lambda: Reshape(3.5), "Reshape: expected a shape"),
        (lambda: Slice("0"), "Slice: expected an index, or"),
        (lambda: Slice((1,)), "Slice: expected an index, or"),
        (lambda: Slice((0, 4, -1)), "Slice: expected .* with a positive step"),
        (lambda: Functions(lambda a: a, None), "Functions: expected two functions"),
        (
            lambda: Tie("a", "b", transform=3),
            r"transform must be .*, got 3; or Cast, Scale, Reshape, Slice",
        ),
        (lambda: Tie("a", "b", transform=["transpose", "up"]), "tie a -> b: transform must be .*, got 'up'"),
    ],
)
def test_invalid_transforms(make, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users do not have the type checks of the tests
    with pytest.raises(TieError, match=message):
        make()


def broken(a):
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Reshape((5,)), r"Reshape\(shape=\(5,\)\) does not fit .*, got a \(2, 3\) float32"),
        (Slice(2), r"Slice\(index=2, axis=0\) reaches beyond the 2 entries of axis 0, or selects none, got a \(2, 3\)"),
        (Slice((1, 1)), "reaches beyond the 2 entries of axis 0, or selects none"),
        (Slice(0, axis=2), r"Slice\(index=0, axis=2\) needs an axis 2, got a \(2, 3\) float32"),
        (Slice(0), r"a \(2, 3\) float32, after Slice\(index=0, axis=0\) \(3,\), and b \(2, 3\) float32"),
        (Cast("float16"), r"dtypes differ: .*; cast one of them, or add Cast\('float32'\) to the transform"),
        ((broken, broken), r"does not fit \(not today\), got a \(2, 3\) float32"),
    ],
)
def test_transforms_that_do_not_fit_the_leaves(transform, message):
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 3))}
    with pytest.raises(TieError, match=message):
        store(params, Tie("a", "b", transform=transform))


def test_a_function_that_is_not_linear_can_be_stored_but_not_switched():
    tie = Tie("a", "b", transform=(jnp.exp, jnp.log))
    params = {"a": jnp.arange(1.0, 4.0), "b": jnp.ones(3)}
    grads = jax.grad(lambda stored: view(stored, tie)["b"].sum())(store(params, tie))
    np.testing.assert_allclose(grads["a"], np.exp([1, 2, 3]), rtol=1e-6)
    with pytest.raises(TieError, match=r"tie a -> b: Functions.* is not linear, so that gradients of a switched tie cannot be"):
        symmetrise(params, tie, True)
