"""The diagnosis of a run of ours: every instrument on its members, by arm over seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.geometry import uses
from tiejax.geometry.alignment import alignment
from tiejax.geometry.canonical_correlations import canonical_correlations
from tiejax.geometry.equivalence import equivalence
from tiejax.geometry.neighbours import neighbour_overlap
from tiejax.lab.runs.run_directory import plain
from tiejax.lab.studies.diagnosis.open_run import OpenRun
from tiejax.lab.studies.diagnosis.settings import Settings
from tiejax.lab.studies.diagnosis.watched import Tell

NEIGHBOURS = 10
# Where a model keeps its tables.
INPUT_TABLE, OUTPUT_TABLE = "embed", "head"
# What the arm is called whose two tables never had to do with each other.
INDEPENDENT = ("untied", "never-tied-independent")
# Of a pair, told as medians over the pairs of a set and all seeds.
MEASURES = ("semantic_distance", "conditional_distance", "log_ratio_mean", "score", "residual_rms", "condition_number")


def diagnose_run(run: OpenRun, settings: Settings, tell: Tell = lambda phase, done, total: None) -> dict[str, Any]:
    """Return what results.json says: alignments, equivalences and uses. tell: is told how many members are done."""

    def logs(params: Any, tokens: Any, position: Any) -> Any:
        return jax.nn.log_softmax(run.encode(params, tokens, position) @ params[OUTPUT_TABLE]["embedding"].T)

    predict, encode = jax.jit(logs), jax.jit(run.encode)
    alignments: dict[str, list[dict[str, Any]]] = {name: [] for name in run.arms}
    equivalences: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in run.arms}
    number, done = len(run.arms) * len(run.seeds), 0
    for arm, name in enumerate(run.arms):
        for seed in range(len(run.seeds)):
            params = jax.tree.map(lambda leaf, seed=seed, arm=arm: leaf[seed, arm], run.params)
            alignments[name].append(_alignment_of_tables(run, seed, arm))
            equivalences[name].append(_equivalences(run, params, predict, encode))
            done += 1
            tell("members", done, number)
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
    """Return a row for each pair that is asked of a member; predict, encode: (params, tokens, position) -> array."""
    probes = run.probes
    return equivalence(
        lambda *block: predict(params, *map(jnp.asarray, block)),
        probes.tokens,
        probes.position,
        [pair for of_set in probes.pairs.values() for pair in of_set],
        weight=probes.weight,
        states=_in_blocks(lambda *block: encode(params, *block), probes.tokens, probes.position),
        table=np.asarray(params[OUTPUT_TABLE]["embedding"], float),
        log_ratios=probes.log_ratios,
    )


def _in_blocks(function: Callable[..., Any], *columns: np.ndarray, block: int = 256) -> np.ndarray:
    """Apply a function to rows, always as many at a time so that it compiles once."""
    parts = []
    for start in range(0, len(columns[0]), block):
        rows = np.minimum(np.arange(start, start + block), len(columns[0]) - 1)
        parts.append(np.asarray(function(*(column[rows] for column in columns)))[: len(columns[0]) - start])
    return np.concatenate(parts)


def _alignment_of_tables(run: OpenRun, seed: int, arm: int) -> dict[str, Any]:
    """Return how a member's two tables relate; if they are equal, how they relate to those of the untied member of its seed."""

    def table(part: str, of_arm: int) -> np.ndarray:
        return np.asarray(run.params[part]["embedding"][seed, of_arm], np.float32)

    of_input, of_output = table(INPUT_TABLE, arm), table(OUTPUT_TABLE, arm)
    if of_input.tobytes() != of_output.tobytes():
        return {"tied": False, "input -> output": _related(of_input, of_output)}
    untied = next((number for number, name in enumerate(run.arms) if name in INDEPENDENT), None)
    if untied is None:
        return {"tied": True}
    return {
        "tied": True,
        "untied input -> tied": _related(table(INPUT_TABLE, untied), of_input),
        "untied output -> tied": _related(table(OUTPUT_TABLE, untied), of_input),
    }


def _related(source: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """Return every score of how near one table comes to another."""
    scores = alignment(source, target)
    k = min(NEIGHBOURS, max(1, (len(source) - 1) // 3))
    return {
        **{name: getattr(scores, name) for name in ("identity", "procrustes", "least_squares")},
        "neighbours": neighbour_overlap(source, target, k=k).estimate,
        "canonical": float(canonical_correlations(source, target).mean()),
    }


def _by_set(pairs: Mapping[str, Sequence[Any]], members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return, for each set of pairs, medians over its pairs and all seeds, and how often each case of DH occurs."""
    sets, start = [], 0
    for name, of_set in pairs.items():
        rows = [row for member in members for row in member[start : start + len(of_set)]]
        start += len(of_set)
        entry: dict[str, Any] = {"set": name, "pairs": len(of_set)}
        for measure in MEASURES:
            values = [row[measure] for row in rows if row.get(measure) is not None and np.isfinite(row[measure])]
            entry[measure] = float(np.median(values)) if values else None
        cases = [row["case"] for row in rows]
        entry["cases"] = {case: cases.count(case) for case in sorted(set(cases))}
        sets.append(entry)
    return sets


def _uses(run: OpenRun) -> list[dict[str, Any]]:
    """Return what each use of a table asked of it over training, if the run recorded that."""
    record = run.records["record"]
    if "use_ratio" not in record:
        return []
    # Records are [record, seed, arm].
    ratio, cosine = (np.moveaxis(record[f"use_{name}"], (2, 1, 0), (0, 1, 2)) for name in ("ratio", "cosine"))
    return uses.over_training(record["step"], ratio, cosine, run.arms)
