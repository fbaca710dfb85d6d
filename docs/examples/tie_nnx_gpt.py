"""Tie the embeddings of a GPT in Flax NNX: python tie_nnx_gpt.py, with pip install tiejax flax optax.

The model is written untied, and the training loop is that of any NNX model; `tiejax.nnx.tie` is the only line about the tie.
"""

from pydoc_data.topics import topics  # the documentation that comes with Python, as a small text

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import tiejax.nnx
from tiejax import Tie

VOCABULARY, WIDTH, LENGTH, STEPS = 128, 32, 32, 200  # ASCII characters


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.mlp = nnx.Sequential(nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.gelu, nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs))

    def __call__(self, x, mask):
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.mlp(self.norms[1](x))


class GPT(nnx.Module):
    def __init__(self, rngs):
        small = nnx.initializers.normal(0.02)  # a table that also gives the logits needs small values
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, embedding_init=small, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, embedding_init=small, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def parameters(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


model = GPT(nnx.Rngs(0))
untied_parameters = parameters(model)

# The embedding is [vocabulary, width] and the kernel of the head [width, vocabulary], hence the transpose.
tiejax.nnx.tie(model, Tie("tokens/embedding", "head/kernel", transform="transpose"))
optimizer = nnx.Optimizer(model, optax.adamw(4e-3), wrt=nnx.Param)  # after the tie: it has moments for one table
print(f"parameters: {untied_parameters:,} untied, {parameters(model):,} tied")


def loss_fn(model, blocks):
    logits = model(blocks[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, blocks[:, 1:]).mean()


@nnx.jit
def train_step(model, optimizer, blocks):
    loss, grads = nnx.value_and_grad(loss_fn)(model, blocks)  # the gradient of the table is the sum over both uses
    optimizer.update(model, grads)
    return loss


text = np.frombuffer("".join(topics.values()).encode("ascii", "ignore"), np.uint8).astype(np.int32)
random = np.random.default_rng(0)
for step in range(1, STEPS + 1):
    starts = random.integers(len(text) - LENGTH, size=16)
    loss = train_step(model, optimizer, text[starts[:, None] + np.arange(LENGTH + 1)])
    if step % 50 == 0:
        print(f"step {step}: training loss {loss:.3f} nats a character")

# To save or export an ordinary NNX module with two tables, end the tie.
tiejax.nnx.untie(model, optimizer)
assert (model.head.kernel[...] == model.tokens.embedding[...].T).all()
