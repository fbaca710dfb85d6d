"""Trackers, which show the numbers of a run while it trains: TensorBoard and Weights & Biases.

A run is one run of the tracker, also if it is interrupted and resumed. Its series have the same names in every tracker:
`FIELD/ARM` is the mean over the seeds, `FIELD/ARM/seed-S` a single seed. A stage or a part of the seeds that has checkpoints
of its own is a *line*; its name is part of the name of the arm.

After a crash, a line continues from its checkpoint, and points that the crashed process had sent are measured again:

* TensorBoard: each line has a folder. All points of the line are written again, and TensorBoard discards the earlier ones.
* Weights & Biases: rows are numbered. tracker.json holds how many are certainly stored, and the last step of every line among
  them. Those that follow are sent again under the same numbers, and the service ignores the numbers that it has.
"""

import collections
import copy
import importlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from tiejax.lab.reporting.finding import cells
from tiejax.lab.runs.run_directory import EVENTS, TRACKER, RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.system.files import replace
from tiejax.system.visible import cut

PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
PROJECT = "tiejax"
STORED_AFTER_S = 60.0  # wandb writes rows to the disk every 15 s; those in its memory are lost with the process
MOST_MEMBERS = 64  # of an ensemble whose seeds have series of their own

Points = Mapping[int, Mapping[str, float]]  # step -> series -> value
Records = Mapping[str, Mapping[str, np.ndarray]]


def check(name: str) -> None:
    """Import the package of a tracker; raises BadInput if that is not possible."""
    if name == "none":
        return
    package, reason = PACKAGES[name], "is not installed"
    try:
        if importlib.import_module(package).__file__ is not None:
            return
        # Otherwise it is a folder of this name, such as the one in which wandb stores its runs.
    except ImportError as error:
        reason = reason if error.name == package else f"cannot be imported ({cut(error)})"
    raise BadInput(f"--tracker {name}: the package {package} {reason}: pip install {package}, or --tracker none")


def series_name(*parts: str) -> str:
    """Return the name of a series, in the characters that every tracker accepts."""
    return re.sub(r"[^-/\w.]", "_", "/".join(filter(None, parts)), flags=re.ASCII)


def points_of(
    records: Records, arms: Sequence[str], seeds: Sequence[object], conditions: Sequence[int] | None = None, first: int = 0
) -> dict[int, dict[str, float]]:
    """Return the points of an ensemble's records: step -> series -> value, for every number that a member has.

    Args:
        records: recorder -> field -> array `[record, seed, arm, ...]`, and `step`, `[record]`. Fields with more axes, and
            those that are no real numbers, are left out.
        arms: name of each arm.
        seeds: the seeds, or their names; each has a series unless there are more than 64 members.
        conditions: number of each seed's condition. With several, the series of each are named after it.
        first: added to the steps.
    """
    numbers = np.zeros(len(seeds), int) if conditions is None else np.asarray(conditions)
    several = len(set(numbers.tolist())) > 1
    points: dict[int, dict[str, float]] = {}
    for recorder, fields in records.items():
        shown = {
            series_name(field if recorder == "record" else f"{recorder}_{field}"): np.asarray(values, float)
            for field, values in fields.items()
            if field != "step" and values.ndim == 3 and np.issubdtype(values.dtype, np.floating)
        }
        for place, step in enumerate(np.asarray(fields.get("step", ())).tolist()):
            values = points.setdefault(step + first, {})
            for number in dict.fromkeys(numbers.tolist()):
                members = np.flatnonzero(numbers == number).tolist()
                condition = f"condition-{number}" if several else ""
                for name, of_members in shown.items():
                    for arm, arm_name in enumerate(arms):
                        series = series_name(name, arm_name, condition)
                        values[series] = float(of_members[place, members, arm].mean())
                        if len(seeds) * len(arms) <= MOST_MEMBERS:
                            for member in members:
                                values[f"{series}/seed-{seeds[member]}"] = float(of_members[place, member, arm])
    return dict(sorted(points.items()))


# Runs of trackers have the same methods: `add` takes the points of a line, whose steps are greater than all before unless
# the run was resumed, `end` the claims, id -> verdict and numbers, and `close` sends everything.


class _TensorBoard:
    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        from tiejax.lab.reporting.event_files import Writer  # imports tensorboardX, and PyTorch with it

        self._open, self._folder, self._lines = Writer, run.path / EVENTS, dict[str, Any]()
        # Indented: Markdown shows it as it is.
        text = "\n".join(f"    {name}: {json.dumps(value)}" for name, value in settings.items())
        self._text({"settings": text})

    def _line(self, line: str) -> Any:
        if line not in self._lines:
            self._lines[line] = self._open(self._folder / series_name(line))
        return self._lines[line]

    def add(self, line: str, points: Points) -> None:
        writer = self._line(line)
        for step, values in points.items():
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        writer.flush()

    def _text(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._line("").add_text(name, text, 0)
        self._line("").flush()

    def end(self, claims: Mapping[str, str]) -> None:
        self._text({"claims": "\n".join(f"* {name}: {words}" for name, words in claims.items())})

    def close(self) -> None:
        for writer in self._lines.values():
            writer.close()


class _Wandb:
    def __init__(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        self._file = run.path / TRACKER
        new: dict[str, Any] = {"id": secrets.token_hex(4), "rows": 0, "last": {}}
        self._state = new | (json.loads(self._file.read_bytes()).get("wandb", {}) if self._file.exists() else {})
        self._write(self._state)
        self._sent = collections.deque[tuple[float, dict[str, Any]]]()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self._state["id"],
            name=os.environ.get("WANDB_NAME", str(run.path)),
            job_type=run.manifest.study,
            config=dict(settings),
            resume="allow",
            reinit="create_new",  # with --variants, a run for each
            settings=wandb.Settings(console="off"),  # the output of the command stays where it is
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def _write(self, state: Mapping[str, Any]) -> None:
        replace(self._file, json.dumps({"wandb": state}).encode())

    def add(self, line: str, points: Points) -> None:
        last = self._state["last"]
        if line not in last:  # lines before it may have ended, and are not sent again
            self._write(self._state)
            self._sent.clear()
        for step, values in points.items():
            if step > last.get(line, -1):
                self._run.log({"step": step, **values}, step=self._state["rows"])
                self._state["rows"] += 1
                last[line] = step
        self._sent.append((time.monotonic(), copy.deepcopy(self._state)))
        stored = None
        while self._sent and time.monotonic() - self._sent[0][0] >= STORED_AFTER_S:
            stored = self._sent.popleft()[1]
        if stored is not None:
            self._write(stored)

    def end(self, claims: Mapping[str, str]) -> None:
        self._run.summary.update({f"claims/{name}": words for name, words in claims.items()})

    def close(self) -> None:
        self._run.finish()
        self._write(self._state)


SINKS: Mapping[str, Callable[[RunDirectory, Mapping[str, Any]], Any]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
}


class Tracker:
    """The tracker of a run, a context manager; one without a run of its own ignores all points.

    If the tracker fails, a warning is printed, and the run goes on without it.
    """

    def __init__(self, name: str = "none", warn: Callable[[str], None] = lambda line: None) -> None:
        self._name, self._warn = name, warn
        self._sink: Any = None
        self._last: dict[str, int] = {}
        self._lock = threading.Lock()  # models of one run may train in several threads

    @classmethod
    def opened(cls, run: RunDirectory, name: str, settings: Mapping[str, Any], warn: Callable[[str], None]) -> "Tracker":
        """Return the tracker `name` of a run, which begins or continues a run there.

        settings: its configuration, JSON values.
        """
        tracker = cls(name, warn)
        if name != "none":
            tracker._try(lambda: setattr(tracker, "_sink", SINKS[name](run, settings)))
        return tracker

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # of any kind: a network, a disk, a server
            self._sink = None
            lines = str(error).splitlines() or [""]
            self._warn(f"--tracker {self._name}: {type(error).__name__}: {cut(lines[0], 200)}; the run goes on without it")

    @property
    def tracks(self) -> bool:
        """Whether points are sent."""
        return self._sink is not None

    def add(self, line: str, points: Points) -> None:
        """Add the points of a line, ascending; those up to a step that this process has added before are left out."""
        with self._lock:
            if (sink := self._sink) is None:
                return
            new = {step: values for step, values in points.items() if step > self._last.get(line, -1)}
            if new:
                self._last[line] = max(new)
                self._try(lambda: sink.add(line, new))

    def end(self, claims: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of the claims, one line for each: its verdict and its numbers."""
        if (sink := self._sink) is not None:
            lines = {}
            for row in claims:
                estimate, interval, *_, seeds = cells(row)
                lines[row["id"]] = f"{row['verdict']} ({estimate}, 95 % interval {interval}, n = {seeds})"
            self._try(lambda: sink.end(lines))

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if (sink := self._sink) is not None:
            self._try(sink.close)
            self._sink = None
