"""What the stages of a run have left, as one body: lists of one number a seed, by shape, task and start."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.special

from tiejax.lab.studies.embedding_coupling.encoders import STARTS

Arrays = Mapping[str, np.ndarray]


def collect(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], seeds: list[int]) -> dict[str, Any]:
    """Return scores and probes of the seeds whose members all stayed finite, and which seeds those are.

    Means over the runs of a seed; lists of one number a seed.
    """
    finite = np.ones(len(seeds), bool)
    left = []
    for stage, arrays in stages.items():
        if "record_finite" in arrays:
            lasted = arrays["record_finite"].all(axis=-1)
        elif "finite" in arrays and not stage.startswith("mix."):
            lasted = arrays["finite"].all(axis=(0, 2))
        else:
            continue
        finite &= lasted
        left += [{"arm": stage, "seed": seeds[place], "step": "?"} for place in np.flatnonzero(~lasted)]
    body: dict[str, Any] = {
        "seeds": [seed for seed, lasts in zip(seeds, finite, strict=True) if lasts],
        "excluded_seeds": [seed for seed, lasts in zip(seeds, finite, strict=True) if not lasts],
        "non_finite": left,
        "pretraining": {},
        "rates": {task: {} for task in tasks},
        "scores": {task: {} for task in tasks},
        "dropped": {},
        "layer_mix": {},
        "retrieval": {},
        "similarity": {},
    }
    for shape in shapes:
        _of_shape(body, shape, tasks, stages, finite)
    return body


def _of_shape(body: dict[str, Any], shape: str, tasks: list[str], stages: Mapping[str, Arrays], finite: np.ndarray) -> None:
    if f"pretrain.{shape}" in stages:
        pretrained = stages[f"pretrain.{shape}"]
        body["pretraining"][shape] = {
            measure: pretrained[f"validation_{measure}"][finite, -1].tolist() for measure in ("loss", "accuracy")
        }
    for task in tasks:
        rates = stages[f"rates.{shape}.{task}"]
        body["rates"][task][shape] = {
            start: {
                "chosen": float(rates["rate"][place]),
                "development": dict(
                    zip(map(str, rates["tried"].tolist()), rates["development"][:, place].mean(-1).tolist(), strict=True)
                ),
            }
            for place, start in enumerate(_starts(rates["rate"]))
        }
        body["scores"][task][shape] = _scores(stages[f"scores.{shape}.{task}"], finite)
    numbers = sorted(int(name.rsplit(".", 1)[1]) for name in stages if name.startswith(f"dropped.{shape}."))
    body["dropped"][shape] = {str(number): _scores(stages[f"dropped.{shape}.{number}"], finite) for number in numbers}
    if f"mix.{shape}" in stages:
        mix = stages[f"mix.{shape}"]
        body["layer_mix"][shape] = _scores(mix, finite) | {
            "weights": scipy.special.softmax(mix["mix"], axis=-1)[0].mean(0).tolist()
        }
    probes = stages[f"probes.{shape}"]
    for fitted in ("all", "held_out"):
        if f"retrieval_{fitted}" in probes:
            by_start = probes[f"retrieval_{fitted}"]
            body["retrieval"].setdefault(shape, {})[fitted] = {
                start: by_start[place][finite].tolist() for place, start in enumerate(_starts(by_start))
            }
    for table in ("input", "output"):
        if f"similarity_{table}" in probes:
            body["similarity"].setdefault(shape, {})[table] = probes[f"similarity_{table}"][finite].tolist()
            interval = probes[f"similarity_{table}_interval"][finite]
            body["similarity"][shape][f"{table}_interval"] = interval.tolist()


def _starts(values: np.ndarray) -> tuple[str, ...]:
    """Return the starts that arrays `[start, ...]` are of: dropped layers have the first alone."""
    return STARTS[: len(values)]


def _scores(arrays: Arrays, finite: np.ndarray) -> dict[str, Any]:
    """Return the scores of every split by start: `{start: {SPLIT_MEASURE: [seed]}}`."""
    measured = [name for name in arrays if name.endswith(("_accuracy", "_macro_f1"))]
    return {
        start: {name: arrays[name][place][finite].mean(-1).tolist() for name in measured}
        for place, start in enumerate(_starts(arrays[measured[0]]))
    }


def score(body: Mapping[str, Any], shape: str, start: str = "pretrained", measure: str = "test_accuracy") -> np.ndarray:
    """Return a shape's score of every seed: the mean over tasks of the accuracy on test."""
    return np.mean([np.asarray(of_shape[shape][start][measure]) for of_shape in body["scores"].values()], axis=0)
