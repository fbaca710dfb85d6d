"""Ties on named leaves: stored once, and switched at run time. The oracle is the untied model's own gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.tying import (
    Tie,
    TieError,
    clip_by_global_norm,
    copy_to_targets,
    equal_leaves,
    global_norm,
    resolve,
    store,
    symmetrise,
    view,
)


class Autoencoder(nn.Module):
    """Two Dense layers, the decoder's kernel of the shape of the encoder's transposed: a model that knows nothing of ties."""

    hidden: int
    features: int

    @nn.compact
    def __call__(self, x):
        h = jnp.tanh(nn.Dense(self.hidden, param_dtype=x.dtype, name="encoder")(x))
        return nn.Dense(self.features, param_dtype=x.dtype, name="decoder")(h)


MODEL = Autoencoder(3, 5)
TIE = Tie("encoder/kernel", "decoder/kernel", transform="transpose")


def autoencoder(seed=0):
    x = jax.random.normal(jax.random.key(seed + 100), (16, 5))
    return MODEL.init(jax.random.key(seed), x)["params"], x


def reconstruction(params, x):
    return jnp.mean(jnp.square(MODEL.apply({"params": params}, x) - x))


def assert_close(actual, desired, rtol):
    """Compare leaf by leaf, relative to the largest entry of the leaf."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * float(np.abs(other).max() + 1e-30))


def test_view_routes_the_source_to_the_target():
    params, _ = autoencoder()
    stored = store(params, [TIE])
    assert stored["decoder"]["kernel"] is None
    assert len(jax.tree.leaves(stored)) == len(jax.tree.leaves(params)) - 1
    full = view(stored, [TIE])
    assert full["encoder"]["kernel"] is stored["encoder"]["kernel"]
    np.testing.assert_array_equal(full["decoder"]["kernel"], params["encoder"]["kernel"].T)
    assert jax.tree.structure(full) == jax.tree.structure(params)


def test_identity_view_is_the_same_array():
    params = {"a": jnp.ones(3), "b": jnp.zeros(3), "c": jnp.zeros(2)}
    full = view(store(params, [Tie("a", "b")]), [Tie("a", "b")])
    assert full["b"] is params["a"]


def test_tied_gradient_is_the_sum_of_the_untied_gradients_at_both_places(x64):
    params, x = autoencoder()
    stored = store(params, [TIE])
    full = view(stored, [TIE])
    untied = jax.grad(reconstruction)(full, x)
    tied = jax.grad(lambda s: reconstruction(view(s, [TIE]), x))(stored)
    expected = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
    np.testing.assert_allclose(tied["encoder"]["kernel"], expected, rtol=1e-13)
    assert tied["decoder"]["kernel"] is None
    np.testing.assert_allclose(tied["decoder"]["bias"], untied["decoder"]["bias"], rtol=1e-13)


def test_owner_gradient_is_the_source_s_own(x64):
    tie = Tie("encoder/kernel", "decoder/kernel", transform="transpose", gradient="owner")
    params, x = autoencoder()
    stored = store(params, [tie])
    untied = jax.grad(reconstruction)(view(stored, [tie]), x)
    tied = jax.grad(lambda s: reconstruction(view(s, [tie]), x))(stored)
    np.testing.assert_allclose(tied["encoder"]["kernel"], untied["encoder"]["kernel"], rtol=1e-13)


OPTIMIZERS = {
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "adam with decay in the gradient": lambda: optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-2)),
    "sgd with momentum": lambda: optax.sgd(1e-2, momentum=0.9),
}


def train_stored_once(params, ties, optimizer, x, steps, max_norm=None):
    if max_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(max_norm), optimizer)

    @jax.jit
    def step(carry, x):
        stored, opt_state = carry
        grads = jax.grad(lambda s: reconstruction(view(s, ties), x))(stored)
        updates, opt_state = optimizer.update(grads, opt_state, stored)
        return optax.apply_updates(stored, updates), opt_state

    carry = store(params, ties), optimizer.init(store(params, ties))
    for _ in range(steps):
        carry = step(carry, x)
    return view(carry[0], ties)


def train_symmetric(params, ties, optimizer, x, steps, on=True, max_norm=None, count_twice=False):
    @jax.jit
    def step(carry, x, on):
        params, opt_state = carry
        grads = symmetrise(jax.grad(reconstruction)(params, x), ties, on)
        if max_norm is not None:
            clip = optax.clip_by_global_norm(max_norm)
            grads = clip.update(grads, None)[0] if count_twice else clip_by_global_norm(grads, ties, on, max_norm)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params = copy_to_targets(params, params, ties, on)
    carry = params, optimizer.init(params)
    for _ in range(steps):
        carry = step(carry, x, jnp.asarray(on))
    return carry[0]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("gradient", ["all", "owner"])
def test_symmetrised_equals_stored_once_in_float64(x64, kind, gradient):
    ties = [Tie("encoder/kernel", "decoder/kernel", transform="transpose", gradient=gradient)]
    params, x = autoencoder()
    once = train_stored_once(params, ties, OPTIMIZERS[kind](), x, 100)
    twice = train_symmetric(params, ties, OPTIMIZERS[kind](), x, 100)
    assert_close(twice, once, 1e-12)


def test_symmetrised_equals_stored_once_in_float32():
    params, x = autoencoder()
    once = train_stored_once(params, [TIE], OPTIMIZERS["adamw"](), x, 100)
    twice = train_symmetric(params, [TIE], OPTIMIZERS["adamw"](), x, 100)
    assert_close(twice, once, 1e-5)
    assert equal_leaves(twice, [TIE]) == {"decoder/kernel": True}


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
    # The trap: optax's own clip on the symmetrised gradients counts the pair twice and drifts away.
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


def test_donated_buffers_work_where_aliased_leaves_would_not():
    params, x = autoencoder()
    stored = store(params, [TIE])
    optimizer = optax.adamw(1e-2)

    def step(stored, opt_state, x):
        grads = jax.grad(lambda s: reconstruction(view(s, [TIE]), x))(stored)
        updates, opt_state = optimizer.update(grads, opt_state, stored)
        return optax.apply_updates(stored, updates), opt_state

    kept, _ = jax.jit(step)(stored, optimizer.init(stored), x)
    donated, _ = jax.jit(step, donate_argnums=(0, 1))(jax.tree.map(jnp.copy, stored), optimizer.init(stored), x)
    assert_close(donated, kept, 1e-7)


def test_members_of_one_ensemble_can_differ_in_their_ties(x64):
    params, x = autoencoder()
    both = jax.vmap(lambda on: symmetrise(jax.grad(reconstruction)(params, x), [TIE], on))(jnp.array([False, True]))
    untied = jax.grad(reconstruction)(params, x)
    np.testing.assert_allclose(both["encoder"]["kernel"][0], untied["encoder"]["kernel"], rtol=1e-13)
    total = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
    np.testing.assert_allclose(both["encoder"]["kernel"][1], total, rtol=1e-13)
    np.testing.assert_allclose(both["decoder"]["kernel"][1], total.T, rtol=1e-13)


def test_copy_to_targets_finds_the_moments_in_any_optax_state():
    params, x = autoencoder()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 10)))
    grads = jax.grad(reconstruction)(params, x)
    _, opt_state = optimizer.update(grads, optimizer.init(params), params)
    copied = copy_to_targets(opt_state, params, [TIE], True)
    adam = copied[1][0]
    for moments in (adam.mu, adam.nu):
        np.testing.assert_array_equal(moments["decoder"]["kernel"], moments["encoder"]["kernel"].T)
        assert np.abs(moments["encoder"]["kernel"]).max() > 0
    np.testing.assert_array_equal(adam.mu["decoder"]["bias"], opt_state[1][0].mu["decoder"]["bias"])
    assert jax.tree.structure(copied) == jax.tree.structure(opt_state)


def test_patterns_tie_whole_blocks():
    params = {f"block_{k}": {"dense": {"kernel": jnp.full((2, 2), k), "bias": jnp.full(2, k)}} for k in range(3)}
    ties = [Tie("block_0/*", "block_1/*")]
    resolved = {(tie.source, tie.target) for tie in resolve(ties, params)}
    assert resolved == {(f"block_0/dense/{leaf}", f"block_1/dense/{leaf}") for leaf in ("kernel", "bias")}
    full = view(store(params, ties), ties)
    np.testing.assert_array_equal(full["block_1"]["dense"]["bias"], [0, 0])
    np.testing.assert_array_equal(full["block_2"]["dense"]["bias"], [2, 2])


def test_chains_end_at_the_leaf_that_is_stored():
    params = {name: jnp.arange(6.0).reshape(shape) for name, shape in (("a", (2, 3)), ("b", (3, 2)), ("c", (2, 3)))}
    ties = [Tie("b", "c", "transpose"), Tie("a", "b", "transpose", gradient="owner")]
    assert resolve(ties, params) == (Tie("a", "c", "identity", "owner"), Tie("a", "b", "transpose", "owner"))
    stored = store(params, ties)
    assert [name for name in stored if stored[name] is not None] == ["a"]
    np.testing.assert_array_equal(view(stored, ties)["b"], params["a"].T)
    np.testing.assert_array_equal(view(stored, ties)["c"], params["a"])


def test_other_containers_than_dicts():
    params = [jnp.ones(2), (jnp.zeros(2), {"w": jnp.full(2, 7.0)})]
    full = view(store(params, [Tie("1/1/w", "0")]), [Tie("1/1/w", "0")])
    np.testing.assert_array_equal(full[0], [7, 7])


def test_equal_leaves_compares_bits():
    """NaN is equal to itself here: a member that went non-finite is still tied."""
    params = {"a": np.array([np.nan, 1.0]), "b": np.array([np.nan, 1.0]), "c": np.array([np.nan, 2.0])}
    assert equal_leaves(params, [Tie("a", "b"), Tie("a", "c")]) == {"b": True, "c": False}


def test_equal_leaves_compares_tensors():
    params, _ = autoencoder()
    assert equal_leaves(params, [TIE]) == {"decoder/kernel": False}
    assert equal_leaves(view(store(params, [TIE]), [TIE]), [TIE]) == {"decoder/kernel": True}


LEAVES = {
    "embed": {"table": np.zeros((7, 4), np.float32)},
    "head": {"table": np.zeros((7, 4), np.float32), "half": np.zeros((7, 4), np.float16), "bias": np.zeros(7, np.float32)},
}


@pytest.mark.parametrize(
    ("ties", "words"),
    [
        ([Tie("embed/tabel", "head/table")], ["embed/tabel -> head/table", "no leaf embed/tabel", "embed/table"]),
        ([Tie("embed/table", "head/tabel")], ["no leaf head/tabel", "head/table"]),
        ([Tie("embed/table", "head/bias")], ["embed/table (7, 4) float32", "head/bias (7,) float32"]),
        ([Tie("embed/table", "head/half")], ["embed/table (7, 4) float32", "head/half (7, 4) float16"]),
        ([Tie("embed/table", "head/table", "transpose")], ["embed/table (7, 4)", "transposed", "head/table (7, 4)"]),
        ([Tie("head/bias", "embed/table", "transpose")], ["cannot transpose", "head/bias (7,)"]),
        ([Tie("embed/table", "embed/table")], ["cycle", "embed/table"]),
        ([Tie("embed/table", "head/table"), Tie("head/table", "embed/table")], ["cycle", "embed/table", "head/table"]),
        ([Tie("embed/table", "head/table"), Tie("head/half", "head/table")], ["already reads embed/table"]),
        ([Tie("body/*", "head/*")], ["no leaf matches body/*"]),
    ],
)
def test_errors_name_paths_shapes_and_dtypes(ties, words):
    with pytest.raises(TieError) as error:
        store(LEAVES, ties)
    for word in words:
        assert word in str(error.value)


def test_errors_of_a_tie_itself():
    for field, value in (("transform", "rotate"), ("gradient", "some")):
        tie = Tie("a", "b")
        # Past the type checks that run in tests only: what a user without them meets.
        object.__setattr__(tie, field, value)
        with pytest.raises(TieError, match=f"{field} must be .* got '{value}'"):
            tie.__post_init__()
    with pytest.raises(TieError, match=r"equally many '\*'"):
        Tie("a/*", "b")


def test_view_refuses_a_tree_that_was_not_stored():
    with pytest.raises(TieError, match="holds an array of its own"):
        view(LEAVES, [Tie("embed/table", "head/table")])


def test_paths_that_collide_are_refused():
    with pytest.raises(TieError, match="both called a/b"):
        resolve([Tie("a/b", "c")], {"a": {"b": np.zeros(1)}, "a/b": np.zeros(1), "c": np.zeros(1)})
