"""The results of all stages of a run in one body: lists of one value per seed, by shape, task and start."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.special

from tiejax.lab.studies.embedding_coupling.encoders import STARTS

Arrays = Mapping[str, np.ndarray]
TABLES = ("input", "output")  # of word embeddings, whose similarities are compared with human judgements
SCORES = ("_accuracy", "_macro_f1")  # ends of the names of scores


def collect(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], seeds: list[int]) -> dict[str, Any]:
    """Return the scores and probes of the seeds whose models all stayed finite, the other seeds, and the models that did not.

    Values are means over the fine-tuning runs of a seed, in lists of one value per seed.
    """
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


def _undefined_where_diverged(stage: str, stages: Mapping[str, Arrays], seeds: int) -> Arrays:
    """Return the arrays of a stage with NaN for diverged models, and for those whose pre-training diverged."""
    arrays, (kind, shape) = stages[stage], stage.split(".")[:2]
    records = stages.get(f"pretrain.{shape}", {}).get("record_finite")
    lost = np.asarray(np.zeros(seeds, bool) if records is None else ~records[:seeds].all(axis=-1))
    undefined = dict(arrays)
    for name, values in arrays.items():
        if name in ("validation_loss", "validation_accuracy", *(f"similarity_{table}" for table in TABLES)):
            undefined[name] = _with_nan(values[:seeds], lost)
        elif kind != "pretrain" and (name.startswith("retrieval_") or name.endswith(SCORES)):
            pretrained_first = np.arange(len(values))[:, None] == 0
            diverged = (pretrained_first & lost)[..., None]
            undefined[name] = _with_nan(values, diverged | ~arrays["finite"] if "finite" in arrays else diverged)
    return undefined


def _with_nan(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the values with NaN where `chosen`, whose axes are the first ones of the values."""
    return np.where(chosen.reshape(chosen.shape + (1,) * (values.ndim - chosen.ndim)), np.nan, values)


def _measured(shapes: list[str], tasks: list[str], stages: Mapping[str, Arrays], finite: np.ndarray) -> dict[str, Any]:
    """Return the scores and probes of the seeds in a mask."""
    body: dict[str, Any] = {name: {} for name in ("pretraining", "dropped", "layer_mix", "retrieval", "similarity")}
    for part in ("rates", "scores"):
        body[part] = {task: {} for task in tasks}
    for shape in shapes:
        if pretrained := stages.get(f"pretrain.{shape}"):
            loss, accuracy = (pretrained[f"validation_{name}"][: len(finite)][finite, -1] for name in ("loss", "accuracy"))
            body["pretraining"][shape] = {"loss": loss.tolist(), "accuracy": accuracy.tolist()}
        for task in tasks:
            body["rates"][task][shape] = _rates(stages[f"rates.{shape}.{task}"])
            body["scores"][task][shape] = _scores(stages[f"scores.{shape}.{task}"], finite)
        numbers = sorted(int(name.rsplit(".", 1)[1]) for name in stages if name.startswith(f"dropped.{shape}."))
        body["dropped"][shape] = {str(number): _scores(stages[f"dropped.{shape}.{number}"], finite) for number in numbers}
        if mix := stages.get(f"mix.{shape}"):
            weights = scipy.special.softmax(mix["mix"], axis=-1)[0].mean(0).tolist()
            rates = _rates(stages[f"mix_rates.{shape}"])
            body["layer_mix"][shape] = _scores(mix, finite) | {"weights": weights, "rates": rates}
        for field, values in stages[f"probes.{shape}"].items():
            part, _, name = field.partition("_")
            by_start = part == "retrieval"
            body[part].setdefault(shape, {})[name] = _by_start(values, finite) if by_start else values[finite].tolist()
    return body


def _rates(rates: Arrays) -> dict[str, Any]:
    """Return the chosen learning rate by start, and the accuracy on development by rate: `{start: {chosen, development}}`."""
    found = {}
    for index, (start, chosen) in enumerate(zip(STARTS, rates["rate"].tolist(), strict=False)):
        by_rate = zip(map(str, rates["tried"].tolist()), rates["development"][:, index].mean(-1).tolist(), strict=True)
        development = {rate: mean for rate, mean in by_rate if not math.isnan(mean)}  # those that this start has tried
        found[start] = {"chosen": chosen, "development": development}
    return found


def _by_start(values: np.ndarray, finite: np.ndarray) -> dict[str, list[Any]]:
    """Return values `[start, seed, ...]` by start; encoders with dropped layers have only the first start."""
    return {start: of_start[finite].tolist() for start, of_start in zip(STARTS, values, strict=False)}


def _scores(arrays: Arrays, finite: np.ndarray) -> dict[str, Any]:
    """Return the scores of every split by start: `{start: {SPLIT_MEASURE: [seed]}}`."""
    scores: dict[str, Any] = {}
    for name, values in arrays.items():
        if name.endswith(SCORES):
            for start, by_seed in _by_start(values.mean(-1), finite).items():
                scores.setdefault(start, {})[name] = by_seed
    return scores


def rate_at_edge(found: Mapping[str, Any]) -> bool:
    """Return whether the chosen learning rate is the smallest or the largest tried; found: of a start, in results.json."""
    tried = [float(rate) for rate in found["development"]]
    return found["chosen"] in (min(tried), max(tried))


def score(body: Mapping[str, Any], shape: str, start: str = "pretrained", measure: str = "test_accuracy") -> np.ndarray:
    """Return the score of a shape by seed: the mean of `measure` over tasks."""
    return np.mean([np.asarray(by_shape[shape][start][measure]) for by_shape in body["scores"].values()], axis=0)
