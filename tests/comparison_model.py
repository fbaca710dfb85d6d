"""A small model with two tables, and a comparison of it, for tests and for processes that are killed."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import Tie
from tiejax.lab import Comparison

TOKENS, WIDTH = 11, 3
KEPT = float(os.environ.get("KEPT", ".9"))  # share of values that dropout keeps


def init(key):
    first, second, third = jax.random.split(key, 3)
    return {
        "embed": 0.3 * jax.random.normal(first, (TOKENS, WIDTH)),
        "head": 0.3 * jax.random.normal(second, (TOKENS, WIDTH)),
        "body": 0.3 * jax.random.normal(third, (WIDTH, WIDTH)),
    }


def loss(params, batch, key):
    states = params["embed"][batch["tokens"]]
    if key is not None:
        states = states * jax.random.bernoulli(key, KEPT, states.shape) / KEPT
    logits = jnp.tanh(states @ params["body"]) @ params["head"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"]).mean()


def examples(number, seed=0):
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (number, 6), np.int32)
    return {"tokens": tokens, "next": (3 * tokens + 1) % TOKENS}


ARGUMENTS = {
    "name": "A small model",
    "init": init,
    "loss": loss,
    "training": examples(200),
    "held_out": examples(37, seed=1),
    "batch_size": 8,
    "ties": Tie("embed", "head"),
    "optimizer": lambda rate: optax.adamw(rate),
    "rates": [0.1, 0.2],
    "steps": 60,
    "seeds": 2,
    "margin": 0.01,
}


def comparison(**changes):
    return Comparison(**(ARGUMENTS | changes))


if __name__ == "__main__":
    comparison().main()
