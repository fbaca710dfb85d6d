"""The results of all stages of a run in one body: lists of one value per seed, by shape, task and start."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.special

from tiejax.lab.studies.embedding_coupling.encoders import STARTS

Arrays = Mapping[str, np.ndarray]


def collect(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], seeds: list[int]) -> dict[str, Any]:
    """Return the scores and probes of the seeds with finite members only, and the lists of included and excluded seeds.

    Values are means over the fine-tuning runs of a seed, in lists of one value per seed.
    """
    finite = np.ones(len(seeds), bool)
    non_finite = []
    for stage, arrays in stages.items():
        if "record_finite" in arrays:
            finite_in_stage = arrays["record_finite"][: len(seeds)].all(axis=-1)
        elif "finite" in arrays and not stage.startswith("mix."):
            finite_in_stage = arrays["finite"].all(axis=(0, 2))
        else:
            continue
        finite &= finite_in_stage
        non_finite += [{"arm": stage, "seed": seeds[index], "step": "?"} for index in np.flatnonzero(~finite_in_stage)]
    body: dict[str, Any] = {
        "seeds": [seed for seed, is_finite in zip(seeds, finite, strict=True) if is_finite],
        "excluded_seeds": [seed for seed, is_finite in zip(seeds, finite, strict=True) if not is_finite],
        "non_finite": non_finite,
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
            measure: pretrained[f"validation_{measure}"][: len(finite)][finite, -1].tolist() for measure in ("loss", "accuracy")
        }
    for task in tasks:
        rates = stages[f"rates.{shape}.{task}"]
        body["rates"][task][shape] = {
            start: {
                "chosen": float(rates["rate"][index]),
                "development": dict(
                    zip(map(str, rates["tried"].tolist()), rates["development"][:, index].mean(-1).tolist(), strict=True)
                ),
            }
            for index, start in enumerate(_starts(rates["rate"]))
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
                start: by_start[index][finite].tolist() for index, start in enumerate(_starts(by_start))
            }
    for table in ("input", "output"):
        if f"similarity_{table}" in probes:
            body["similarity"].setdefault(shape, {})[table] = probes[f"similarity_{table}"][finite].tolist()
            interval = probes[f"similarity_{table}_interval"][finite]
            body["similarity"][shape][f"{table}_interval"] = interval.tolist()


def _starts(values: np.ndarray) -> tuple[str, ...]:
    """Return the starts of arrays `[start, ...]`; encoders with dropped layers have only the first."""
    return STARTS[: len(values)]


def _scores(arrays: Arrays, finite: np.ndarray) -> dict[str, Any]:
    """Return the scores of every split by start: `{start: {SPLIT_MEASURE: [seed]}}`."""
    measured = [name for name in arrays if name.endswith(("_accuracy", "_macro_f1"))]
    return {
        start: {name: arrays[name][index][finite].mean(-1).tolist() for name in measured}
        for index, start in enumerate(_starts(arrays[measured[0]]))
    }


def score(body: Mapping[str, Any], shape: str, start: str = "pretrained", measure: str = "test_accuracy") -> np.ndarray:
    """Return the score of a shape by seed: the mean of `measure` over tasks."""
    return np.mean([np.asarray(by_shape[shape][start][measure]) for by_shape in body["scores"].values()], axis=0)
