"""The command `tiejax factorise FOLDER [OUT]`."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.download import whole_folder
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite import budget as budgets
from tiejax.checkpoints.rewrite import factorise
from tiejax.checkpoints.rewrite.budget import Budget, ranks_of_curve
from tiejax.checkpoints.rewrite.factorise import Plan, Roles, Source
from tiejax.checkpoints.rewrite.rewrite import check_new, within
from tiejax.lab.reporting import figures
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.system.files import replace
from tiejax.text.errors import CorpusError

BUDGET = "budget.json"
MEGABYTE = 10**6
COLOURS = {"input": figures.BLUE, "output": figures.ORANGE}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The tables to factorise, the rank, and the folders to write.

    Args:
        folder: folder of a checkpoint in the Hugging Face format (config.json and *.safetensors, also sharded), or its id on
            the hub
        out: folder to write, which must not exist (default: only compute the budget)
        tables: the tables to factorise: input, output, or both with one shared factor (default: every table that is stored)
        rank: number of columns of the shared factor, at most the width of the table, or of both tables together
        energy: instead of --rank: choose the lowest rank that preserves this share of the tables' sum of squares, such as .99
        corpus: text that weights the rows: each by the number of times that its token occurs, plus one; a text file, a folder
            of text files, or a .gz file (default: equal weights)
        report: folder for budget.json and the figure of the budget (default: OUT-budget, or runs/factorise/NAME without OUT)
    """

    folder: str | None = None
    out: str | None = None
    tables: Roles | None = None
    rank: int | None = None
    energy: float | None = None
    corpus: str | None = None
    report: str | None = None

    def resolved(self) -> "Settings":
        """Return the settings with the report's folder filled in; raises BadInput for values that cannot be used."""
        if not self.folder:
            raise BadInput("folder: name the folder of a checkpoint")
        if self.out == "" or self.report == "":
            raise BadInput(f"{'out' if self.out == '' else '--report'}: expected the path of a folder, got ''")
        if self.corpus == "":
            raise BadInput("--corpus: expected the path of a text file or a folder of text files, got ''")
        if self.rank is not None and self.energy is not None:
            raise BadInput("--rank, --energy: give only one of the two")
        if self.out and self.rank is None and self.energy is None:
            raise BadInput("--rank, --energy: give one of the two, or leave out OUT to compute the budget only")
        if self.energy is not None and not 0 < self.energy <= 1:
            raise BadInput(f"--energy: expected a number above 0 and at most 1, got {self.energy}")
        name = Path(os.path.realpath(Path(self.folder).expanduser())).name or "checkpoint"
        report = self.report or (f"{self.out.rstrip('/')}-budget" if self.out else str(Path("runs", "factorise", name)))
        return dataclasses.replace(self, report=report)


COMMAND = CommandLine(
    description="Write a copy of a checkpoint whose input table, output table, or both are products of a narrow factor and a "
    "map; both tables share the factor, and each has its own map. First writes and prints the budget: how much of the tables "
    "each rank preserves, and how many bytes it takes. Without OUT, nothing else is written. The transformers library can load "
    "a factorised OPT; other families are written in a format of tiejax. Everything else is copied, and the original folder is "
    "not changed.",
    example="Example: PROGRAM checkpoints/some-model checkpoints/some-model-narrow --energy .99.",
    switches={},
    first=("tables", "rank", "energy", "corpus", "report"),
    positional=("folder", "out"),
)


def main(argv: Sequence[str]) -> int:
    """Compute the budget of a checkpoint's tables, and factorise them if OUT is given; return the exit status.

    Raises BadInput, or OSError if a file cannot be written.
    """
    given, _ = command_line.parse(Settings, COMMAND, argv)
    settings, console = given.resolved(), Console()
    try:
        _factorise(settings, console)
    except CheckpointError as error:
        raise BadInput(error.as_options()) from None
    except CorpusError as error:
        line = str(error)
        raise BadInput(f"--{line}" if line.startswith("corpus") else line) from None
    return 0


def _factorise(settings: Settings, console: Console) -> None:
    with console.preparing(announce=True) as progress, reading.shown(progress):
        source = factorise.open_source(whole_folder(settings.folder or ""), settings.tables)
        _check_places(source, settings)
        planned = factorise.plan(source, settings.rank, settings.energy, settings.corpus, progress)
    folder = Path(settings.report or "").expanduser()
    if os.path.lexists(folder / BUDGET):
        console.say(f"{folder / BUDGET}: overwriting the existing file")
    report = _write_report(folder, planned)
    for line in budgets.lines(planned.budget, planned.rank):
        console.say(line)
    console.result(f"budget: {report}")
    if settings.out and planned.rank is not None:
        if planned.budget.bytes_at(planned.rank) >= planned.budget.bytes_now:
            console.warn(f"rank {planned.rank:,} takes no fewer bytes than the tables do now")
        with console.preparing(announce=True) as progress, reading.shown(progress):
            title = factorise.write(planned, Path(settings.out))
        console.result(f"factorised: {settings.out}, {title}")


def _check_places(source: Source, settings: Settings) -> None:
    """Raise BadInput unless OUT is new and the report's folder is outside the checkpoint and outside OUT."""
    checkpoint, report = source.checkpoint, Path(settings.report or "").expanduser()
    if within(report, checkpoint.folder):
        raise BadInput(f"--report {report}: lies in {checkpoint.folder}, which is only read; name a folder outside it")
    if settings.out:
        out = Path(settings.out)
        check_new(checkpoint, out)
        if within(report, out):
            raise BadInput(f"--report {report}: lies in {out}, which must be new; name a folder outside it")


def _write_report(folder: Path, planned: Plan) -> Path:
    """Write budget.json and the figure, budget.png and budget.pdf; return the path of budget.json. Raises OSError."""
    content = {
        "checkpoint": str(planned.source.checkpoint.folder),
        **budgets.facts(planned.budget, planned.weights, planned.rank),
    }
    figures.save(plot_budget(planned.budget, planned.rank), folder, "budget")
    replace(folder / BUDGET, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    return folder / BUDGET


def plot_budget(budget: Budget, rank: int | None) -> Figure:
    """Plot the energy kept against the bytes of the factors.

    Vertical lines mark the bytes of unfactorised tables, and a point marks the chosen rank.
    """
    figure, axes = figures.grid(1, 1, 5.2, 3.4, below=0.6)
    panel = axes[0]
    ranks = ranks_of_curve(len(budget.energies))
    sizes = [budget.bytes_at(rank) / MEGABYTE for rank in ranks]
    places = np.array(ranks) - 1
    label = "both tables, one factor" if budget.by_table else f"{next(iter(budget.tables))} table"
    panel.plot(sizes, budget.energies[places], color="black", linewidth=2, label=label)
    for role, energies in budget.by_table.items():
        panel.plot(sizes, energies[places], color=COLOURS[role], linewidth=1, label=f"the {role} table alone")
    for size, style, name in _unfactorised(budget):
        panel.axvline(size / MEGABYTE, color="grey", linewidth=1, linestyle=style, label=name)
    if rank is not None:
        chosen = budget.bytes_at(rank) / MEGABYTE, budget.energies[rank - 1]
        panel.plot(*chosen, "o", color=figures.GREEN, label=f"rank {rank:,}")
    panel.set_xlim(left=0)
    panel.set_ylim(top=1.01)
    panel.set_xlabel("size of the factors (MB)")
    panel.set_ylabel("energy kept")
    figures.legend_below(figure, panel, columns=2)
    return figure


def _unfactorised(budget: Budget) -> Sequence[tuple[int, str, str]]:
    """Return bytes, line style and label of each vertical line."""
    if not budget.by_table:
        return [(budget.bytes_now, "--", "table as stored")]
    one = next(iter(budget.tables.values())).nbytes
    return [(one, ":", "one table for both"), (2 * one, "--", "two tables")]
