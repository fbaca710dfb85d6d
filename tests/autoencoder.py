"""A small autoencoder, written untied, and its training with both forms of ties."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax.tying import (
    Tie,
    clip_by_global_norm,
    copy_to_targets,
    store,
    symmetrise,
    view,
)


class Autoencoder(nn.Module):
    """Two Dense layers; the decoder's kernel has the shape of the encoder's, transposed."""

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


LEAVES = {
    "embed": {"table": np.zeros((7, 4), np.float32)},
    "head": {"table": np.zeros((7, 4), np.float32), "half": np.zeros((7, 4), np.float16), "bias": np.zeros(7, np.float32)},
}
