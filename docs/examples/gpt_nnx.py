"""Should this GPT in Flax NNX be tied? python gpt_nnx.py --seeds 8, in a folder with a text file text.txt."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from tiejax import Tie
from tiejax.lab import Comparison

VOCABULARY, WIDTH, LENGTH = 256, 48, 64  # bytes


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.hidden, self.out = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.out(nnx.gelu(self.hidden(self.norms[1](x))))


class GPT(nnx.Module):
    def __init__(self, rngs):
        normal = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, embedding_init=normal, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, embedding_init=normal, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, kernel_init=normal, rngs=rngs)

    def __call__(self, tokens):
        x, mask = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1])), nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


graph, _ = nnx.split(nnx.eval_shape(lambda: GPT(nnx.Rngs(0))))


def init(key):
    return nnx.to_pure_dict(nnx.state(GPT(nnx.Rngs(key))))


def loss(params, blocks, key):
    logits = nnx.merge(graph, params)(blocks[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, blocks[:, 1:]).mean()


text = np.frombuffer(Path("text.txt").read_bytes(), np.uint8).astype(np.int32)
blocks = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)

comparison = Comparison(
    name="a GPT in NNX",
    init=init,
    loss=loss,
    training=blocks[: len(blocks) * 9 // 10],
    held_out=blocks[len(blocks) * 9 // 10 :],
    batch_size=16,
    ties=Tie("tokens/embedding", "head/kernel", transform="transpose"),
    optimizer=lambda rate: optax.adamw(rate, weight_decay=0.1),
    rates=[2e-3, 4e-3, 8e-3],
    steps=400,
    max_norm=1.0,
    margin=0.01,
    unit="nats a byte",
)

if __name__ == "__main__":
    comparison.main()
