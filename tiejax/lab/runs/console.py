"""What a run says on the terminal: one line a fact, a progress bar, a table of claims at the end."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import rich.box
import rich.console
import rich.progress
import rich.table

from tiejax.lab.reporting.words import cells, duration
from tiejax.system.visible import shown

PLAIN_EVERY_S = 15.0
LEAST_SHARE = 0.005  # of a run, from which the rest is estimated


class Console:
    """A bar where standard output is a terminal, plain lines where it is not, nothing but the last line if `quiet`.

    silent: not even that, as all but the first of several processes are.
    """

    def __init__(self, quiet: bool = False, silent: bool = False) -> None:
        self.quiet = quiet or silent
        self._silent = silent
        # A pipe has no width of its own to fit into: a line is as long as it needs to be.
        # Brackets and colons in names are no markup.
        width = None if sys.stdout.isatty() else 200
        self._rich = rich.console.Console(width=width, soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._bar: rich.progress.Progress | None = None
        self._printed_at, self._printed_step = 0.0, -1

    def say(self, line: str) -> None:
        """Print one line, unless quiet."""
        if not self.quiet:
            self._rich.print(shown(line))

    def result(self, line: str) -> None:
        """Print one line that is wanted even where quiet."""
        if not self._silent:
            self._rich.print(shown(line))

    def warn(self, line: str) -> None:
        """Print one line that must not be missed, quiet or not."""
        if not self._silent:
            self._rich.print(shown(f"warning: {line}"))

    def __enter__(self) -> "Console":
        self._printed_step = -1
        if self._rich.is_terminal and not self.quiet:
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}", markup=False),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.fields[rates]}", markup=False),
                console=self._rich,
            )
            self._bar.start()
            self._task = self._bar.add_task("training", total=None, rates="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def progress(self, step: int, steps: int, steps_here: int, seconds: float, models: int) -> None:
        """Show steps done, steps and model-steps per second, and the time left.

        steps_here, seconds: what this process has trained, in how long; rates come from them.
        """
        rate = steps_here / seconds if seconds else 0.0
        left = f"{duration((steps - step) / rate)} left" if rate else ""
        several = f"{rate * models:,.0f} model-steps/s  " if models > 1 else ""
        rates = f"{rate:,.{0 if rate > 10 else 1}f} steps/s  {several}{left}"
        if self._bar:
            self._bar.update(self._task, completed=step, total=steps, rates=rates)
        elif not self.quiet and (time.monotonic() - self._printed_at > PLAIN_EVERY_S or step == steps != self._printed_step):
            self._printed_at, self._printed_step = time.monotonic(), step
            self.say(f"step {step:,} of {steps:,}  {rates}")

    def part(self, label: str, share: float, seconds: float, here: float) -> None:
        """Show what is being done, which share of the run is done, and the time left.

        here, seconds: the share that this process has done, and how long that took.
        """
        # What the first seconds tell, compilation among them, would mislead.
        left = f", {duration((1 - share) * seconds / here)} left" if here > LEAST_SHARE else ""
        label = shown(label)
        line = f"{label}; {share:.1%} of the run{left}"
        if self._bar:
            self._bar.update(self._task, description=label, completed=round(1000 * share), total=1000, rates=left.strip(", "))
        elif not self.quiet and time.monotonic() - self._printed_at > PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            self.say(line)

    @contextlib.contextmanager
    def preparing(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Yield a function (phase, done, total) that shows how far each phase of a preparation is, and the time left."""
        began: dict[str, float] = {}
        if self._rich.is_terminal and not self.quiet:
            columns = rich.progress.BarColumn(), rich.progress.TaskProgressColumn(), rich.progress.TimeRemainingColumn()
            phases = rich.progress.TextColumn("{task.description}", markup=False)
            with rich.progress.Progress(phases, *columns, console=self._rich) as bar:
                tasks: dict[str, rich.progress.TaskID] = {}

                def show(phase: str, done: int, total: int | None) -> None:
                    if phase not in tasks:
                        tasks[phase] = bar.add_task(shown(phase), total=total)
                    bar.update(tasks[phase], completed=done, total=total)

                yield show
            return

        def tell(phase: str, done: int, total: int | None) -> None:
            now = time.monotonic()
            began.setdefault(phase, now)
            if not self.quiet and done and now - max(self._printed_at, began[phase]) > PLAIN_EVERY_S:
                self._printed_at = now
                left = f", {duration((total - done) * (now - began[phase]) / done)} left" if total else ""
                self.say(f"{phase}: {done:,}{f' of {total:,}' if total else ''}{left}")

        yield tell

    def claims(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print the claims with their estimates, intervals, adjusted p, n and verdicts."""
        if self.quiet:
            return
        table = rich.table.Table(box=rich.box.SIMPLE if self._rich.is_terminal else None, pad_edge=False)
        table.add_column("claim", overflow="fold")
        for heading in ("estimate", "95 % interval", "adjusted p", "effect", "n"):
            table.add_column(heading, justify="right", overflow="fold")
        table.add_column("verdict", no_wrap=True)
        for row in rows:
            table.add_row(*map(shown, (row["id"], *cells(row), row["verdict"])))
        self._rich.print(table, soft_wrap=False)
