"""The tied gradient is the sum over both uses; the oracle is the gradient of the untied model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autoencoder import OPTIMIZERS, TIE, assert_close, autoencoder, reconstruction, train_stored_once, train_symmetric

from tiejax.tying import Tie, collect, equal_leaves, gradients_by_use, resolve, store, symmetrise, view


def test_tied_gradient_is_the_sum_of_the_untied_gradients(x64):
    params, x = autoencoder()
    stored = store(params, [TIE])
    full = view(stored, [TIE])
    untied = jax.grad(reconstruction)(full, x)
    tied = jax.grad(lambda s: reconstruction(view(s, [TIE]), x))(stored)
    expected = untied["encoder"]["kernel"] + untied["decoder"]["kernel"].T
    np.testing.assert_allclose(tied["encoder"]["kernel"], expected, rtol=1e-13)
    assert tied["decoder"]["kernel"] is None
    np.testing.assert_allclose(tied["decoder"]["bias"], untied["decoder"]["bias"], rtol=1e-13)


def test_owner_gradient_is_that_of_the_source(x64):
    tie = Tie("encoder/kernel", "decoder/kernel", transform="transpose", gradient="source")
    params, x = autoencoder()
    stored = store(params, [tie])
    untied = jax.grad(reconstruction)(view(stored, [tie]), x)
    tied = jax.grad(lambda s: reconstruction(view(s, [tie]), x))(stored)
    np.testing.assert_allclose(tied["encoder"]["kernel"], untied["encoder"]["kernel"], rtol=1e-13)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("gradient", ["all", "source"])
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


def by_use(tree):
    """The gradients of the two uses of the autoencoder's kernel, of a full tree of gradients."""
    return tree["encoder"]["kernel"], tree["decoder"]["kernel"]


def test_gradients_by_use_with_auxiliary_output_keywords_and_settings(x64):
    params, x = autoencoder()
    settings = {"activation": jnp.tanh, "steps": 3, "count": jnp.int32(2), "key": jax.random.key(0), "bias": None}

    def loss(tree, x, *, scale, shift=0.0):
        value = reconstruction({"encoder": tree["encoder"], "decoder": tree["decoder"]}, x)
        noise = jax.random.normal(tree["settings"]["key"])
        return scale * tree["settings"]["activation"](value) + shift, (noise, tree["settings"]["count"] + 1)

    stored = store(params | {"settings": settings}, [TIE])
    full = view(store(params, [TIE]), [TIE])
    expected = jax.grad(lambda full: 2.0 * jnp.tanh(reconstruction(full, x)))(full)
    grads, (noise, count) = gradients_by_use(loss, stored, [TIE], x, has_aux=True, scale=2.0, shift=jnp.float64(1))
    assert grads["settings"] == dict.fromkeys(settings)
    for found, wanted in zip(by_use(grads), by_use(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
    assert (noise, count) == (jax.random.normal(jax.random.key(0)), 3)

    grads = gradients_by_use(lambda *args, **kwargs: loss(*args, **kwargs)[0], stored, [TIE], x, scale=2.0)
    summed = collect(grads, [TIE])
    encoder, decoder = by_use(expected)
    np.testing.assert_allclose(summed["encoder"]["kernel"], encoder + decoder.T, rtol=1e-13)
    assert summed["decoder"]["kernel"] is None


def test_integers_of_tied_blocks_have_no_gradient():
    """Neither as float0, which jax returns for them, nor as None."""
    block = {"w": jnp.array([2.0, 3.0]), "n": jnp.int32(3)}
    params, ties = {"a": dict(block), "b": dict(block)}, Tie("a/*", "b/*")

    def loss(params):
        return params["a"]["w"] @ params["b"]["w"] * params["b"]["n"]

    grads = symmetrise(jax.grad(loss, allow_int=True)(params), ties, True)
    np.testing.assert_array_equal(grads["a"]["w"], 2 * 3 * block["w"])
    assert grads["a"]["n"].dtype == jax.dtypes.float0
    stored = store(params, ties)
    for given in (ties, resolve(ties, params), [Tie("a/w", "b/w"), Tie("a/n", "b/n")]):
        summed = collect(gradients_by_use(loss, stored, given), given)
        np.testing.assert_array_equal(summed["a"]["w"], 2 * 3 * block["w"])
        assert summed["a"]["n"] is None


@pytest.mark.parity
def test_gradients_by_use_of_an_equinox_module():
    import equinox as eqx

    class Model(eqx.Module):
        emb: eqx.nn.Embedding
        mlp: eqx.nn.MLP
        dropout: eqx.nn.Dropout
        head: eqx.nn.Linear

        def __call__(self, token, key):
            return self.head(self.dropout(self.mlp(self.emb(token)), key=key))

    keys = jax.random.split(jax.random.key(0), 3)
    model = Model(
        eqx.nn.Embedding(5, 3, key=keys[0]),
        eqx.nn.MLP(3, 3, 4, 1, key=keys[1]),
        eqx.nn.Dropout(),
        eqx.nn.Linear(3, 5, use_bias=False, key=keys[2]),
    )

    def loss(model, key, *, power):
        return jnp.sum(jax.vmap(model)(jnp.arange(5), jax.random.split(key, 5)) ** power)

    tie = Tie("emb/weight", "head/weight")
    found = gradients_by_use(loss, store(model, tie), tie, jax.random.key(3), power=2)
    by_hand = eqx.tree_at(lambda m: m.head.weight, model, model.emb.weight)
    expected = eqx.filter_grad(lambda model: loss(model, jax.random.key(3), power=2))(by_hand)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), found, expected)
