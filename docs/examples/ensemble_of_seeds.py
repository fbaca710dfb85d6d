"""Train tied, untied and later untied models of 8 seeds at once: python ensemble_of_seeds.py, with pip install 'tiejax[lab]'.

An arm is one way of training. All arms of a seed start from the same values and see the same batches, so that they can be
compared in pairs. Here they also have one learning rate, which may favour one of them: `Comparison` (gpt_nnx.py) chooses the
rates of each arm, writes a report and resumes.
"""

from pydoc_data.topics import topics  # the documentation that comes with Python, as a small text

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import Tie
from tiejax.lab import Ensemble, ExampleFeed, Phase, Recorder, train
from tiejax.statistics.claims import Claim, assess

VOCABULARY, WIDTH, CONTEXT, STEPS, SEEDS = 128, 16, 3, 300, 8  # ASCII characters

text = np.frombuffer("".join(topics.values()).encode("ascii", "ignore"), np.uint8).astype(np.int32)
windows = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
training, held_out = windows[:-2_000], windows[-2_000:]


def init(key):  # a model of the next character, untied
    embed, hidden, head = jax.random.split(key, 3)
    return {
        "embed": 0.1 * jax.random.normal(embed, (VOCABULARY, WIDTH)),
        "hidden": 0.1 * jax.random.normal(hidden, (CONTEXT * WIDTH, WIDTH)),
        "head": 0.1 * jax.random.normal(head, (VOCABULARY, WIDTH)),
    }


def loss(params, windows, key):
    hidden = jnp.tanh(params["embed"][windows[:, :CONTEXT]].reshape(-1, CONTEXT * WIDTH) @ params["hidden"])
    value = optax.softmax_cross_entropy_with_integer_labels(hidden @ params["head"].T, windows[:, CONTEXT]).mean()
    return value, {"loss": value}


def measure(params, batch, seed_key, step):
    return {"loss": loss(params, held_out, None)[0]}


arms = {"untied": Phase(0, 0), "untied at 2/3": Phase(0, 2 * STEPS // 3), "tied": Phase()}  # the steps with the tie
ensemble = Ensemble(
    init=init,
    source=ExampleFeed(training, rows=64),
    sample=lambda seed_key, step, fed: fed,
    loss=loss,
    optimizer=optax.adamw(4e-3),
    ties=Tie("embed", "head"),
    arm_ties=np.ones((len(arms), 1), bool),
    phases=list(arms.values()),
    steps=STEPS,
    recorders={"held out": Recorder(STEPS // 6, measure)},
)
trained = train(ensemble, seeds=range(SEEDS))
losses = trained.records["held out"]["loss"]  # [record, seed, arm]

print("step", *arms, sep="\t")
for step, mean in zip(trained.records["held out"]["step"], losses.mean(axis=1), strict=True):
    print(step, *(f"{value:.3f}" for value in mean), sep="\t")

# A paired test of the difference at the end. Decide on the claim, and on the sign that it expects, before you see a loss.
difference = losses[-1, :, 2] - losses[-1, :, 0]
claim = Claim("price", "Tying raises the loss.", "the held-out loss, tied - untied", difference, sign=1, unit="nats")
(row,) = assess([claim])
low, high = row["interval"]
print(f"tied - untied: {row['estimate']:.3f} nats [{low:.3f}, {high:.3f}], {row['n']} seeds: {row['verdict']}")
