"""Synthetic results of EXor: distances by a rule, and risks that differ slightly between seeds."""

import itertools

import numpy as np

from tiejax.geometry.distances import group_pairs, symbol_pairs
from tiejax.lab.studies.exor.task import EXor

MAIN = EXor(7, (0.1, 0.9), (0.5, 0.5))
DH = EXor(7, (1.0, 0.0), (0.5, 0.5))
HALF = EXor(7, (0.5, 0.5), (0.5, 0.5))
NO_DH = EXor(7, (1.0, 0.0), (0.1, 0.9))


def run_metrics(seeds=8, task=MAIN, exact=True, distance=None):
    """Return a synthetic run with the distances `distance(table, arm, seed, record, pair)`."""
    steps = np.arange(0, 50_001, 500)
    index = symbol_pairs(7)
    between = set(group_pairs(task.used["zero"], task.used["one"]))
    metrics = {"step": steps, "seeds": np.arange(seeds), "splits": np.array(["train", "validation", "test"])}
    for table in ("input", "output"):
        values = np.ones((2, seeds, len(steps), 21))
        for k, pair in enumerate(index):
            for arm, seed in itertools.product(range(2), range(seeds)):
                values[arm, seed, :, k] = 2.0 if pair in between else distance(table, arm, seed, steps, pair)
        metrics[f"distance_{table}"] = values
    metrics["finite"] = np.ones((2, seeds, len(steps)), bool)
    metrics["arms"] = np.array(["untied", "tied"])
    metrics |= {"use_ratio": np.full((2, seeds, len(steps)), 2.0), "use_cosine": np.zeros((2, seeds, len(steps)))}
    if exact:
        exact_steps = np.arange(0, 50_001, 5000)
        metrics["exact_step"] = exact_steps
        metrics["exact_cross_entropy"] = (
            np.full((2, seeds, len(exact_steps), 3), 0.55) + 0.001 * np.arange(seeds)[:, None, None]
        )
        metrics["exact_accuracy"] = np.full((2, seeds, len(exact_steps), 3), 0.69)
        metrics["exact_gap_zero"] = np.full((2, seeds, len(exact_steps)), 2.5) + 0.01 * np.arange(seeds)[:, None]
        metrics["exact_gap_one"] = metrics["exact_gap_zero"]
    return metrics


def as_the_paper_says(table, arm, seed, steps, pair):
    """Distances that support all claims of the paper, and differ slightly between seeds."""
    level = 1 + 0.01 * seed
    if pair == (0, 1):
        if arm == 1:  # tied: distant and fluctuating, every third record, which does not recur with a cycle of 40 records
            return level * 1.5 * np.where(np.arange(len(steps)) % 3, 1.2, 1.0)
        return level * (0.2 if table == "input" else 1.4) * np.ones(len(steps))
    if pair == (2, 3):
        return level * np.exp(-steps / (5_000 if arm else 20_000)) + 0.01
    if pair == (4, 5):
        return level * np.where(table == "output" and arm == 0, 0.3, 2.5) * np.ones(len(steps))
    return np.ones(len(steps))
