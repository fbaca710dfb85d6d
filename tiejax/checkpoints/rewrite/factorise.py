"""Factorising a checkpoint: a copy whose embedding tables are stored as products of narrow factors."""

import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.checkpoint import Checkpoint, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.locate import unknown
from tiejax.checkpoints.hub.reading import Progress, check_memory
from tiejax.checkpoints.hub.stored import Stored, stored_tables
from tiejax.checkpoints.hub.tables import DTYPES, FLOATS, HubTable
from tiejax.checkpoints.hub.tokens import count_in_corpus, find_tokens
from tiejax.checkpoints.rewrite.budget import Budget, budget_of
from tiejax.checkpoints.rewrite.factors import Product, form_of, maps_of
from tiejax.checkpoints.rewrite.rewrite import check_new, rewrite, section
from tiejax.checkpoints.rewrite.spectrum import Spectrum, bytes_needed, factor_rows, maps, rank_for, spectrum
from tiejax.text.errors import CorpusError

Roles = Literal["input", "output", "both"]

RANK, TABLES = Field("rank"), Field("tables")
MOST_WIDTH = 2**15  # limit of the width of all tables together; a Gram matrix of that width takes 8 GiB
ROW_BYTES = 32  # of all arrays with one entry per row


class Source(NamedTuple):
    """A checkpoint and those of its tables that are factorised, by role (`input`, `output`)."""

    checkpoint: Checkpoint
    stored: Stored
    tables: dict[str, HubTable]


class Plan(NamedTuple):
    """A factorisation before it is written. weights: the source of row weights, None if all rows have equal weight.

    rank: None if neither a rank nor an energy was chosen.
    """

    source: Source
    spectrum: Spectrum
    budget: Budget
    weights: dict[str, Any] | None
    rank: int | None


def factorise(
    folder: Path,
    out: Path,
    rank: int | None = None,
    energy: float | None = None,
    tables: Roles | None = None,
    corpus: str | None = None,
) -> Plan:
    """Write a copy of a checkpoint whose tables E ~ A B are stored as factors A [V, r] and B [r, D].

    Args:
        folder: a checkpoint in the hub's format
        out: the folder to write, which must not exist
        rank: r, at most the width of the table, or of both together
        energy: instead of `rank`: choose the lowest rank that keeps this share of the sum of squares, in (0, 1]
        tables: the tables to factorise; both share A. By default both where two are stored, or else the only one
        corpus: a text file, a folder of text files, or a .gz file: rows are weighted by how often their token occurs in it,
            plus one

    Returns:
        The factorisation, with its budget (what each rank keeps and how many bytes it takes).

    Raises:
        CheckpointError: if the checkpoint or an argument cannot be used
        CorpusError: if the corpus cannot be read
        OSError: if `out` cannot be written
    """
    if (rank is None) == (energy is None):
        raise CheckpointError(RANK, ", ", Field("energy"), ": give one of the two")
    source = open_source(folder, tables)
    check_new(source.checkpoint, out)
    planned = plan(source, rank, energy, corpus)
    write(planned, out)
    return planned


def open_source(folder: Path, tables: Roles | None) -> Source:
    """Open a checkpoint whose tables can be factorised; raises CheckpointError."""
    checkpoint = open_checkpoint(folder)
    # Two tables are compared only after their sizes have been checked.
    stored = stored_tables(checkpoint, equal=True)
    chosen = chosen_tables(checkpoint, stored, tables)
    if stored.relation == "equal":
        stored = stored_tables(checkpoint)
    if stored.relation == "equal" and len(chosen) == 1:
        raise CheckpointError(
            TABLES, f" {tables}: {checkpoint.folder} has {stored.words}, which would then differ; factorise both"
        )
    return Source(checkpoint, stored, chosen)


def chosen_tables(checkpoint: Checkpoint, stored: Stored, tables: Roles | None) -> dict[str, HubTable]:
    """Return the tables to factorise, by role; raises CheckpointError if the checkpoint lacks one or they do not fit."""
    available = {role: tensor for role, tensor in (("input", stored.input), ("output", stored.output)) if tensor is not None}
    roles = ("input", "output") if tables == "both" else (tables,) if tables else tuple(available)
    if stored.architecture is None:
        raise CheckpointError(f"{checkpoint.folder}: {unknown(checkpoint)}")
    if not roles or stored.form:
        raise CheckpointError(f"{checkpoint.folder}: has {stored.words}")
    if not set(roles) <= set(available):
        raise CheckpointError(TABLES, f" {tables}: {checkpoint.folder} has {stored.words}")
    chosen = {role: available[role] for role in roles}
    if len({(tensor.shape, tensor.dtype) for tensor in chosen.values()}) > 1:
        shown = " and ".join(f"{tensor.name} {list(tensor.shape)} {tensor.dtype}" for tensor in chosen.values())
        raise CheckpointError(TABLES, f": a shared factor needs one shape and dtype, not {shown}; choose input or output")
    if (width := sum(tensor.shape[1] for tensor in chosen.values())) > MOST_WIDTH:
        raise CheckpointError(
            f"{checkpoint.folder}: the tables are {width:,} wide in all; at most {MOST_WIDTH:,} can be factorised"
        )
    first = next(iter(chosen.values()))
    check_memory(f"{checkpoint.folder}: factorising a width of {width:,}", bytes_needed(first.shape[0], width))
    if first.dtype not in DTYPES:
        raise CheckpointError(f"{checkpoint.folder}: {first.name} is stored as {first.dtype}; a table must be one of {FLOATS}")
    return {role: HubTable(tensor) for role, tensor in chosen.items()}


def plan(
    source: Source, rank: int | None, energy: float | None, corpus: str | None, progress: Progress = lambda *_: None
) -> Plan:
    """Compute the spectrum and the budget of the tables, and write nothing; arguments and errors as in `factorise`.

    progress: called with (phase, tokens counted, None) while the corpus is read.
    """
    checkpoint, _, tables = source
    _check_rank(rank, tables)
    rows = next(iter(tables.values())).shape[0]
    weights, facts = token_weights(corpus, checkpoint.folder, rows, progress)
    found = _spectrum(checkpoint, tables, weights)
    budget = budget_of(tables, found, maps_of(checkpoint, source.stored, tables))
    if rank is None and energy is not None:
        rank = rank_for(budget.energies, energy)
    return Plan(source, found, budget, facts, rank)


def _check_rank(rank: int | None, tables: dict[str, HubTable]) -> None:
    rows, width = next(iter(tables.values())).shape[0], sum(table.shape[1] for table in tables.values())
    if rank is not None and not 1 <= rank <= min(rows, width):
        what = "both tables together" if len(tables) > 1 else "the table"
        full = f"{width}, the width of {what}" if width <= rows else f"{rows}, the number of rows"
        raise CheckpointError(RANK, f": expected 1 to {full}, got {rank}")


def _spectrum(checkpoint: Checkpoint, tables: dict[str, HubTable], weights: np.ndarray | None) -> Spectrum:
    try:
        return spectrum(list(tables.values()), weights)
    except CheckpointError:
        raise
    except ValueError as error:
        names = ", ".join(table.name for table in tables.values())
        raise CheckpointError(f"{checkpoint.folder}: {names}: {error}") from None


def write(planned: Plan, out: Path) -> str:
    """Write the factorised checkpoint; return a description of its form.

    Raises CheckpointError, or OSError if `out` cannot be written.
    """
    checkpoint, stored, tables = planned.source
    rank = planned.rank
    assert rank is not None
    product = Product(
        tables,
        rank,
        float(planned.budget.energies[rank - 1]),
        functools.partial(factor_rows, list(tables.values()), planned.spectrum, rank),
        dict(zip(tables, maps(planned.spectrum, rank), strict=True)),
    )
    form = form_of(checkpoint, stored, product)
    file = next(iter(tables.values())).file
    left_out = [table.name for table in tables.values()]
    names = " and ".join(f"`{name}`" for name in left_out)
    changes = f"{names}: products of rank {rank} that keep {product.energy:.2%} of the sum of squares; {form.title}."
    card = section(checkpoint.folder, f"factorise --rank {rank}", changes)
    rewrite(checkpoint, out, form.config, {file: form.parts}, left_out, card)
    return form.title


def token_weights(
    name: str | None, folder: Path, rows: int, progress: Progress
) -> tuple[Float[np.ndarray, " rows"] | None, dict[str, Any] | None]:
    """Return the weights of the rows, and an entry for the report; both None if `name`, the corpus, is None.

    A weight is the count of the row's token in the corpus plus one, scaled to a mean of one. Without adding one, rows of
    tokens that do not occur would be unconstrained. folder: the checkpoint's folder, with its tokenizer. Raises CheckpointError
    or CorpusError.
    """
    if name is None:
        return None, None
    tokens = find_tokens(folder)
    if tokens is None:
        raise CorpusError(f"corpus: {folder} has no tokenizer.json, vocab.txt or vocab.json, which are needed to count tokens")
    check_memory(f"corpus: weights of {rows:,} rows", ROW_BYTES * rows)
    counts, facts = count_in_corpus(tokens, name, rows, progress)
    return (counts + 1) / np.mean(counts + 1), {**facts, "added": 1}
