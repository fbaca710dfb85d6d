"""Synthetic results of the study of embedding shapes: ten seeds around a given score for each shape."""

import dataclasses
import itertools

import numpy as np

from tiejax.lab.studies.embedding_coupling.settings import DEFAULT_SHAPES

SEEDS = 10
STARTS = ("pretrained", "control")


def body_of(values, control=0.3, masked=None, probe=None, similarity=None, retrieval=None, cost=None):
    """Return the results of a run of the default shapes.

    values, masked, probe, cost (of dropping a layer): by shape. similarity: by shape and table. retrieval: a curve by shape.
    """
    names, orders = list(DEFAULT_SHAPES), itertools.count()

    def seeds(value, spread=0.001):
        """Return ten numbers around a value, in an independent random order."""
        order = np.random.default_rng(next(orders)).permutation(SEEDS)
        return (value + spread * (order - 4.3) / 5).tolist()

    def scores(value):
        return {f"{split}_{name}": seeds(value) for split in ("development", "test") for name in ("accuracy", "macro_f1")}

    def by_start(value, control_value):
        return {"pretrained": scores(value), "control": scores(control_value)}

    masked, probe, cost = masked or dict.fromkeys(names, 0.2), probe or values, cost or dict.fromkeys(names, 0.01)
    rates = {start: {"chosen": 1e-3, "development": {"0.0005": 0.4, "0.001": 0.5, "0.002": 0.4}} for start in STARTS}
    body = {
        "seeds": list(range(SEEDS)),
        "excluded_seeds": [],
        "non_finite": [],
        "pretraining": {name: {"loss": seeds(5.0), "accuracy": seeds(masked[name])} for name in names},
        "rates": {"tags": dict.fromkeys(names, rates)},
        "scores": {"tags": {name: by_start(values[name], control) for name in names}},
        "dropped": {name: {str(n): {"pretrained": scores(values[name] - cost[name])} for n in (1, 2)} for name in names},
        "layer_mix": {name: by_start(probe[name], 0.2) | {"weights": [0.25] * 4, "rates": rates} for name in names},
        "retrieval": {},
        "similarity": {},
        "drop_task": "tags",
        "tuning_seeds": [1000, 1001],
        "unigram_entropy": 6.3,
        "bigram": {"left": 5.6, "right": 5.5, "both": 5.2},
        "gate": {"margin": 0.1, "bigram": 5.2, "losses": dict.fromkeys(names, 5.0), "failed": ""},
        "shapes": {},
    }
    for index, (name, shape) in enumerate(DEFAULT_SHAPES.items()):
        counts = {"pretraining_parameters": 500_000 + 1000 * index, "fine_tuning_parameters": 300_000 + 9000 * index}
        body["shapes"][name] = dataclasses.asdict(shape) | counts
    for name, by_table in (similarity or {}).items():
        body["similarity"][name] = {table: seeds(value, 0.005) for table, value in by_table.items()}
    for name, curve in (retrieval or {}).items():
        by_seed = np.stack([seeds(value) for value in curve], axis=1).tolist()
        body["retrieval"][name] = {fit: dict.fromkeys(STARTS, by_seed) for fit in ("all", "held_out")}
    return body
