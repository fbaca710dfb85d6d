"""`tiejax factorise FOLDER [OUT]`: tables as products of narrow factors, with what every rank keeps and takes told before."""

import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.tables import DTYPES, HubTable
from tiejax.checkpoints.rewrite import budget as budgets
from tiejax.checkpoints.rewrite.budget import Budget, budget_of
from tiejax.checkpoints.rewrite.factors import Product, form_of
from tiejax.checkpoints.rewrite.rewrite import check_new, rewrite, within
from tiejax.checkpoints.rewrite.spectrum import Spectrum, bytes_needed, factor_rows, maps, rank_for, spectrum
from tiejax.checkpoints.rewrite.stored import WORDS, Stored, stored_tables
from tiejax.checkpoints.rewrite.token_weights import token_weights
from tiejax.lab.runs import writing
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.system.memory import machine_memory
from tiejax.system.naming import naming
from tiejax.text.errors import CorpusError

BUDGET, TABLES = "budget.json", Field("tables")
MOST_WIDTH = 2**15  # of both tables; its Gram matrix takes 8 GiB


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which tables are factorised, how far, and what is written.

    Args:
        folder: folder of a checkpoint in the hub's format
        out: a folder that is new
        tables: which table becomes a product: input, output, or both with one shared factor (default: both where two are
            stored, or else the one)
        rank: columns of the shared factor, at most the width of the table, or of both together
        energy: take the lowest rank that keeps this part of the sum of squares, as .99; instead of --rank
        corpus: a text file, a folder of them, or .gz: rows count by how often the checkpoint's own tokenizer finds their tokens
            there, plus one (default: all count the same)
        report: where budget.json and the figure of the budget go (default: OUT-budget, or runs/factorise/NAME without OUT)
    """

    folder: str | None = None
    out: str | None = None
    tables: Literal["input", "output", "both"] | None = None
    rank: int | None = None
    energy: float | None = None
    corpus: str | None = None
    report: str | None = None

    def resolved(self) -> "Settings":
        """Return the settings with where the report goes; raises BadInput if they make no sense."""
        if not self.folder:
            raise BadInput("folder: name the folder of a checkpoint")
        if self.out == "" or self.report == "":
            raise BadInput(f"{'out' if self.out == '' else '--report'}: must name a folder, got nothing")
        if self.corpus == "":
            raise BadInput("--corpus: must name a text file or a folder of them, got nothing")
        if self.rank is not None and self.energy is not None:
            raise BadInput("--rank, --energy: give one of the two")
        if self.out and self.rank is None and self.energy is None:
            raise BadInput("--rank, --energy: give one of the two, or leave OUT away to see the budget alone")
        if self.energy is not None and not 0 < self.energy <= 1:
            raise BadInput(f"--energy: must be above 0 and at most 1, got {self.energy}")
        name = Path(os.path.realpath(Path(self.folder).expanduser())).name or "checkpoint"
        report = self.report or (f"{self.out.rstrip('/')}-budget" if self.out else str(Path("runs", "factorise", name)))
        return dataclasses.replace(self, report=report)


COMMAND = CommandLine(
    description="Write a checkpoint anew with its input table, its output table, or both as a product of a narrow factor and a "
    "map: both share the factor and have a map each. Before anything is written, what every rank keeps of the tables and the "
    "bytes that it takes are told, as JSON and as a figure; without OUT that is all. The transformers library loads an OPT so "
    "written; any other family is in a form of our own. Nothing else in the checkpoint changes, and the old folder is not "
    "touched.",
    example="Example: PROGRAM checkpoints/some-model checkpoints/some-model-narrow --energy .99",
    switches={},
    first=("tables", "rank", "energy", "corpus", "report"),
    positional={
        "folder": "folder of a checkpoint in the hub's format (config.json and *.safetensors, also sharded)",
        "out": "where the factorised one goes: a folder that is new",
    },
)


def main(argv: Sequence[str]) -> int:
    """Factorise the tables of a checkpoint, or tell their budget alone; return the exit status. Raises BadInput."""
    given, _ = command_line.parse(Settings, COMMAND, argv)
    settings, console = given.resolved(), Console()
    try:
        factorise(settings, console)
    except (CheckpointError, CorpusError) as error:
        line = error.as_options() if isinstance(error, CheckpointError) else str(error)
        raise BadInput(f"--{line}" if line.startswith("corpus") else line) from None
    return 0


def factorise(settings: Settings, console: Console) -> None:
    """Tell the budget of the tables, and write the factorised checkpoint where one is asked for.

    Raises CheckpointError, CorpusError or BadInput, one line, where the checkpoint, the corpus or a setting will not do, and
    OSError where something cannot be written.
    """
    checkpoint = open_checkpoint(Path(settings.folder or "").expanduser())
    stored = stored_tables(checkpoint)
    tables = chosen_tables(checkpoint, stored, settings.tables)
    _check_places(checkpoint, settings)
    _check_rank(settings, tables)
    with console.preparing() as tell:
        rows = next(iter(tables.values())).shape[0]
        weights, facts = token_weights(settings.corpus, checkpoint.folder, rows, tell)
    found = _spectrum(checkpoint, tables, weights)
    budget = budget_of(tables, found)
    rank = settings.rank or (rank_for(budget.energies, settings.energy) if settings.energy is not None else None)
    folder = Path(settings.report or "").expanduser()
    if os.path.lexists(folder / BUDGET):
        console.say(f"{folder / BUDGET}: was there already, and is written over")
    report = write_report(folder, checkpoint, budget, facts, rank)
    for line in budgets.lines(budget, rank):
        console.say(line)
    console.result(f"budget: {report}")
    if settings.out and rank is not None:
        if budget.bytes_of(rank) >= budget.bytes_now:
            console.warn(f"rank {rank:,} takes no fewer bytes than the tables do now")
        title = write(checkpoint, stored, budget, found, rank, Path(settings.out).expanduser())
        console.result(f"factorised: {settings.out}, {title}")


def chosen_tables(checkpoint: Checkpoint, stored: Stored, asked: str | None) -> dict[str, HubTable]:
    """Return the tables that are factorised, by role; raises CheckpointError where the checkpoint does not have them."""
    there = {role: tensor for role, tensor in (("input", stored.input), ("output", stored.output)) if tensor is not None}
    roles = ("input", "output") if asked == "both" else (asked,) if asked else tuple(there)
    if not roles:
        raise CheckpointError(f"{checkpoint.folder}: has {WORDS[stored.relation]}")
    if not set(roles) <= set(there):
        raise CheckpointError(TABLES, f" {asked}: {checkpoint.folder} has {WORDS[stored.relation]}")
    if stored.relation == "equal" and len(roles) == 1:
        raise CheckpointError(TABLES, f" {asked}: {checkpoint.folder} has {WORDS['equal']}; take both, or they part")
    chosen = {role: there[role] for role in roles}
    if len({(tensor.shape, tensor.dtype) for tensor in chosen.values()}) > 1:
        shown = " and ".join(f"{tensor.name} {list(tensor.shape)} {tensor.dtype}" for tensor in chosen.values())
        raise CheckpointError(TABLES, f": a shared factor needs one shape and dtype, not {shown}; take input or output")
    if (width := sum(tensor.shape[1] for tensor in chosen.values())) > MOST_WIDTH:
        raise CheckpointError(f"{checkpoint.folder}: tables of a width of {width:,} are not factorised, {MOST_WIDTH:,} at most")
    needed, there_is = bytes_needed(next(iter(chosen.values())).shape[0], width), machine_memory()
    if there_is is not None and needed > there_is:
        raise CheckpointError(
            f"{checkpoint.folder}: to factorise a width of {width:,} takes {needed:,} bytes; the memory has {there_is:,}"
        )
    return {role: _table(checkpoint, tensor) for role, tensor in chosen.items()}


def _table(checkpoint: Checkpoint, tensor: Tensor) -> HubTable:
    if tensor.dtype not in DTYPES:
        kinds = ", ".join(DTYPES.values())
        raise CheckpointError(f"{checkpoint.folder}: {tensor.name} is stored as {tensor.dtype}; a table must be one of {kinds}")
    return HubTable(tensor)


def _check_places(checkpoint: Checkpoint, settings: Settings) -> None:
    """Raise unless nothing of the old folder is written to, and the report does not stand where the new one is to be."""
    report = Path(settings.report or "").expanduser()
    if within(report, checkpoint.folder):
        raise BadInput(f"--report {report}: lies in {checkpoint.folder}, which is not written to; name a folder outside it")
    if settings.out:
        out = Path(settings.out).expanduser()
        check_new(checkpoint, out)
        if within(report, out):
            raise BadInput(f"--report {report}: lies in {out}, which is to be new; name a folder outside it")


def _check_rank(settings: Settings, tables: dict[str, HubTable]) -> None:
    rows, width = next(iter(tables.values())).shape[0], sum(table.shape[1] for table in tables.values())
    if settings.rank is not None and not 1 <= settings.rank <= min(rows, width):
        what = "both tables together" if len(tables) > 1 else "the table"
        full = f"{width}, the width of {what}" if width <= rows else f"{rows}, as many as the table has rows"
        raise BadInput(f"--rank: must be from 1 to {full}, got {settings.rank}")


def _spectrum(checkpoint: Checkpoint, tables: dict[str, HubTable], weights: np.ndarray | None) -> Spectrum:
    try:
        return spectrum(list(tables.values()), weights)
    except CheckpointError:
        raise
    except ValueError as error:
        names = ", ".join(table.name for table in tables.values())
        raise CheckpointError(f"{checkpoint.folder}: {names}: {error}") from None


def write_report(
    folder: Path, checkpoint: Checkpoint, budget: Budget, weights: dict[str, Any] | None, rank: int | None
) -> Path:
    """Write budget.json and the figure, budget.png and .pdf; return the path of the first. Raises OSError."""
    content = {"checkpoint": str(checkpoint.folder), **budgets.facts(budget, weights, rank)}
    with naming(folder):
        budgets.save_figure(budgets.plot(budget, rank), folder)
    writing.replace(folder / BUDGET, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    return folder / BUDGET


def write(checkpoint: Checkpoint, stored: Stored, budget: Budget, found: Spectrum, rank: int, out: Path) -> str:
    """Write the factorised checkpoint; return in which form. Raises CheckpointError, or OSError where it cannot be written."""
    tables = budget.tables
    product = Product(
        tables,
        rank,
        float(budget.energies[rank - 1]),
        functools.partial(factor_rows, list(tables.values()), found, rank),
        dict(zip(tables, maps(found, rank), strict=True)),
    )
    form = form_of(checkpoint, stored, product)
    file = next(iter(tables.values())).file
    rewrite(checkpoint, out, form.config, {file: form.parts}, [table.name for table in tables.values()])
    return form.title
