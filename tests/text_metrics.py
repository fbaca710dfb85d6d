"""Synthetic metrics of a run on text, with known results."""

import numpy as np

from tiejax.lab.runs.gate import Gate

RECORDS, VALIDATIONS, START = 20, 5, 4.8
BOTH = (("twins .5", 0.5, 30), ("twins .1", 0.1, 12))
# ln(d_end / d_start) by table and kind of set, as predicted by the theory.
CHANGE = {
    "input": {"holding": -2.0, "conflict": -1.5, "unrelated": 0.1},
    "output": {"holding": -1.8, "conflict": -0.2, "unrelated": 0.1},
    "tied": {"holding": -2.2, "conflict": -0.3, "unrelated": 0.1},
}
COST = 0.05
GATE = Gate(4.5, None)
DECAY = 0.7  # the decrease of ln(distance) by weight decay


def metrics_of(seeds=10, sets=BOTH, unrelated=40, change=CHANGE, equal=None):
    """Metrics with distances that change exponentially from START to START exp(change), with noise between seeds and pairs.

    equal: mean validation loss of a third arm, untied models that start from equal tables; None for no such arm.
    """
    rng = np.random.default_rng(0)
    numbers = [*(pairs for *_, pairs in sets), unrelated]
    pair_set = np.repeat(np.arange(len(numbers)), numbers)
    kinds = [*("holding" if p == 0.5 else "conflict" for _, p, _ in sets), "unrelated"]
    along = np.minimum(np.arange(RECORDS) / (RECORDS - 3), 1)  # the last tenth, two records, is flat
    small = 0.05 * (rng.uniform(-1, 1, (seeds, 1)) + rng.uniform(-1, 1, (1, len(pair_set))))
    start = START * np.exp(rng.uniform(-0.1, 0.1, (seeds, len(pair_set))))

    def distance(table):
        end = np.array([change[table][kinds[place]] for place in pair_set]) + small
        return start[:, None] * np.exp(along[:, None] * end[:, None])

    shape, vshape = (2, seeds, RECORDS), (2, seeds, VALIDATIONS)
    tied = distance("tied")
    noise = rng.uniform(-0.01, 0.01, seeds)[:, None]
    loss = np.stack([4 + 0 * noise, 4 + COST + noise]) + np.zeros(vshape)
    bucket_loss = loss[..., None] + np.array([-1.0, 0.0, 1.0])
    counts = np.broadcast_to([100, 0, 300], (*vshape, 3)).copy()
    bucket_loss[..., 1] = np.nan
    metrics = {
        "arms": np.array(["untied", "tied"]),
        "seeds": np.arange(seeds) + 7,
        "pair_words": np.array([f"word{k}" for k in range(len(pair_set))]),
        "pair_set": pair_set,
        "set_names": np.array([*(name for name, *_ in sets), "unrelated"]),
        "set_probability": np.array([*(p for _, p, _ in sets), np.nan]),
        "step": np.arange(RECORDS) * 100,
        "distance_input": np.stack([distance("input"), tied]),
        "distance_output": np.stack([distance("output"), tied]),
        "train_loss": np.full(shape, 4.5),
        "train_accuracy": np.full(shape, 0.25),
        "finite": np.ones(shape, bool),
        "overflow": np.zeros(shape, int),
        "use_ratio": np.full(shape, 2.0),
        "use_cosine": np.full(shape, 0.1),
        "use_bucket_input": np.full((*shape, 3), 1.0),
        "use_bucket_output": np.full((*shape, 3), [1.0, 2.0, 3.0]),
        "validation_step": np.arange(VALIDATIONS) * 475,
        "validation_loss": loss,
        "validation_accuracy": 0.5 - loss / 10,
        "validation_bucket_loss": bucket_loss,
        "validation_bucket_accuracy": 0.5 - bucket_loss / 10,
        "validation_bucket_count": counts,
        "bucket_names": np.array(["1-100", "101-1000", "twins"]),
    }
    return metrics if equal is None else with_equal_tables(metrics, equal)


def with_equal_tables(metrics, loss):
    """Metrics with a third arm, equal to the untied one but for its validation loss, which is constant in time."""
    of_arms = {name: np.concatenate([values, values[:1]]) for name, values in metrics.items() if values.ndim >= 3}
    more = 0.002 * np.random.default_rng(1).uniform(-1, 1, of_arms["validation_loss"].shape[1])
    of_arms["validation_loss"][2] = loss + more[:, None]
    return metrics | of_arms | {"arms": np.array(["untied", "tied", "untied-equal"])}
