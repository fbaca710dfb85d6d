"""Train with a tie, and end it after two thirds of the steps: python untie_at_two_thirds.py, with pip install tiejax optax.

The model is a dict of arrays and a function. It predicts a character from the three before it. One seed cannot tell whether
untying helps; ensemble_of_seeds.py compares ways of training over seeds.
"""

import functools
from pydoc_data.topics import topics  # the documentation that comes with Python, as a small text

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import Tie, count_parameters, store, untie, view

VOCABULARY, WIDTH, CONTEXT, STEPS = 128, 32, 3, 600  # ASCII characters


def loss_fn(params, contexts, targets):  # untied: it knows nothing of ties
    hidden = jnp.tanh(params["embed"][contexts].reshape(-1, CONTEXT * WIDTH) @ params["hidden"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["head"].T, targets).mean()


# The optimizer sees `stored`, which has every array once; the model sees `view(stored, ties)`, which has both tables.
optimizer = optax.adamw(4e-3)


@functools.partial(jax.jit, static_argnames="ties")
def train_step(stored, opt_state, ties, contexts, targets):
    loss, grads = jax.value_and_grad(lambda stored: loss_fn(view(stored, ties), contexts, targets))(stored)
    updates, opt_state = optimizer.update(grads, opt_state, stored)
    return optax.apply_updates(stored, updates), opt_state, loss


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "embed": 0.1 * jax.random.normal(keys[0], (VOCABULARY, WIDTH)),
    "hidden": 0.1 * jax.random.normal(keys[1], (CONTEXT * WIDTH, WIDTH)),
    "head": 0.1 * jax.random.normal(keys[2], (VOCABULARY, WIDTH)),
}
ties = (Tie("embed", "head"),)
stored = store(params, ties)
opt_state = optimizer.init(stored)

text = np.frombuffer("".join(topics.values()).encode("ascii", "ignore"), np.uint8).astype(np.int32)
random = np.random.default_rng(0)
for step in range(STEPS):
    if step == 2 * STEPS // 3:
        # Both tables continue from the shared values and the shared moments of AdamW; `policy` offers other choices.
        stored, opt_state = untie(optimizer, stored, opt_state, ties)
        ties = ()  # a static argument: the step is compiled again, without the tie
    windows = text[random.integers(len(text) - CONTEXT, size=256)[:, None] + np.arange(CONTEXT + 1)]
    stored, opt_state, loss = train_step(stored, opt_state, ties, windows[:, :CONTEXT], windows[:, CONTEXT])
    if (step + 1) % 100 == 0:
        print(f"step {step + 1}: {count_parameters(stored):,} parameters, training loss {loss:.3f} nats a character")

distance = jnp.linalg.norm(stored["embed"] - stored["head"]) / jnp.linalg.norm(stored["embed"])
print(f"the tables now differ by {distance:.0%} of their norm")
