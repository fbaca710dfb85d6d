"""Measures of a run: table alignment, symbol equivalence and gradients by use, for each member."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.checkpoints.diagnose.tables import Progress
from tiejax.geometry import uses
from tiejax.geometry.alignment import alignment
from tiejax.geometry.equivalence import equivalence, in_blocks
from tiejax.geometry.neighbours import neighbour_overlap
from tiejax.lab.studies.diagnosis.open_run import OpenRun
from tiejax.lab.studies.diagnosis.settings import Settings
from tiejax.system.json_values import plain
from tiejax.text.sequences import ignore

NEIGHBOURS = 10
# Modules of a model that hold its tables.
INPUT_TABLE, OUTPUT_TABLE = "embed", "head"
# Names of the arm whose two tables have independent initial values and stay untied.
INDEPENDENT = ("untied", "never-tied-independent")
# Measures of a pair of symbols, reported as medians over the pairs of a set and all seeds.
MEASURES = ("semantic_distance", "conditional_distance", "log_ratio_mean", "score", "residual_rms", "condition_number")


def diagnose_run(run: OpenRun, settings: Settings, progress: Progress = ignore) -> dict[str, Any]:
    """Return results.json of a run's diagnosis: alignments, equivalences and uses.

    progress: called with ("members", members done, members in total).
    """

    def log_probabilities(params: Any, tokens: Any, position: Any) -> Any:
        head = params[OUTPUT_TABLE]
        return jax.nn.log_softmax(run.encode(params, tokens, position) @ head["embedding"].T + head.get("bias", 0))

    predict, encode = jax.jit(log_probabilities), jax.jit(run.encode)
    alignments: dict[str, list[dict[str, Any]]] = {name: [] for name in run.arms}
    equivalences: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in run.arms}
    number, done = len(run.arms) * len(run.seeds), 0
    for arm, name in enumerate(run.arms):
        for seed in range(len(run.seeds)):
            params = jax.tree.map(lambda leaf, seed=seed, arm=arm: leaf[seed, arm], run.params)
            alignments[name].append(_alignment_of_tables(run, seed, arm))
            equivalences[name].append(_equivalences(run, params, predict, encode))
            done += 1
            progress("members", done, number)
    return plain(
        {
            "experiment": "diagnose",
            "checkpoint": settings.checkpoint,
            "kind": run.study,
            "seeds": run.seeds,
            "step": run.step,
            "arms": run.arms,
            "contexts": len(run.probes.tokens),
            "alignment": alignments,
            "equivalence": {name: _by_set(run.probes.pairs, members) for name, members in equivalences.items()},
            "uses": _uses(run),
        }
    )


def _equivalences(run: OpenRun, params: Any, predict: Callable[..., Any], encode: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return a row of measures for each pair of symbols in one member; predict, encode: (params, tokens, position) -> array."""
    probes = run.probes
    # The optimality residual is that of logits without a bias.
    log_ratios = probes.log_ratios if "bias" not in params[OUTPUT_TABLE] else {}
    return equivalence(
        lambda *block: predict(params, *map(jnp.asarray, block)),
        probes.tokens,
        probes.position,
        [pair for members in probes.pairs.values() for pair in members],
        weight=probes.weight,
        states=in_blocks(lambda *block: encode(params, *block), probes.tokens, probes.position),
        table=np.asarray(params[OUTPUT_TABLE]["embedding"], float),
        log_ratios=log_ratios,
    )


def _alignment_of_tables(run: OpenRun, seed: int, arm: int) -> dict[str, Any]:
    """Compare the two tables of a member; if they are equal, compare them with those of the untied member of the same seed."""

    def table(part: str, arm: int) -> np.ndarray:
        return np.asarray(run.params[part]["embedding"][seed, arm], np.float32)

    first, second = table(INPUT_TABLE, arm), table(OUTPUT_TABLE, arm)
    if first.tobytes() != second.tobytes():
        return {"tied": False, "input -> output": _related(first, second)}
    untied = next((number for number, name in enumerate(run.arms) if name in INDEPENDENT), None)
    if untied is None:
        return {"tied": True}
    return {
        "tied": True,
        "untied input -> tied": _related(table(INPUT_TABLE, untied), first),
        "untied output -> tied": _related(table(OUTPUT_TABLE, untied), first),
    }


def _related(source: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """Return every similarity score of two tables."""
    k = min(NEIGHBOURS, max(1, (len(source) - 1) // 3))
    return {**alignment(source, target)._asdict(), "neighbours": neighbour_overlap(source, target, k=k).estimate}


def _by_set(pairs: Mapping[str, Sequence[Any]], members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return, for each set of pairs, medians over its pairs and all seeds, and the count of each case of DH.

    DH: the distributional hypothesis. members: for each seed, a row for each pair.
    """
    sets, start = [], 0
    for name, group in pairs.items():
        rows = [row for member in members for row in member[start : start + len(group)]]
        start += len(group)
        entry: dict[str, Any] = {"set": name, "pairs": len(group)}
        for measure in MEASURES:
            values = [row[measure] for row in rows if not np.isnan(row[measure])]
            with np.errstate(invalid="ignore"):  # of -inf and inf
                entry[measure] = float(np.median(values)) if values else None
        cases = [row["case"] for row in rows]
        entry["cases"] = {case: cases.count(case) for case in sorted(set(cases))}
        sets.append(entry)
    return sets


def _uses(run: OpenRun) -> list[dict[str, Any]]:
    """Return the ratio and cosine of the gradients of the two uses of the table over training, if the run recorded them."""
    record = run.records["record"]
    if "use_ratio" not in record:
        return []
    # Records are [record, seed, arm].
    ratio, cosine = (np.moveaxis(record[f"use_{name}"], (2, 1, 0), (0, 1, 2)) for name in ("ratio", "cosine"))
    return uses.over_training(record["step"], ratio, cosine, run.arms)
