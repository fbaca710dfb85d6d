"""Should this masked language model in Flax Linen be tied? python masked_lm_linen.py --seeds 8, beside a text file text.txt.

Its tables have a learning rate of their own, and dropout is left out where the key is None.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

from tiejax import Tie
from tiejax.lab import Comparison

VOCABULARY, WIDTH, LENGTH, MASK = 257, 48, 64, 256  # bytes, and the mask
TABLES = {"tokens", "head"}


class Encoder(linen.Module):
    @linen.compact
    def __call__(self, tokens, train):
        normal = linen.initializers.normal(0.02)
        table = self.param("tokens", normal, (VOCABULARY, WIDTH))
        x = table[tokens] + self.param("positions", normal, (LENGTH, WIDTH))
        for _ in range(2):
            x = x + linen.MultiHeadDotProductAttention(4, deterministic=True)(linen.LayerNorm()(x))
            hidden = linen.gelu(linen.Dense(4 * WIDTH)(linen.LayerNorm()(x)))
            x = x + linen.Dropout(0.1, deterministic=not train)(linen.Dense(WIDTH)(hidden))
        return linen.LayerNorm()(x) @ self.param("head", normal, (VOCABULARY, WIDTH)).T


model = Encoder()


def init(key):
    return model.init(key, jnp.zeros((1, LENGTH), int), train=False)["params"]


def loss(params, batch, key):
    rngs = None if key is None else {"dropout": key}
    logits = model.apply({"params": params}, batch["masked"], train=key is not None, rngs=rngs)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"])
    return (each * batch["chosen"]).sum() / batch["chosen"].sum()


def optimizer(rate, table_rate):
    labels = lambda params: {name: "tables" if name in TABLES else "others" for name in params}  # noqa: E731
    return optax.multi_transform({"tables": optax.adam(table_rate), "others": optax.adamw(rate, weight_decay=0.1)}, labels)


text = np.frombuffer(Path("text.txt").read_bytes(), np.uint8).astype(np.int32)
tokens = text[: len(text) // LENGTH * LENGTH].reshape(-1, LENGTH)
chosen = np.random.default_rng(0).random(tokens.shape) < 0.15
chosen[:, 0] |= ~chosen.any(axis=1)  # at least one place in every example
examples = {"tokens": tokens, "chosen": chosen.astype(np.float32), "masked": np.where(chosen, MASK, tokens)}
last = len(tokens) * 9 // 10

comparison = Comparison(
    name="a masked language model in Linen",
    init=init,
    loss=loss,
    training=jax.tree.map(lambda leaf: leaf[:last], examples),
    held_out=jax.tree.map(lambda leaf: leaf[last:], examples),
    batch_size=16,
    ties=Tie("tokens", "head"),
    optimizer=optimizer,
    rates=[2e-3, 4e-3, 8e-3],
    table_factors=[1, 2, 4],
    steps=400,
    margin=0.01,
    unit="nats a masked byte",
)

if __name__ == "__main__":
    comparison.main()
