"""A synthetic layer-tying run with three methods, two seeds and four steps, its analysis, and batches of random tokens."""

import jax
import numpy as np

from tiejax.lab.studies.layer_tying.analysis import analyse
from tiejax.lab.studies.layer_tying.job import Data
from tiejax.lab.studies.layer_tying.text import BlockBatch

LAYERS, STEPS = 4, 4
METHODS = ("untied", "agent", "all-one")
# By number n of distinct layers; parameters, gradients and optimizer state together take 1600 + 160 n bytes.
BY_NUMBER = {
    n: {
        "parameters": 100 + 10 * n,
        "parameter_bytes": 400 + 40 * n,
        "gradient_bytes": 400 + 40 * n,
        "optimizer_bytes": 800 + 80 * n,
        "peak_bytes": 5000 + 1000 * n,
        "move_bytes": 9000 + n,
    }
    for n in range(1, 5)
}
SIZES = dict.fromkeys((*METHODS, "random-map"), BY_NUMBER)
TOKENS_PER_WORD = {"validation": 2.0, "test": 1.5}
AGENT_MAPS = [
    [[0, 0, 0, 0], [0, 0, 2, 0], [0, 0, 2, 0], [0, 1, 2, 0]],
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
]


def run():
    """Return the arrays of a run: seeds 3 and 5, four steps of one action each (three of episode 1, one of episode 2)."""
    untied, one = [[0, 1, 2, 3]] * 2, [[0, 0, 0, 0]] * 2
    last = [maps[-1] for maps in AGENT_MAPS]
    return {
        "methods": np.array(METHODS),
        "seeds": np.array([3, 5]),
        "train_loss": np.full((3, 2, STEPS), 4.0, np.float32),
        "distinct": np.array([[[4] * 4] * 2, [[1, 2, 2, 3], [1] * 4], [[1] * 4] * 2]),
        "validation_step": np.array([0, 2, 4]),
        "validation_loss": np.array([
            [[5, 3.0, 2.0], [5, 3.2, 2.2]], [[5, 2.8, 1.8], [5, 2.9, 1.9]], [[5, 3.5, 2.5], [5, 3.6, 2.6]],
        ]),
        "best_step": np.full((3, 2), 4),
        "best_owner": np.array([untied, last, one]),
        "final_owner": np.array([untied, last, one]),
        "validation_loss_best": np.array([[2.1, 2.3], [1.9, 2.0], [2.6, 2.7]]),
        "test_loss": np.log([[8.0, 2.0], [4.0, 4.0], [16.0, 4.0]]),
        "time_step": np.array([
            [[1, 1, 1, 1], [1, 1, 1, 3]], [[2, 2, 2, 2], [1, 1, 1, 1]], [[0.5, 0.5, 1, 1], [2, 2, 2, 2]],
        ]),
        "agents": np.array(["agent"]),
        "action_episode": np.array([1, 1, 1, 2]),
        "action_layer": np.array([1, 2, 3, 1]),
        "action": np.array([[[0, 2, 0, 1], [0, 0, 0, 0]]]),
        "greedy": np.zeros((1, 2, 4), bool),
        "reward": np.array([[[-6.0, -5.0, -4.0, -3.0], [-6.0, -6.0, -6.0, -2.0]]]),
        "q_loss": np.array([[[1.0, np.nan, 3.0, 0.5], [1.0, 1.0, 1.0, np.nan]]]),
        "value": np.array([[[-9.0, -8.0, -7.0, -6.0], [-9.0, -9.0, -9.0, -6.0]]]),
        "epsilon": np.array([1.0, 1.0, 1.0, 0.95]),
        "action_owner": np.array([AGENT_MAPS]),
    }  # fmt: skip


def findings_of(metrics):
    findings, runs = analyse(metrics, SIZES, TOKENS_PER_WORD)
    return findings, runs, {row["method"]: row for row in findings["methods"]}


def without_agents(metrics):
    ours = ("agents", "action", "greedy", "reward", "q_loss", "value", "epsilon")
    return {name: values for name, values in metrics.items() if not name.startswith(ours)}


def select_methods(metrics, *names):
    """Return the arrays of some methods only, without agents."""
    chosen = [METHODS.index(name) for name in names]
    shared = ("seeds", "validation_step")
    return {name: values if name in shared else values[chosen] for name, values in without_agents(metrics).items()}


def data_of_groups():
    """Random groups of two batches and one for the reward."""

    def batch(number):
        tokens = np.random.default_rng(number).integers(1, 11, (2, 6)).astype(np.uint16)
        return BlockBatch(tokens, np.ones(2, np.float32), jax.random.key(number))

    held_out = [(batch(1000), 2.0)]
    return Data(lambda seed, group: [batch(10 * group + number) for number in range(3)], held_out, {"test": held_out})
