"""Runs of several stages, one after the other, each with separate checkpoints and results that are stored when it ends."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tiejax.lab.runs.arrays import arrays_of, npz
from tiejax.lab.runs.checkpoints import matching_checkpoints
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.pace import Pace
from tiejax.lab.runs.run_directory import CHECKPOINTS, FINISHED, RunDirectory
from tiejax.lab.runs.stop import Stopped
from tiejax.lab.runs.trackers import points_of
from tiejax.lab.runs.train import timing_of
from tiejax.lab.settings.command_line import BadInput
from tiejax.training import cluster
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints
from tiejax.training.ensemble import Ensemble
from tiejax.training.loop import Trained, Training
from tiejax.training.records import Records
from tiejax.training.step import TrainState
from tiejax.tying.errors import TieError

Arrays = Mapping[str, np.ndarray]
STATES = "states"  # folder of what stages store apart


def _file(stage: str) -> str:
    """Return the file with the results of a stage."""
    return f"{FINISHED}/{stage}.npz"


def _apart(stage: str) -> str:
    """Return the file with the arrays that a stage stores apart."""
    return f"{STATES}/{stage}.npz"


class Stages:
    """The stages of a run: their results, which of them are done, and the time that the rest will take.

    Of several processes, all do the work of a stage, and the first stores the result. The arrays of a finished stage are in
    `finished/NAME.npz`. costs: stage -> cost, in any unit. compile_s, train_s: seconds in this process. pace: seconds of
    training per unit of cost.
    """

    def __init__(self, launched: Launched, console: Console, stop: Callable[[], bool], costs: Mapping[str, float]) -> None:
        self._run, self._console, self._stop, self.costs = launched.run, console, stop, dict(costs)
        self._tracker = launched.tracker
        self._resume, self._every = launched.switches["resume"], launched.settings.checkpoint_every
        self._label, self._shown, self._began, self._stages_here = "", 0.0, time.perf_counter(), 0
        self.compile_s = self.train_s = 0.0
        self.pace = Pace()
        self.model_steps = 0

    def done(self, name: str) -> bool:
        """Return whether a stage is done; False in all but the first process."""
        return self._run is not None and self._run.holds(_file(name))

    def read(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of a finished stage; raises BadInput if they are damaged."""
        return self._read(lambda run: run.read(_file(name), "that stage is repeated"))

    def _read(self, content: Callable[[RunDirectory], bytes]) -> dict[str, np.ndarray]:
        """Return the arrays of a file that the first process reads and sends to the others."""
        run = self._run
        return arrays_of(cluster.done_by_first(lambda: content(run) if run else b"", expected=(BadInput,)))

    def once(self, name: str, label: str, work: Callable[[], Arrays], apart: str | None = None) -> dict[str, np.ndarray]:
        """Return the arrays of a stage: those stored before, or else the result of `work`, which is stored.

        label: what the stage is called on the console. apart: prefix of arrays `APART/...`, such as a large state for later
        stages, that are stored in a file of their own until they are dropped, and are not returned (see `state`).

        Raises Stopped if the run was asked to stop before the stage began.
        """
        states = cluster.agree([self.done(name), self._stop()])
        if not states[0][0]:
            if any(stop for _, stop in states):
                raise Stopped(f"with {self.share:.0%} of the run done")
            self._label, self._stages_here = label, self._stages_here + 1
            self._show(label, name)
            arrays = work()
            if self._run is not None:
                self._store(self._run, name, arrays, apart)
            self.pace.end(name)
        return self.read(name)

    def _store(self, run: RunDirectory, name: str, arrays: Arrays, apart: str | None) -> None:
        """Store the arrays of a stage, which is then done."""
        if apart is not None:
            taken = {field: values for field, values in arrays.items() if field.startswith(f"{apart}/")}
            run.write(_apart(name), npz(taken))  # first, so that a finished stage has it
            arrays = {field: values for field, values in arrays.items() if field not in taken}
        run.write(_file(name), npz(arrays))
        shutil.rmtree(run.checkpoints / name, ignore_errors=True)

    def state(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays that a finished stage stored apart; raises BadInput if they are missing or damaged."""

        def content(run: RunDirectory) -> bytes:
            if not run.holds(_apart(name)):
                raise BadInput(
                    f"--resume: {run.path / _apart(name)} is missing, from which other stages continue; remove the files of "
                    f"the same seeds in {run.path / FINISHED} to repeat them"
                )
            return run.read(_apart(name), f"then the files of the same seeds in {run.path / FINISHED}")

        return self._read(content)

    def add(self, name: str, cost: float) -> None:
        """Add a stage that was not planned, unless it was."""
        self.costs.setdefault(name, cost)

    def drop(self, name: str) -> None:
        """Remove the arrays that a finished stage stored apart, which no later stage needs."""
        if self._run is not None:
            self._run.drop(_apart(name))

    def train(
        self,
        name: str,
        ensemble: Ensemble,
        seeds: Sequence[int],
        conditions: Sequence[int] | None = None,
        arms: Sequence[str] = ("",),
        names: Sequence[str] | None = None,
        first: int = 0,
        start: TrainState | None = None,
    ) -> Trained:
        """Train an ensemble within a stage, from the last checkpoint of the stage if the run is resumed.

        arms: names of the arms, if there are several. names: names of the members of each arm, where seed and condition do not
        serve as such. first: the step of the run at which the stage begins.
        start: the members to start from (see `Training`).

        Raises Stopped after writing a checkpoint if the run is asked to stop, BadInput if a checkpoint does not match.
        """

        def work(checkpoints: Checkpoints | None) -> Trained:
            training = Training(ensemble, seeds, checkpoints, self._resume, conditions, start=start)
            arm_names = [f"{name}/{arm}" if arm else name for arm in arms]

            def track(records: Records) -> None:
                if self._tracker.tracks:
                    points = points_of(records, arm_names, names or seeds, None if names else conditions, first)
                    self._tracker.add(name, points)

            track(training.records)
            self._console.compiling(f"{self._label}: compiling")
            self.pace.begin(name)
            self.compile_s += training.compile()
            steps, seconds = 0, 0.0
            for chunk in training.chunks(self._stop, checkpoint_s=self._every):
                track(chunk.records)
                cost = (chunk.steps_here - steps) / ensemble.steps * self.costs.get(name, 0.0)
                self.pace.add(name, cost, chunk.train_s - seconds)
                steps, seconds = chunk.steps_here, chunk.train_s
                label = f"{self._label}: step {chunk.step:,} of {ensemble.steps:,}"
                self._show(label, name, chunk.step / ensemble.steps, seconds)
            return training.result()

        with matching_checkpoints(self._run, f"{CHECKPOINTS}/{name}", ensemble.ties, self._console.warn) as checkpoints:
            trained = cluster.or_die(lambda: work(checkpoints), expected=(BadInput, CheckpointMismatch, TieError))
        self.train_s += trained.train_s
        self.model_steps += trained.steps_here * len(seeds) * len(ensemble.arm_ties)
        if not trained.finished:
            raise Stopped(f"with {self.share:.0%} of the run done")
        return trained

    def _show(self, label: str, name: str, share: float = 0.0, seconds: float = 0.0) -> None:
        """Show progress. share: of the stage `name`, which is done. seconds: of training in this stage."""
        if self._run is None:
            return
        total = sum(self.costs.values())
        self._shown = min(1.0, self._done() + share * self.costs[name] / total)
        left = None
        if self.pace.seconds is not None:
            # Compilation, and what else is not training, is counted for this stage until it has trained.
            later = sum(not self.done(stage) and (stage != name or not seconds) for stage in self.costs)
            besides = time.perf_counter() - self._began - self.train_s - seconds
            left = (1 - self._shown) * total * self.pace.seconds
            left += later * besides / max(1, self._stages_here - (not seconds))
        self._console.part(label, self._shown, left)

    def _done(self) -> float:
        return sum(cost for stage, cost in self.costs.items() if self.done(stage)) / sum(self.costs.values())

    @property
    def share(self) -> float:
        """The share of the run that is done, including the finished steps of the current stage."""
        return max(self._shown, self._done())

    @property
    def timing(self) -> dict[str, float | None]:
        """The timing in results.json."""
        return timing_of(self.compile_s, self.train_s, self.model_steps)
