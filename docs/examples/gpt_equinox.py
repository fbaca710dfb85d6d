"""Should this GPT in Equinox be tied? python gpt_equinox.py --seeds 8, in a folder with a text file text.txt."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import Tie
from tiejax.lab import Comparison

VOCABULARY, WIDTH, LENGTH = 256, 48, 64  # bytes


class Block(eqx.Module):
    norms: list
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key):
        attention, mlp = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=attention)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, depth=1, activation=jax.nn.gelu, key=mlp)

    def __call__(self, x):
        normed = jax.vmap(self.norms[0])(x)
        x = x + self.attention(normed, normed, normed, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class GPT(eqx.Module):
    tokens: jax.Array
    positions: jax.Array
    blocks: list
    norm: eqx.nn.LayerNorm
    head: jax.Array

    def __init__(self, key):
        *keys, first, second = jax.random.split(key, 5)
        sizes = [(VOCABULARY, WIDTH), (LENGTH, WIDTH), (VOCABULARY, WIDTH)]
        self.tokens, self.positions, self.head = (
            0.02 * jax.random.normal(one, size) for one, size in zip(keys, sizes, strict=True)
        )
        self.blocks, self.norm = [Block(first), Block(second)], eqx.nn.LayerNorm(WIDTH)

    def __call__(self, tokens):
        x = self.tokens[tokens] + self.positions[: len(tokens)]
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.norm)(x) @ self.head.T


shapes = eqx.filter_eval_shape(lambda: GPT(jax.random.key(0)))  # creates no arrays: jax has not started yet
static = eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)


def init(key):
    return eqx.filter(GPT(key), eqx.is_array)


def loss(params, blocks, key):
    logits = jax.vmap(eqx.combine(params, static))(blocks[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, blocks[:, 1:]).mean()


text = np.frombuffer(Path("text.txt").read_bytes(), np.uint8).astype(np.int32)
blocks = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)

comparison = Comparison(
    name="a GPT in Equinox",
    init=init,
    loss=loss,
    training=blocks[: len(blocks) * 9 // 10],
    held_out=blocks[len(blocks) * 9 // 10 :],
    batch_size=16,
    ties=Tie("tokens", "head"),
    optimizer=lambda rate: optax.adamw(rate, weight_decay=0.1),
    rates=[2e-3, 4e-3, 8e-3],
    steps=400,
    max_norm=1.0,
    margin=0.01,
    unit="nats a byte",
)

if __name__ == "__main__":
    comparison.main()
