"""Ties that are switched at run time, against ties stored once and against the untied model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from autoencoder import OPTIMIZERS, TIE, assert_close, autoencoder, reconstruction, train_stored_once, train_symmetric

from tiejax.tying import Tie, TieError, clip_by_global_norm, copy_to_targets, global_norm, resolve, symmetrise


def test_switched_off_is_the_untied_model(x64):
    params, x = autoencoder()
    untied = train_stored_once(params, [], OPTIMIZERS["adamw"](), x, 100)
    assert_close(train_symmetric(params, [TIE], OPTIMIZERS["adamw"](), x, 100, on=False), untied, 1e-12)


@pytest.mark.parametrize("max_norm", [1e-3, 0.05])
def test_clipping_counts_a_tied_pair_once(x64, max_norm):
    params, x = autoencoder()
    sgd = optax.sgd(0.1)
    once = train_stored_once(params, [TIE], sgd, x, 100, max_norm)
    assert_close(train_symmetric(params, [TIE], sgd, x, 100, max_norm=max_norm), once, 1e-12)
    # The pitfall: optax's clip counts the pair of symmetrised gradients twice, and the result drifts away.
    wrong = train_symmetric(params, [TIE], sgd, x, 100, max_norm=max_norm, count_twice=True)
    with pytest.raises(AssertionError):
        assert_close(wrong, once, 1e-6)


def test_global_norm_against_numpy():
    params, x = autoencoder()
    tied = copy_to_targets(params, params, [TIE], True)
    grads = jax.grad(reconstruction)(tied, x)

    def norm(*arrays):
        return np.sqrt(sum(float(np.square(a).sum()) for a in arrays))

    e, d = grads["encoder"], grads["decoder"]
    np.testing.assert_allclose(
        global_norm(grads, [TIE], False), norm(e["kernel"], e["bias"], d["kernel"], d["bias"]), rtol=1e-6
    )
    both = symmetrise(grads, [TIE], True)
    expected = norm(e["kernel"] + d["kernel"].T, e["bias"], d["bias"])
    np.testing.assert_allclose(global_norm(both, [TIE], True), expected, rtol=1e-6)


def test_gradients_of_integers_are_none():
    """As `eqx.filter_grad` returns them; explicit, resolved and by pattern."""
    params = {name: {"n": jnp.arange(3), "w": jnp.ones(3)} for name in "ab"}
    grads = {name: {"n": None, "w": jnp.full(3, 2.0)} for name in "ab"}
    for ties in (Tie("a/*", "b/*"), resolve(Tie("a/*", "b/*"), params), [Tie("a/w", "b/w"), Tie("a/n", "b/n")]):
        total = symmetrise(grads, ties, True)
        np.testing.assert_allclose(global_norm(total, ties, True), np.sqrt(3 * 4.0**2), rtol=1e-6)
        clipped = clip_by_global_norm(total, ties, True, 1.0)
        np.testing.assert_allclose(clipped["b"]["w"], np.full(3, 1 / np.sqrt(3)), rtol=1e-6)


def test_resolved_ties_are_checked_against_the_gradients():
    resolved = resolve(Tie("a", "b"), {"a": jnp.ones(2), "b": jnp.ones(2)})
    for grads in ({"x": jnp.ones(2), "y": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.ones(3)}):
        for function in (symmetrise, global_norm):
            with pytest.raises(TieError, match="tie a -> b"):
                function(grads, resolved, True)


def test_weights_may_be_arrays_in_pairs():
    grads, by_entry = {"a": jnp.ones(2), "b": jnp.ones(2)}, jnp.array([0.5, 0.25])
    assert symmetrise(grads, Tie("a", "b"), True, [(1.0, by_entry)])["a"].tolist() == [1.5, 1.25]


def test_switching_a_tie_does_not_recompile():
    params, x = autoencoder()
    compiled = 0

    @jax.jit
    def grads(params, x, on):
        nonlocal compiled
        compiled += 1  # runs when traced
        return symmetrise(jax.grad(reconstruction)(params, x), [TIE], on)

    on = grads(params, x, jnp.asarray(True))
    off = grads(params, x, jnp.asarray(False))
    assert compiled == 1
    assert not np.allclose(on["encoder"]["kernel"], off["encoder"]["kernel"])


def test_members_of_an_ensemble_can_differ_in_their_ties(x64):
    params, x = autoencoder()
    gradient = jax.jit(jax.grad(reconstruction))
    both = jax.jit(jax.vmap(lambda on: symmetrise(gradient(params, x), [TIE], on)))(np.array([False, True]))
    untied = jax.device_get(gradient(params, x))
    np.testing.assert_allclose(both["encoder"]["kernel"][0], untied["encoder"]["kernel"], rtol=1e-13)
    total = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
    np.testing.assert_allclose(both["encoder"]["kernel"][1], total, rtol=1e-13)
    np.testing.assert_allclose(both["decoder"]["kernel"][1], total.T, rtol=1e-13)


def test_copy_to_targets_finds_moments_in_a_chained_optax_state():
    params, x = autoencoder()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 10)))
    grads = jax.jit(jax.grad(reconstruction))(params, x)
    _, opt_state = jax.jit(optimizer.update)(grads, jax.jit(optimizer.init)(params), params)
    copied = copy_to_targets(opt_state, params, [TIE], True)
    adam = copied[1][0]
    for moments in (adam.mu, adam.nu):
        np.testing.assert_array_equal(moments["decoder"]["kernel"], moments["encoder"]["kernel"].T)
        assert np.abs(moments["encoder"]["kernel"]).max() > 0
    np.testing.assert_array_equal(adam.mu["decoder"]["bias"], opt_state[1][0].mu["decoder"]["bias"])
    assert jax.tree.structure(copied) == jax.tree.structure(opt_state)


def test_the_norm_of_complex_gradients_is_that_of_optax():
    grads = {"a": jnp.array([3j, 0]), "b": jnp.array([3j, 0]), "c": jnp.array([4.0])}
    assert float(global_norm(grads, Tie("a", "b"), True)) == float(optax.tree.norm({"a": grads["a"], "c": grads["c"]})) == 5
    clipped, expected = clip_by_global_norm(grads, Tie("a", "b"), True, 1.0), np.array([0.6j, 0])
    np.testing.assert_allclose(clipped["a"], expected, rtol=1e-6)


@pytest.mark.parametrize(("entry", "limit"), [(300.0, 1.0), (1e-4, 1e-5)])
def test_the_norm_of_16_bits_neither_overflows_nor_vanishes(entry, limit):
    """Of 8 entries, of which a tied pair counts 4: norm 2 |entry|; squares of 300 and of 1e-4 are not numbers of float16."""
    gradients = {name: jnp.full(4, entry, jnp.float16) for name in "ab"}
    clipped = clip_by_global_norm(gradients, Tie("a", "b"), True, limit)["a"]
    assert clipped.dtype == jnp.float16
    np.testing.assert_allclose(clipped, limit / 2, rtol=1e-2)


def test_gradients_without_a_norm_are_not_passed_on():
    """As optax clips, so that `optax.zero_nans` after it drops the step, and not only the entry that is no number."""
    grads = {"a": jnp.array([jnp.nan]), "b": jnp.array([1e6])}
    expected, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    for clipped in (expected, clip_by_global_norm(grads, (), True, 1.0)):
        assert np.isnan(clipped["b"]).all()
    infinite = clip_by_global_norm({"a": jnp.array([jnp.inf]), "b": jnp.array([1.0])}, (), True, 1.0)
    assert infinite["b"].tolist() == [0]


CHAIN = [Tie("a", "b"), Tie("b", "c")]
CALLS = {
    "copy_to_targets": lambda tree, ties, on: copy_to_targets(tree, tree, ties, on),
    "symmetrise": symmetrise,
    "global_norm": global_norm,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_link_of_a_chain_is_not_on_without_the_one_before_it(name):
    """The second tie was resolved to a -> c, which is not what it says where the first one is off."""
    tree, call = {"a": jnp.ones(1), "b": jnp.full(1, 10.0), "c": jnp.full(1, 100.0)}, CALLS[name]
    with pytest.raises(TieError, match=r"^on: tie b -> c is a link of a chain, and is on without tie a -> b; give one switch"):
        call(tree, CHAIN, [False, True])
    with pytest.raises(TieError, match=r"^on: tie b -> c is a link of a chain, and may be on without tie a -> b; give one"):
        jax.jit(call, static_argnums=1)(tree, tuple(CHAIN), np.array([True, True]))
    pair = call(tree, Tie("a", "b"), True), call(tree, [Tie("a", "b"), Tie("a", "c")], [True, True])
    for ties, on, expected in (
        (CHAIN, [True, False], pair[0]),
        (CHAIN, np.array([True, True]), pair[1]),
        (CHAIN, True, pair[1]),
        (CHAIN[::-1], [False, True], pair[0]),
        (resolve(CHAIN, tree), [True, False], pair[0]),
        (resolve(CHAIN, tree), [False, True], call(tree, Tie("a", "c"), True)),
    ):
        jax.tree.map(np.testing.assert_array_equal, call(tree, ties, on), expected)
    known = jnp.array([True, True])  # also in a compiled function
    jax.tree.map(np.testing.assert_array_equal, jax.jit(lambda tree: call(tree, CHAIN, known))(tree), pair[1])
