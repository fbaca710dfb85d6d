"""The diagnosis of a checkpoint in the hub's format: where its two tables stand, without loading it whole."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from tiejax.checkpoints.hub.checkpoint import Checkpoint, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import INPUT, Tables, find_tables
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.geometry.norms import norms_and_equality
from tiejax.lab.runs.run_directory import plain
from tiejax.lab.studies.diagnosis.relation import Arrays, parting_tokens, relate
from tiejax.lab.studies.diagnosis.settings import Settings
from tiejax.lab.studies.diagnosis.token_ranks import Ranked, rank_tokens
from tiejax.lab.studies.diagnosis.watched import Tell, watch


def diagnose_checkpoint(
    settings: Settings,
    tell: Tell = lambda phase, done, total: None,
    without_texts: Callable[[ValueError], None] = lambda error: None,
) -> tuple[dict[str, Any], Arrays]:
    """Return what results.json and metrics.npz say of a checkpoint; raises CheckpointError or CorpusError.

    tell: is told how far each phase is. without_texts: is told why tokens have no texts, if their tokenizer cannot be read.
    """
    began = time.monotonic()
    checkpoint, tables = open_tables(settings)
    rows = tables.input.shape[0]
    tokens, ranked = rank_tokens(settings, checkpoint.folder, rows, tell, without_texts)
    stored = [table for table in (tables.input, tables.output) if table is not None]
    norms = norms_and_equality(*watch(tell, "norms", rows * len(stored), *stored))
    fact = "absent" if tables.output is None else "untied" if norms.differing else "equal"
    results = {"experiment": "diagnose", **facts_of(checkpoint, tables), "fact": fact, "rank": ranked.facts}
    results |= {"differing_rows": norms.differing, "largest_difference": norms.largest}
    results["memory"] = memory_of(tables, results["parameters"])
    results["norms"] = {"input": norm_facts(norms.first, ranked)}
    arrays = {"norm_input": norms.first, "rank": ranked.ranks, "counted": ranked.counted}
    if ranked.counts is not None:
        arrays["count"] = ranked.counts
    if fact == "untied":
        assert norms.second is not None
        results["norms"]["output"] = norm_facts(norms.second, ranked)
        arrays["norm_output"] = norms.second
        relation, by_token = relate(tables, norms.cosine, settings, tell)
        results |= relation
        arrays |= by_token
        results["tokens"] = parting_tokens(arrays, ranked, tokens)
    results["seconds"] = time.monotonic() - began
    return plain(results), arrays


def open_tables(settings: Settings) -> tuple[Checkpoint, Tables]:
    """Return the checkpoint and its tables; raises CheckpointError."""
    checkpoint = open_checkpoint(Path(settings.checkpoint or "").expanduser())
    tables = find_tables(checkpoint, settings.input_table, settings.output_table)
    if tables.input.shape[0] < 3:
        few = f" {tables.input.name}: has {tables.input.shape[0]} rows; there is nothing to compare"
        raise CheckpointError(INPUT, few)
    return checkpoint, tables


def facts_of(checkpoint: Checkpoint, tables: Tables) -> dict[str, Any]:
    """Return what the headers and the configuration say: the tables, the flag, the parameters."""

    def of_table(table: HubTable | None) -> dict[str, Any] | None:
        names = ("name", "shape", "dtype", "transposed", "nbytes")
        return {"file": table.file.name} | {name: getattr(table, name) for name in names} if table else None

    architectures = checkpoint.config.get("architectures")
    return {
        "checkpoint": str(checkpoint.folder),
        "family": tables.family,
        "model_type": checkpoint.config.get("model_type"),
        "architectures": architectures if isinstance(architectures, list) else [],
        "parameters": sum(tensor.number for tensor in checkpoint.tensors.values()),
        "tables": {"input": of_table(tables.input), "output": of_table(tables.output)},
        "bias": tables.bias,
        "flag": tables.flag._asdict(),
        "head": tables.head,
        "quantised": tables.quantised,
        "notes": list(tables.notes),
    }


def memory_of(tables: Tables, parameters: int) -> dict[str, Any]:
    """Return what tying would save, or untying add: parameters, bytes as stored, and share of the stored parameters."""
    table = tables.output or tables.input
    return {"parameters": table.tensor.number, "bytes": table.nbytes, "share": table.tensor.number / parameters}


def norm_facts(norms: np.ndarray, ranked: Ranked) -> dict[str, Any]:
    """Return what the norms of a table's rows are, and Spearman's correlation of them with the tokens' ranks."""
    low, median, high = (float(quantile) for quantile in np.quantile(norms, (0.1, 0.5, 0.9)))
    seen, ranks = norms[ranked.counted], ranked.ranks[ranked.counted]
    constant = len(seen) < 3 or np.ptp(seen) == 0
    unseen = norms[~ranked.counted]
    return {
        "low": low,
        "median": median,
        "high": high,
        "zero": int((norms == 0).sum()),
        "spearman": None if constant else float(stats.spearmanr(seen, ranks).statistic),
        "unseen_median": float(np.median(unseen)) if len(unseen) else None,
    }
