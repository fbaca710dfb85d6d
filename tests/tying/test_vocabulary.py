"""Tied tables that grow, shrink or are partly frozen; counts of parameters; full checkpoints read into stored parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from tiejax.tying import (
    Slice,
    Tie,
    TieError,
    count_parameters,
    load_full,
    resize_state,
    store,
    untie_parameters,
    view,
)

TIE = Tie("embed/table", "head/kernel", transform="transpose")
RATE, DECAY, B1, B2, EPS = 0.01, 0.1, 0.9, 0.99, 1e-8


def full(rows=4, width=3, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "embed": {"table": jax.random.normal(keys[0], (rows, width))},
        "head": {"kernel": jax.random.normal(keys[1], (width, rows)), "bias": jax.random.normal(keys[2], (rows,))},
    }


def grads_like(tree, seed):
    leaves, treedef = jax.tree.flatten(tree)
    rng = np.random.default_rng(seed)
    return treedef.unflatten([jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) for leaf in leaves])


def trained(optimizer, stored, steps=3):
    state = optimizer.init(stored)
    for step in range(steps):
        updates, state = optimizer.update(grads_like(stored, step), state, stored)
        stored = optax.apply_updates(stored, updates)
    return stored, state


def resized(stored, rows, fill=0.5):
    """Return stored parameters whose table and bias have another number of rows."""

    def fit(leaf):
        return jnp.concatenate([leaf[:rows], jnp.full((max(rows - len(leaf), 0), *leaf.shape[1:]), fill)])

    return {"embed": {"table": fit(stored["embed"]["table"])}, "head": {"kernel": None, "bias": fit(stored["head"]["bias"])}}


@pytest.mark.parametrize("rows", [7, 2], ids=["grown", "trimmed"])
def test_adamw_of_a_resized_table(rows):
    """Old rows continue as if nothing had happened; new ones as Adam's equations say for moments of 0 at the present step."""
    optimizer = optax.adamw(RATE, B1, B2, EPS, weight_decay=DECAY)
    stored, state = trained(optimizer, store(full(), TIE))
    after = resized(stored, rows)
    new_state = resize_state(optimizer, state, stored, after)
    grads, kept = grads_like(after, 9), min(rows, 4)
    found, _ = optimizer.update(grads, new_state, after)
    old_grads = resized(grads, 4)
    expected, _ = optimizer.update(old_grads, state, stored)
    for path in (("embed", "table"), ("head", "bias")):
        new, old, g, p = (tree[path[0]][path[1]] for tree in (found, expected, grads, after))
        np.testing.assert_allclose(new[:kept], old[:kept], rtol=1e-6)
        m, v = (1 - B1) * g / (1 - B1**4), (1 - B2) * g**2 / (1 - B2**4)
        np.testing.assert_allclose(new[kept:], (-RATE * (m / (jnp.sqrt(v) + EPS) + DECAY * p))[kept:], rtol=1e-5)
    assert view(after, TIE)["head"]["kernel"].shape == (3, rows)


@pytest.mark.parametrize("make", [lambda: optax.adafactor(RATE, min_dim_size_to_factor=2), lambda: optax.sm3(RATE)])
def test_row_and_column_moments_of_a_resized_table(make):
    optimizer = make()
    stored, state = trained(optimizer, store(full(), TIE))
    after = resized(stored, 6)
    new = resize_state(optimizer, state, stored, after)
    assert jax.tree.structure(new) == jax.tree.structure(optimizer.init(after))
    for old, grown, fresh in zip(*map(jax.tree.leaves, (state, new, optimizer.init(after))), strict=True):
        assert grown.shape == fresh.shape
        common = tuple(map(slice, old.shape))
        np.testing.assert_array_equal(grown[common], old)
    optimizer.update(grads_like(after, 9), new, after)


@pytest.mark.parametrize("make", [lambda: optax.adafactor(RATE), lambda: optax.novograd(RATE), lambda: optax.sm3(RATE)])
def test_a_table_of_one_entry_grows(make):
    """What is one number for the whole array stays, and the rest grows as it does for larger arrays."""
    optimizer, one, three = make(), {"b": jnp.ones((1,))}, {"b": jnp.ones((3,))}
    state = optimizer.update({"b": jnp.ones((1,))}, optimizer.init(one), one)[1]
    new = resize_state(optimizer, state, one, three)
    for old, grown, fresh in zip(*map(jax.tree.leaves, (state, new, optimizer.init(three))), strict=True):
        assert grown.shape == fresh.shape
        np.testing.assert_array_equal(grown[tuple(map(slice, old.shape))], old)


def test_states_that_cannot_be_resized():
    stored = store(full(), TIE)
    flat = optax.flatten(optax.adam(RATE))
    with pytest.raises(TieError, match=r"mixes parameters, as under optax\.flatten"):
        resize_state(flat, flat.init(stored), stored, resized(stored, 6))
    factored = optax.adafactor(RATE, min_dim_size_to_factor=2)
    with pytest.raises(TieError, match=r"v_row/embed/table of the optimizer state cannot be resized from \(3,\) to \(2,\)"):
        # The mean over the larger axis becomes one over the other axis.
        resize_state(factored, factored.init(stored), stored, resized(stored, 2))
    with pytest.raises(TieError, match="params and resized must have the same leaves; only one of them has head/kernel"):
        resize_state(flat, flat.init(stored), stored, view(stored, TIE))


def test_an_error_of_the_optimizer_itself_is_not_taken_for_one_about_ties():
    def init(params):
        raise KeyError("no such group")

    stored = store(full(), TIE)
    adam = optax.adam(RATE)
    with pytest.raises(KeyError, match="no such group"):
        resize_state(optax.GradientTransformation(init, adam.update), adam.init(stored), stored, resized(stored, 6))


@pytest.mark.slow
def test_frozen_rows():
    """The recipe of docs/tying.md, against a model whose table is a constant part and a trained part."""
    params = full(rows=5)
    stored, tokens, rows = store(params, TIE), jnp.array([0, 1, 3, 4]), jnp.array([1.0, 0, 0, 1, 1])
    frozen = optax.masked(
        optax.stateless_with_tree_map(lambda update, _: update * rows[:, None]),
        {"embed": {"table": True}, "head": {"kernel": None, "bias": False}},
    )
    optimizer = optax.chain(frozen, optax.clip_by_global_norm(0.1), optax.adamw(RATE, weight_decay=DECAY), frozen)
    plain = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(RATE, weight_decay=DECAY))

    def loss(params):
        logits = params["embed"]["table"][tokens[:-1]] @ params["head"]["kernel"] + params["head"]["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean()

    constant, is_trained = params["embed"]["table"], np.array([0, 3, 4])

    def hand_loss(parts):
        table = constant.at[is_trained].set(parts["rows"])
        return loss({"embed": {"table": table}, "head": {"kernel": table.T, "bias": parts["bias"]}})

    def steps(optimizer, params, loss):
        @jax.jit
        def step(params, state):
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        state = jax.jit(optimizer.init)(params)
        for _ in range(5):
            params, state = step(params, state)
        return params

    found = steps(optimizer, stored, lambda stored: loss(view(stored, TIE)))
    expected = steps(plain, {"rows": constant[is_trained], "bias": params["head"]["bias"]}, hand_loss)
    np.testing.assert_array_equal(found["embed"]["table"][1:3], constant[1:3])
    np.testing.assert_allclose(found["embed"]["table"][is_trained], expected["rows"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["head"]["bias"], expected["bias"], rtol=1e-5, atol=1e-6)


def test_parameters_are_counted_once():
    params = {"a": [np.ones((3, 4)), np.zeros(5)], "b": [np.ones((3, 4)), np.zeros(5)], "act": jnp.tanh, "w": np.ones((4, 3))}
    ties = [Tie("a/*", "b/*"), Tie("b/0", "w", transform="transpose")]
    assert (count_parameters(params), count_parameters(params, ties)) == (46, 17)
    assert count_parameters(store(params, ties)) == count_parameters(store(params, ties), ties) == 17
    stacks = {"long": jax.ShapeDtypeStruct((6, 2), jnp.float32), "short": jax.ShapeDtypeStruct((3, 2), jnp.float32)}
    assert count_parameters(stacks, Tie("long", "short", transform=Slice((0, 3)))) == 12


def test_parameters_untied_without_an_optimizer_can_be_donated():
    stored = store(full(), TIE)
    params = untie_parameters(stored, TIE)
    np.testing.assert_array_equal(params["head"]["kernel"], stored["embed"]["table"].T)
    jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0)(params)
    assert params["embed"]["table"].is_deleted()
    assert not stored["embed"]["table"].is_deleted()
    same = untie_parameters(store({"a": jnp.ones(2), "b": jnp.ones(2)}, Tie("a", "b")), Tie("a", "b"))
    assert same["a"].unsafe_buffer_pointer() != same["b"].unsafe_buffer_pointer()


@pytest.mark.parametrize("tied", [True, False])
def test_a_full_checkpoint_of_orbax(tmp_path, tied):
    saved, stored = full(seed=1), store(full(), TIE)
    if tied:
        saved = view(store(saved, TIE), TIE)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "full", saved)
        checkpointer.wait_until_finished()
        read = checkpointer.restore(tmp_path / "full", jax.eval_shape(lambda stored: view(stored, TIE), stored))
    if tied:
        loaded = load_full(stored, read, TIE)
        assert jax.tree.structure(loaded) == jax.tree.structure(stored)
        jax.tree.map(np.testing.assert_array_equal, view(loaded, TIE), saved)
        return
    with pytest.raises(TieError, match=r"embed/table -> head/kernel: the two arrays differ by up to \d.*, so .* not tied"):
        load_full(stored, read, TIE)


def test_full_parameters_that_do_not_fit():
    stored, saved = store(full(), TIE), view(store(full(seed=1), TIE), TIE)
    near = jax.tree.map(lambda leaf: leaf, saved)
    near["head"]["kernel"] = near["head"]["kernel"] + 1e-4
    with pytest.raises(TieError, match="differ by up to"):
        load_full(stored, near, TIE)
    np.testing.assert_array_equal(load_full(stored, near, TIE, atol=1e-3)["embed"]["table"], saved["embed"]["table"])
    for changed, message in (
        ({"embed": saved["embed"]}, "head/bias: missing from the full parameters"),
        (saved | {"more": jnp.ones(2)}, "more: only in the full parameters"),
        (full(rows=5), r"embed/table: expected \(4, 3\) float32, got \(5, 3\) float32 in the full parameters"),
        (saved | {"head": {**saved["head"], "kernel": saved["head"]["kernel"].at[0, 0].set(jnp.nan)}}, "differ by up to nan"),
    ):
        with pytest.raises(TieError, match=message):
            load_full(stored, changed, TIE)


def test_a_bias_where_the_stored_parameters_have_none():
    stored, saved = store(full(), TIE), view(store(full(seed=1), TIE), TIE)
    stored["head"]["bias"] = None
    with pytest.raises(TieError, match="head/bias: only in the full parameters, where the stored ones have None"):
        load_full(stored, saved, TIE)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (np.int8([0, 0]), np.int8([-128, 0]), "differ,"),
        (np.array([True, False]), np.array([True, True]), "differ,"),
        (np.float32([0, 1]), np.float32([0, np.nan]), "differ by up to nan"),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), None),
        (np.array([True, False]), np.array([True, False]), None),
    ],
    ids=["int8", "bool", "one nan", "equal nan", "equal bool"],
)
def test_full_checkpoints_of_any_dtype(one, other, words):
    tie = Tie("a", "b")
    stored, full = store({"a": one, "b": one}, tie), {"a": one, "b": other}
    if words is None:
        np.testing.assert_array_equal(load_full(stored, full, tie)["a"], one)
    else:
        with pytest.raises(TieError, match=words):
            load_full(stored, full, tie)
