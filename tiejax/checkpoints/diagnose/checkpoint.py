"""Measures of the similarity of a checkpoint's two embedding tables, which are read by rows."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from tiejax.checkpoints.check import check
from tiejax.checkpoints.diagnose.options import Options
from tiejax.checkpoints.diagnose.relation import Arrays, extreme_tokens, relate
from tiejax.checkpoints.diagnose.tables import INPUT, Progress, Ranked, Tables, counted, find_tables, rank_tokens
from tiejax.checkpoints.hub.checkpoint import Checkpoint
from tiejax.checkpoints.hub.download import open_with_tables
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.reading import LARGE, check_memory
from tiejax.checkpoints.hub.stored import compare
from tiejax.checkpoints.hub.tables import HubTable, check_row
from tiejax.geometry.norms import Norms, norms_and_equality
from tiejax.system.json_values import plain
from tiejax.system.memory import size_words
from tiejax.text.sequences import ignore

# Whether the two tables of a checkpoint are tied, as stored: the entry `fact` of the results.
#   untied  two tables are stored, and some rows differ
#   equal   two tables are stored, and are equal in every value
#   absent  no output table is stored (or it is quantised, and not read)
Fact = Literal["untied", "equal", "absent"]
# Entries of the results that compare two different tables; None unless `fact` is `untied`.
COMPARED = ("alignment", "neighbours", "canonical", "published", "standing", "tokens")

ROW_BYTES = 128  # of all arrays with one entry per row, by measurement


def diagnose_checkpoint(
    folder: Path | str,
    options: Options = Options(),  # noqa: B008 - immutable
    progress: Progress = ignore,
    without_texts: Callable[[ValueError], None] = lambda error: None,
) -> tuple[dict[str, Any], Arrays]:
    """Measure how similar the input and output embedding tables of a checkpoint are.

    The tables are read by rows and never loaded whole.

    folder: a checkpoint in the hub's format, or its id on the hub, of which only the shards with tables are downloaded.
    progress: called with (phase, rows done, rows in total or None). without_texts: called with the error when the tokenizer
    cannot be read; the report then shows token ids only. Raises CheckpointError or CorpusError.

    Returns the measures, as results.json holds them, and arrays by token, as metrics.npz holds them. All checkpoints have the
    same entries; those in `COMPARED` are None unless `fact` is `untied`.
    """
    began = time.monotonic()
    checkpoint, tables = open_tables(folder, options)
    rows = tables.input.shape[0]
    check_memory(f"{checkpoint.folder}: measures of {rows:,} rows", ROW_BYTES * rows)
    tokens, ranked = rank_tokens(options, checkpoint.folder, rows, progress, without_texts)
    stored = [one for one in (tables.input, tables.output) if one is not None]
    phase, size = "norms", sum(one.nbytes for one in stored)
    if size >= LARGE:
        phase = f"norms ({size_words(size)})"
        progress(phase, 0, rows * len(stored))
    norms = norms_and_equality(*counted(progress, phase, rows * len(stored), *stored))
    differ = bool(norms.differing) or (tables.output is not None and differ_beyond_float32(tables.input, tables.output))
    fact: Fact = "absent" if tables.output is None else "untied" if differ else "equal"
    results = {"experiment": "diagnose", **facts_of(checkpoint, tables), "fact": fact, "rank": ranked.facts}
    if options.input_table is None and options.output_table is None:
        results["check"] = {
            name: value for name, value in check(checkpoint, same_bytes(tables, norms))._asdict().items() if name != "folder"
        }
    results |= {"differing_rows": norms.differing, "largest_difference": norms.largest}
    table, every = tables.output or tables.input, results["parameters"]  # the one that tying would save or untying would add
    share = None if every is None else table.tensor.number / every
    results["memory"] = {"parameters": table.tensor.number, "bytes": table.nbytes, "share": share}
    results |= dict.fromkeys(COMPARED)
    results["norms"] = {"input": norm_facts(norms.first, ranked)}
    arrays = {"norm_input": norms.first, "rank": ranked.ranks, "counted": ranked.counted}
    if ranked.counts is not None:
        arrays["count"] = ranked.counts
    if fact == "untied":
        assert norms.second is not None
        results["norms"]["output"] = norm_facts(norms.second, ranked)
        arrays["norm_output"] = norms.second
        relation, by_token = relate(tables, norms.cosine, options, progress)
        results |= relation
        arrays |= by_token
        results["tokens"] = extreme_tokens(arrays, ranked, tokens)
    results["seconds"] = time.monotonic() - began
    return plain(results), arrays


def differ_beyond_float32(first: HubTable, second: HubTable) -> bool:
    """Return whether two tables that are equal in float32 differ, as tables in float64 may."""
    if "F64" not in (first.tensor.dtype, second.tensor.dtype) or first.transposed or second.transposed:
        return False
    return compare(first.tensor, second.tensor)[0] != "equal"


def same_bytes(tables: Tables, norms: Norms) -> bool:
    """Return whether two tables are bitwise equal, as far as their values in float32 show: they do not for float64.

    Finite values of the other dtypes have one representation each.
    """
    first, second = tables.input, tables.output
    if second is None or first.transposed or second.transposed:
        return False
    return first.tensor.dtype == second.tensor.dtype != "F64" and bool(norms.identical)


def open_tables(folder: Path | str, options: Options) -> tuple[Checkpoint, Tables]:
    """Return a checkpoint and its embedding tables; raises CheckpointError."""
    named = [table for table in (options.input_table, options.output_table) if table is not None]
    checkpoint = open_with_tables(folder, named)
    tables = find_tables(checkpoint, options.input_table, options.output_table)
    if tables.input.shape[0] < 3:
        few = f" {tables.input.name}: has {tables.input.shape[0]} rows; a diagnosis needs at least 3"
        raise CheckpointError(INPUT, few)
    for table in filter(None, (tables.input, tables.output)):
        check_row(table)
    return checkpoint, tables


def facts_of(checkpoint: Checkpoint, tables: Tables) -> dict[str, Any]:
    """Return facts from the headers and the configuration: the tables, the flag, the number of parameters."""

    def table_facts(table: HubTable | None) -> dict[str, Any] | None:
        names = ("name", "shape", "dtype", "transposed", "nbytes")
        return {"file": table.file.name} | {name: getattr(table, name) for name in names} if table else None

    architectures = checkpoint.config.get("architectures")
    return {
        "checkpoint": str(checkpoint.folder),
        "family": tables.family,
        "model_type": checkpoint.config.get("model_type"),
        "architectures": architectures if isinstance(architectures, list) else [],
        "parameters": checkpoint.parameters,
        "tables": {"input": table_facts(tables.input), "output": table_facts(tables.output)},
        "bias": tables.bias,
        "flag": tables.flag._asdict(),
        "head": tables.head,
        "form": tables.form,
        "notes": list(tables.notes),
    }


def norm_facts(norms: np.ndarray, ranked: Ranked) -> dict[str, Any]:
    """Return quantiles of the row norms of a table, and Spearman's correlation of the norms with the token ranks."""
    low, median, high = (float(quantile) for quantile in np.quantile(norms, (0.1, 0.5, 0.9)))
    # Equally frequent tokens have a common rank: by descending count, not by the ranks, which differ by id.
    order = ranked.ranks if ranked.counts is None else -ranked.counts.astype(float)
    seen, order = norms[ranked.counted], order[ranked.counted]
    constant = len(seen) < 3 or np.ptp(seen) == 0 or np.ptp(order) == 0
    unseen = norms[~ranked.counted]
    return {
        "low": low,
        "median": median,
        "high": high,
        "zero": int((norms == 0).sum()),
        "spearman": None if constant else float(stats.spearmanr(seen, order).statistic),
        "unseen_median": float(np.median(unseen)) if len(unseen) else None,
    }
