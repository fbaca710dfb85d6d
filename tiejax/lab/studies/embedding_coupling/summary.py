"""The results of all stages of a run in one body: lists of one value per seed, by shape, task and start."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.special

from tiejax.lab.studies.embedding_coupling.encoders import STARTS

Arrays = Mapping[str, np.ndarray]
SCORES = ("_accuracy", "_macro_f1")  # ends of the names of scores


def collect(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], seeds: list[int]) -> dict[str, Any]:
    """Return the scores and probes of the seeds with finite members only, and the lists of included and excluded seeds.

    Values are means over the fine-tuning runs of a seed, in lists of one value per seed.
    """
    finite, non_finite = _finite_seeds(stages, seeds)
    return {
        "seeds": [seed for seed, is_finite in zip(seeds, finite, strict=True) if is_finite],
        "excluded_seeds": [seed for seed, is_finite in zip(seeds, finite, strict=True) if not is_finite],
        "non_finite": non_finite,
        **_measured(shapes, tasks, stages, finite),
    }


def collect_all(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], seeds: list[int]) -> dict[str, Any]:
    """Return the scores and probes of all seeds, as `collect`, with NaN for diverged models; the input of the claims."""
    undefined = {name: _undefined_where_diverged(name, stages, len(seeds)) for name in stages}
    return _measured(shapes, tasks, undefined, np.ones(len(seeds), bool))


def _finite_seeds(stages: Mapping[str, Arrays], seeds: list[int]) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return a mask of the seeds whose models all stayed finite, and the models that did not."""
    finite, non_finite = np.ones(len(seeds), bool), []
    for stage, arrays in stages.items():
        if "record_finite" in arrays:
            finite_in_stage = arrays["record_finite"][: len(seeds)].all(axis=-1)
        elif "finite" in arrays and not stage.startswith("mix."):
            finite_in_stage = arrays["finite"].all(axis=(0, 2))
        else:
            continue
        finite &= finite_in_stage
        non_finite += [{"arm": stage, "seed": seeds[index], "step": "?"} for index in np.flatnonzero(~finite_in_stage)]
    return finite, non_finite


def _undefined_where_diverged(stage: str, stages: Mapping[str, Arrays], seeds: int) -> Arrays:
    """Return the arrays of a stage with NaN for diverged models, and for those whose pre-training diverged."""
    arrays, (kind, shape) = stages[stage], stage.split(".")[:2]
    records = stages.get(f"pretrain.{shape}", {}).get("record_finite")
    lost = np.asarray(np.zeros(seeds, bool) if records is None else ~records[:seeds].all(axis=-1))
    undefined = dict(arrays)
    for name, values in arrays.items():
        if kind == "pretrain":
            if name in ("validation_loss", "validation_accuracy"):
                undefined[name] = _with_nan(values[:seeds], lost)
        elif name in ("similarity_input", "similarity_output"):
            undefined[name] = _with_nan(values, lost)
        elif name.startswith("retrieval_") or name.endswith(SCORES):
            pretrained_first = np.arange(len(values))[:, None] == 0
            diverged = (pretrained_first & lost)[..., None]
            undefined[name] = _with_nan(values, diverged | ~arrays["finite"] if "finite" in arrays else diverged)
    return undefined


def _with_nan(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the values with NaN where `chosen`, whose axes are the first ones of the values."""
    return np.where(chosen.reshape(chosen.shape + (1,) * (values.ndim - chosen.ndim)), np.nan, values)


def _measured(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], finite: np.ndarray) -> dict[str, Any]:
    """Return the scores and probes of the seeds in a mask."""
    body: dict[str, Any] = {
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
        body["rates"][task][shape] = _rates(stages[f"rates.{shape}.{task}"])
        body["scores"][task][shape] = _scores(stages[f"scores.{shape}.{task}"], finite)
    numbers = sorted(int(name.rsplit(".", 1)[1]) for name in stages if name.startswith(f"dropped.{shape}."))
    body["dropped"][shape] = {str(number): _scores(stages[f"dropped.{shape}.{number}"], finite) for number in numbers}
    if f"mix.{shape}" in stages:
        mix = stages[f"mix.{shape}"]
        body["layer_mix"][shape] = _scores(mix, finite) | {
            "weights": scipy.special.softmax(mix["mix"], axis=-1)[0].mean(0).tolist(),
            "rates": _rates(stages[f"mix_rates.{shape}"]),
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


def _rates(rates: Arrays) -> dict[str, Any]:
    """Return the chosen learning rate by start, and the accuracy on development by rate: `{start: {chosen, development}}`."""
    return {
        start: {
            "chosen": float(rates["rate"][index]),
            "development": dict(
                zip(map(str, rates["tried"].tolist()), rates["development"][:, index].mean(-1).tolist(), strict=True)
            ),
        }
        for index, start in enumerate(_starts(rates["rate"]))
    }


def _starts(values: np.ndarray) -> tuple[str, ...]:
    """Return the starts of arrays `[start, ...]`; encoders with dropped layers have only the first."""
    return STARTS[: len(values)]


def _scores(arrays: Arrays, finite: np.ndarray) -> dict[str, Any]:
    """Return the scores of every split by start: `{start: {SPLIT_MEASURE: [seed]}}`."""
    measured = [name for name in arrays if name.endswith(SCORES)]
    return {
        start: {name: arrays[name][index][finite].mean(-1).tolist() for name in measured}
        for index, start in enumerate(_starts(arrays[measured[0]]))
    }


def score(body: Mapping[str, Any], shape: str, start: str = "pretrained", measure: str = "test_accuracy") -> np.ndarray:
    """Return the score of a shape by seed: the mean of `measure` over tasks."""
    return np.mean([np.asarray(by_shape[shape][start][measure]) for by_shape in body["scores"].values()], axis=0)
