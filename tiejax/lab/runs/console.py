"""Terminal output of a run: lines, a progress bar and the table of claims."""

import contextlib
import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import rich.box
import rich.console
import rich.measure
import rich.progress
import rich.table
import rich.text
from rich.cells import cell_len, set_cell_size

from tiejax.lab.reporting.finding import cells, remarks
from tiejax.lab.reporting.words import counted, duration
from tiejax.lab.settings.command_line import STANDARD_ERROR, STANDARD_OUTPUT
from tiejax.system.files import naming_file
from tiejax.system.visible import visible_line

PLAIN_EVERY_S = 15.0
SHORT_S = 1.0  # of a stage that is not reported on a terminal
# The time left of a preparation is estimated after this share of it or this many seconds.
ESTIMATE_SHARE, ESTIMATE_S = 0.02, 5.0
NARROWEST_BAR, NARROWEST_LABEL = 4, 10  # columns
NUMBERS = ("estimate", "95 % interval", "adjusted interval", "adjusted p", "n")  # of a claim, as from `cells`


class _RichConsole(rich.console.Console):
    """A console that raises an OSError for output that cannot be written, instead of ending the process with status 1."""

    def print(self, *objects: Any, **options: Any) -> None:
        with naming_file(STANDARD_ERROR if self.stderr else STANDARD_OUTPUT):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that rich handles when it calls this


class _Elapsed(rich.progress.ProgressColumn):
    """The time since a task began."""

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        return rich.text.Text(duration(task.elapsed or 0.0))


class Console:
    """A progress bar on a terminal, plain lines in a pipe or file, only results and warnings if `quiet`.

    Warnings go to standard error, everything else to standard output. silent: print nothing at all, for all processes but the
    first. clock: returns the time in seconds; replaced in tests.
    """

    def __init__(self, quiet: bool = False, silent: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.quiet = quiet or silent
        self._silent = silent
        self._clock = clock
        self._rich = _console()
        self._bar: rich.progress.Progress | None = None
        self._drawing = 0  # bars of stages and preparations
        self._printed_at, self._printed_step = float("-inf"), -1
        self._compiling = False

    def say(self, line: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            _print(self._rich, line)

    def result(self, line: str) -> None:
        """Print a line, even if quiet."""
        if not self._silent:
            _print(self._rich, line)

    def warn(self, line: str) -> None:
        """Print a warning, even if quiet."""
        if not self._silent:
            # On the terminal of a bar, only the console of the bar can print a line above it.
            above_bar = (self._bar or self._drawing) and sys.stderr.isatty()
            _print(self._rich if above_bar else _console(stderr=True), f"warning: {line}")

    def json(self, value: object) -> None:
        """Print a value as JSON, in ASCII and so without characters that could control a terminal."""
        with naming_file(STANDARD_OUTPUT):
            print(json.dumps(value, indent=1, allow_nan=False))

    def __enter__(self) -> "Console":
        self._printed_step, self._compiling = -1, False
        if self._rich.is_terminal and not self.quiet:
            self._bar = self._new_bar(self._rich)
            self._bar.start()
            self._task = self._bar.add_task("compiling", total=None, count="", rates="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def compiling(self, label: str = "compiling") -> None:
        """Show that a program is being compiled, until the next `progress` or `part`."""
        if self._bar:
            self._show(self._bar, self._task, label, "", [""], None, None)
        elif not self._compiling and self._clock() - self._printed_at > PLAIN_EVERY_S:
            self.say(label)
        self._compiling = True

    def progress(
        self, step: int, steps: int, rate: float | None, models: int, part: str = "", later: float = 0.0, besides: float = 0.0
    ) -> None:
        """Show the steps done and, if the rate is known, steps and model-steps per second and the time left.

        rate: steps per second. part: name of the part of the run. later: cost of the parts that may follow, in units of this
        part's. besides: seconds that are left besides those of the steps.
        """
        self._compiling = False
        rates = several = left = most = ""
        if rate:
            left = _left((steps - step) / rate + besides)
            most = f"at most {_left((steps - step + later * steps) / rate)} in all" if later else ""
            several = f"{rate * models:,.0f} model-steps/s" if models > 1 else ""
            rates = f"{rate:,.{0 if rate > 10 else 1}f} steps/s"
        if self._bar:
            forms = [_join(rates, several, left, most), _join(rates, several, left), _join(rates, left), left, ""]
            self._show(self._bar, self._task, part or "training", f"{step:,}/{steps:,}", forms, step, steps)
        elif not self.quiet and (self._clock() - self._printed_at > PLAIN_EVERY_S or step == steps != self._printed_step):
            self._printed_at, self._printed_step = self._clock(), step
            self.say(_join(f"{f'{part}: ' if part else ''}step {step:,} of {steps:,}", rates, several, left, most))

    def part(self, label: str, share: float, seconds_left: float | None = None) -> None:
        """Show the current part of a run, the share of the run that is done, and the time left, if it is known."""
        self._compiling = False
        left = _left(seconds_left)
        if self._bar:
            self._show(self._bar, self._task, label, f"{share:.1%}", [left, ""], round(1000 * share), 1000)
        elif not self.quiet and self._clock() - self._printed_at > PLAIN_EVERY_S:
            self._printed_at = self._clock()
            self.say(f"{visible_line(label)}; {share:.1%} of the run{', ' if left else ''}{left}")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a stage of a run that has no steps, on a terminal with its seconds so far.

        At its end, the seconds that it took are printed, unless it was short.
        """
        began, bar = self._clock(), self._bar
        with contextlib.ExitStack() as opened:
            if self._rich.is_terminal and not self.quiet:
                if bar:  # a terminal shows one bar at a time
                    bar.stop()
                    opened.callback(bar.start)
                columns = rich.progress.TextColumn("{task.description}", markup=False), _Elapsed()
                shown = rich.progress.Progress(*columns, console=self._rich, transient=True)
                opened.enter_context(self._drawn(shown)).add_task(name)
            yield
        seconds = self._clock() - began
        if seconds >= (SHORT_S if self._rich.is_terminal else PLAIN_EVERY_S):
            self.say(f"{name}: {f'{seconds:.1f} s' if seconds < 60 else duration(seconds)}")

    @contextlib.contextmanager
    def preparing(self, announce: bool = False, stderr: bool = False) -> Iterator[Callable[[str, int, int | None], None]]:
        """Yield a function `(phase, done, total)` that shows the progress of each phase of a preparation and its time left.

        announce: name a phase when it begins with 0 done, where there is no bar. stderr: show progress on standard error, for
        commands whose output other programs read.
        """
        shown = _console(stderr=True) if stderr else self._rich
        began: dict[str, float] = {}
        bar, tasks = self._new_bar(shown), dict[str, rich.progress.TaskID]()

        def show(phase: str, done: int, total: int | None) -> None:
            if not done or phase not in began:
                began[phase] = self._clock()
            seconds, left = self._clock() - began[phase], ""
            if total and done and (done >= ESTIMATE_SHARE * total or seconds >= ESTIMATE_S):
                left = _left((total - done) * seconds / done)
            if self.quiet:
                return
            if shown.is_terminal:
                if not tasks:  # only now, since a bar takes over the terminal, on which a library may draw before
                    opened.enter_context(self._drawn(bar))
                if phase not in tasks:
                    tasks[phase] = bar.add_task("", total=total, count="", rates="")
                self._show(bar, tasks[phase], phase, f"{done / total:.0%}" if total else f"{done:,}", [left, ""], done, total)
            elif announce and not done:
                _print(shown, phase)
            elif done and self._clock() - max(self._printed_at, began[phase]) > PLAIN_EVERY_S:
                self._printed_at = self._clock()
                _print(shown, f"{phase}: {done:,}{f' of {total:,}' if total else ''}{', ' if left else ''}{left}")

        with contextlib.ExitStack() as opened:
            yield show

    def claims(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print the registered claims with their estimates, intervals, adjusted p, n and verdicts, then their remarks."""
        if self.quiet:
            return
        registered = [row for row in rows if row["verdict"] != "exploratory"]
        table = rich.table.Table(box=rich.box.SIMPLE if self._rich.is_terminal else None, pad_edge=False)
        for heading in ("claim", *NUMBERS, "verdict"):
            table.add_column(heading, justify="right" if heading in NUMBERS else "left", no_wrap=True)
        for row in registered:
            table.add_row(*map(visible_line, (row["id"], *cells(row), row["verdict"])))
        unlimited = self._rich.options.update(max_width=10_000)
        if rich.measure.Measurement.get(self._rich, unlimited, table).maximum > self._rich.width:
            for row in registered:
                *found, _ = zip(NUMBERS, cells(row), strict=True)
                numbers = ", ".join(f"{name} {cell}" for name, cell in found if cell != "-")
                self.say(f"{row['id']}: {row['verdict']}; {numbers}, {counted(row['n'], 'seed')}. {remarks(row)}".rstrip())
        else:
            self._rich.print(table, soft_wrap=False)
            for row in registered:
                if said := remarks(row):
                    self.say(f"{row['id']}: {said}")
        if exploratory := len(rows) - len(registered):
            self.say(f"{counted(exploratory, 'exploratory estimate')} in the report")

    @contextlib.contextmanager
    def _drawn(self, bar: rich.progress.Progress) -> Iterator[rich.progress.Progress]:
        """Draw a bar for the block of a `with` statement."""
        self._drawing += 1
        try:
            with bar:
                yield bar
        finally:
            self._drawing -= 1

    def _new_bar(self, console: rich.console.Console) -> rich.progress.Progress:
        """Return a progress bar that fills one row of the terminal and never wraps."""
        texts = [rich.progress.TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[count]")]
        rates = rich.progress.TextColumn("{task.fields[rates]}", markup=False)
        return rich.progress.Progress(
            texts[0], rich.progress.BarColumn(bar_width=None), texts[1], rates, console=console, expand=True
        )

    def _show(
        self,
        bar: rich.progress.Progress,
        task: rich.progress.TaskID,
        label: str,
        count: str,
        forms: Sequence[str],
        completed: int | None,
        total: int | None,
    ) -> None:
        """Update a bar with the first of `forms`, given from long to short, that fits next to label, bar and count."""
        label = visible_line(label)
        free = bar.console.width - NARROWEST_BAR - cell_len(count) - 3  # a space between columns
        rates = next((form for form in forms if cell_len(form) <= free - cell_len(label)), forms[-1])
        most = max(free - cell_len(rates), NARROWEST_LABEL)
        label = f"{set_cell_size(label, most - 1)}…" if cell_len(label) > most else label
        bar.update(task, description=label, completed=completed, total=total, count=count, rates=rates)


def _console(stderr: bool = False) -> _RichConsole:
    # Lines in a pipe are not wrapped. Brackets and colons in names are not markup.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    return _RichConsole(stderr=stderr, width=width, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _print(console: rich.console.Console, line: str) -> None:
    """Print a line, on a terminal wrapped between words; longer words, such as paths, stay whole."""
    line = visible_line(line)
    if console.is_terminal:
        hanging = " " * (len(line) - len(line.lstrip()) + 2)
        wrap = textwrap.TextWrapper(console.width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
        line = wrap.fill(line)
    console.print(line)


def _left(seconds: float | None) -> str:
    """Return the time left in words, or '' if it is not known or nothing is left."""
    return f"{duration(max(1.0, seconds))} left" if seconds else ""


def _join(*parts: str) -> str:
    return "  ".join(filter(None, parts))
