"""The embedding tables that a diagnosis reads: those of the architecture, or those that a user names; their progress."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.diagnose.options import Options
from tiejax.checkpoints.hub.architectures import Architecture, architecture_of
from tiejax.checkpoints.hub.checkpoint import Checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.families import Flag, flag_of, notes_of, predicts, text_part, title_of
from tiejax.checkpoints.hub.locate import bias_of, candidates, check_whole, form_of_tables, locate, unknown
from tiejax.checkpoints.hub.reading import Progress
from tiejax.checkpoints.hub.tables import HubTable, table
from tiejax.checkpoints.hub.tokens import Tokens, count_in_corpus, find_tokens
from tiejax.geometry.ranks import frequency_ranks
from tiejax.geometry.table_rows import Table

INPUT, OUTPUT = Field("input_table"), Field("output_table")
ONLY_OUTPUT = "Only the output table is stored, and is used as the one table; loaders expect it under the input table's name."


class Tables(NamedTuple):
    """The input and output tables of a checkpoint, and related facts.

    family: title of the family, None if the architecture is unknown. output: None if no output table is stored. bias: the
    tensor added to the logits, if any. head: False if the architecture predicts no tokens, None if it is unknown. notes: facts
    that the tables do not show. form: how a table is stored if not as numbers alone, in words; it is not read then.
    """

    family: str | None
    input: HubTable
    output: HubTable | None
    bias: str | None
    flag: Flag
    head: bool | None
    notes: tuple[str, ...]
    form: str | None = None


def find_tables(checkpoint: Checkpoint, input_table: str | None = None, output_table: str | None = None) -> Tables:
    """Find the tables of a checkpoint, by the names of its architecture or by the given names.

    Raises CheckpointError if no tensor matches, or if the shapes do not fit.
    """
    if input_table is None:
        check_whole(checkpoint)
    config, notes = checkpoint.config, notes_of(checkpoint.config)
    architecture = architecture_of(config)
    name = input_table or getattr(locate(checkpoint, architecture, "input"), "name", None)
    other = output_table or getattr(locate(checkpoint, architecture, "output"), "name", None)
    if name is None and other is not None and output_table is None:
        name, notes = other, (*notes, ONLY_OUTPUT)
    if name is None:
        raise _no_input(checkpoint, architecture)
    tokens = text_part(config).get("vocab_size")
    first = table(checkpoint, name, INPUT, tokens if isinstance(tokens, int) else None)
    if output_table is not None and output_table == name:
        raise CheckpointError(OUTPUT, f" {output_table}: is the input table; omit it if no output table is stored")
    form = None if output_table else form_of_tables(checkpoint, architecture)
    second = None if other in (None, name) or form else table(checkpoint, str(other), OUTPUT, first.shape[0])
    if second is not None and output_table is None and second.shape[0] > first.shape[0] and second.shape[1] == first.shape[1]:
        more = second.shape[0] - first.shape[0]
        notes += (f"The output table has {more:,} more rows than the input table, for padding, which are ignored.",)
        second = second.cut(first.shape[0])
    if second is not None and second.shape[0] != first.shape[0]:
        shapes = f"{list(second.tensor.shape)}, that of the input table {first.name} is {list(first.tensor.shape)}"
        needed = "both need one row per token: name the right tensors with "
        raise CheckpointError(OUTPUT, f" {second.name}: the shape is {shapes}; {needed}", INPUT, " and ", OUTPUT)
    heads = [second.name] if second else list(architecture.output) if architecture else []
    bias = bias_of(checkpoint, heads, first.shape[0])
    return Tables(title_of(config), first, second, bias, flag_of(config), predicts(config), notes, form)


def _no_input(checkpoint: Checkpoint, architecture: Architecture | None) -> CheckpointError:
    if architecture is None:
        return CheckpointError(f"{checkpoint.folder}: {unknown(checkpoint)}; name its tables with ", INPUT, " and ", OUTPUT)
    tall = candidates(checkpoint)
    may_be = f" (tensors that may be it: {tall})" if tall else ""
    none = f"{checkpoint.folder}: no tensor has the name of the input table of {architecture.name}; name it with "
    return CheckpointError(none, INPUT, may_be)


class CountedTable:
    """A table that passes the number of rows of every read to a callback."""

    def __init__(self, table: HubTable, count: Callable[[int], None]) -> None:
        self.table, self.count = table, count

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and width."""
        return self.table.shape

    def __getitem__(self, rows: Any) -> np.ndarray:
        values = self.table[rows]
        self.count(len(values))
        return values


def counted(progress: Progress, phase: str, total: int, *tables: HubTable) -> list[Table]:
    """Wrap tables so that reading their rows, `total` in all, advances the progress of a phase."""
    done = 0

    def count(number: int) -> None:
        nonlocal done
        done = min(done + number, total)
        progress(phase, done, total)

    return [CountedTable(table, count) for table in tables]


class Ranked(NamedTuple):
    """Frequency ranks of tokens, from 1.

    counts: occurrences in the corpus, None without a corpus. counted: mask of the tokens that occur in the corpus, all True
    without one. facts: the entry in results.json.
    """

    ranks: np.ndarray
    counts: np.ndarray | None
    counted: np.ndarray
    facts: dict[str, Any]


def rank_tokens(
    options: Options, folder: Path, rows: int, progress: Progress, without_texts: Callable[[ValueError], None]
) -> tuple[Tokens | None, Ranked]:
    """Return the tokenizer, or None if there is none, and the ranks of the tokens.

    rows: number of rows of the input table. without_texts: called with the error when the tokenizer cannot be read and no
    option needs it; tokens then have no texts. Raises CheckpointError or CorpusError.
    """
    tokens = None
    try:
        tokens = find_tokens(folder, options.tokenizer)
    except ValueError as error:
        if options.tokenizer is not None or options.corpus is not None:
            raise
        without_texts(error)
    file = tokens.file.name if tokens else None
    if options.corpus is None:
        return tokens, Ranked(np.arange(1, rows + 1), None, np.ones(rows, bool), {"by": "id", "tokenizer": file})
    if tokens is None:
        lacks = f": {folder} has no tokenizer.json, vocab.txt or vocab.json; name one with "
        raise CheckpointError(Field("corpus"), lacks, Field("tokenizer"))
    counts, facts = count_in_corpus(tokens, options.corpus, rows, progress)
    return tokens, Ranked(frequency_ranks(counts), counts, counts > 0, {"by": "corpus", **facts})
