"""The training loop of the host: chunks on the devices, checkpoints between them."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import tying
from tiejax.training import cluster
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints, Facts, pack, unpack
from tiejax.training.chunk import Runner, compile_ensemble
from tiejax.training.ensemble import Ensemble
from tiejax.training.keys import check_seeds
from tiejax.training.members import EnsembleState
from tiejax.training.records import RecordFiles, Records, RecordsInMemory
from tiejax.training.step import TrainState
from tiejax.tying.tie import path_name


class Chunk(NamedTuple):
    """Progress after a chunk.

    Attributes:
        step: number of steps trained in total.
        steps_here: number of steps trained by this process, without those before a resumed checkpoint.
        train_s: seconds that this process has spent in chunks.
        records: the chunk's records.
    """

    step: int
    steps_here: int
    train_s: float
    records: Records


class Trained(NamedTuple):
    """The result of training.

    Attributes:
        members: the members at the end, or where training was stopped; leaves `[seed, arm, ...]`.
        records: recorder -> field -> array `[record, seed, arm, ...]`; the field `step` is `[record]`.
        finished: whether the last step is trained and recorded.
        compile_s: seconds of compilation.
        train_s: seconds in chunks.
        steps_here: number of steps trained by this process.
        idle_share: share of the time from the first step to the last during which the devices were idle.
    """

    members: EnsembleState
    records: Records
    finished: bool
    compile_s: float
    train_s: float
    steps_here: int
    idle_share: float

    def __repr__(self) -> str:
        records = {name: f"{len(fields['step'])} records" for name, fields in self.records.items()}
        times = ", ".join(f"{name}={getattr(self, name):.3g}" for name in ("compile_s", "train_s", "steps_here", "idle_share"))
        return f"Trained({self.members!r}, records={records}, finished={self.finished}, {times})"


def train(
    ensemble: Ensemble,
    seeds: Sequence[int],
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    conditions: Sequence[int] | None = None,
    chunk_s: float = 2.0,
    checkpoint_s: float = 20.0,
    records_on_disk: bool = False,
    callback: Callable[[Chunk], None] | None = None,
    progress: bool | None = None,
    start: TrainState | None = None,
) -> Trained:
    """Train an ensemble to its last step.

    Args:
        ensemble: the ensemble.
        seeds: the seeds, integers from 0 to 2**32 - 1, without duplicates unless their conditions differ.
        checkpoints: where to write checkpoints; none by default.
        resume: start from the newest checkpoint, if there is one.
        conditions: number of each seed's condition; all 0 by default. `Ensemble.sample` receives it.
        chunk_s: target seconds per chunk, which is one call of the devices.
        checkpoint_s: seconds between checkpoints.
        records_on_disk: hold records in files next to the checkpoints, for records too large for memory.
        callback: called after every chunk with its `Chunk`: the step, the seconds, and the chunk's records.
        progress: show a progress bar with the time left on standard error; by default if that is a terminal.
        start: members `[seed, arm]` to start from, instead of those of `Ensemble.start`: trained before, or with parameters
            that differ between arms. The leaves of ties that are on at step 0 must be equal. A checkpoint that is resumed
            comes before them.

    Returns:
        Members, records and times; the same in every process, except that only the first has records on disk.

    Raises:
        ValueError: if seeds or conditions are invalid or a seed is repeated, `records_on_disk` is given without
            `checkpoints`, `checkpoints` are those of a training that is not resumed, or `start` has leaves of other names,
            shapes or dtypes than `Ensemble.start` returns.
        CheckpointMismatch: if the newest checkpoint belongs to another run, or to other seeds, conditions, steps, recorders,
            ties, ties of arms, phases, `max_norm`, or names of parameters or of the optimizer's state.
        tying.TieError: if leaves of `start` whose tie is on at step 0 differ by more than rounding.
    """
    training = Training(ensemble, seeds, checkpoints, resume, conditions, records_on_disk, start)
    training.compile()
    with bar_of(ensemble.steps, progress) as show:
        for chunk in training.chunks(chunk_s=chunk_s, checkpoint_s=checkpoint_s):
            show(chunk.step)
            if callback is not None:
                callback(chunk)
    return training.result()


class Training:
    """The training of an ensemble in steps: call `compile`, iterate over `chunks`, then call `result`.

    A checkpoint holds the state and all records so far, in a form that does not depend on the number of devices. Arguments and
    errors are those of `train`. In a run of several processes, only the first has `checkpoints`, its `records_on_disk` counts
    for all, and only the first has such records, as memory-mapped arrays.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        seeds: Sequence[int],
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
        conditions: Sequence[int] | None = None,
        records_on_disk: bool = False,
        start: TrainState | None = None,
    ) -> None:
        check_seeds(seeds, conditions)
        self.ensemble, self._seeds, self._conditions, self._checkpoints = ensemble, seeds, conditions, checkpoints
        on_disk, somewhere = cluster.agree([records_on_disk, checkpoints is not None])[0]
        if on_disk and not somewhere:
            raise ValueError("records_on_disk: requires checkpoints, next to which the files are written")
        self._members = ensemble.start(seeds) if start is None else _starting(ensemble, seeds, start)
        found: Records = {}
        numbers = [0] * len(seeds) if conditions is None else conditions
        recorders = {
            name: [int(one.every), one.restart and int(one.restart)] for name, one in sorted(ensemble.recorders.items())
        }
        self._facts = {
            "seeds": [*map(int, seeds)],
            "conditions": [*map(int, numbers)],
            "steps": ensemble.steps,
            "recorders": recorders,
            "arm_ties": [row[:1] if len({*row}) == 1 else row for row in ensemble.arm_ties.tolist()],
            "phases": [
                [*map(_plain, dataclasses.astuple(phase))] if ties.any() else None
                for phase, ties in zip(ensemble.every_phase, ensemble.arm_ties, strict=True)
            ],
            "max_norm": ensemble.max_norm,
            # Arrays are stored by number: those of other parameters or of another optimizer may have the same shapes.
            "parameters or states of the optimizer": [
                path_name(path) for path, _ in jax.tree.leaves_with_path(self._members.state)
            ],
            "ties": _described(ensemble.resolved),
        }
        if not resume and checkpoints is not None and checkpoints.latest is not None:
            raise ValueError(
                f"checkpoints: {checkpoints.directory} has those of a training; continue it with resume=True, or choose another"
            )
        restored = _restored(self._members, checkpoints, bool(on_disk), self._facts) if resume else None
        if restored is not None:
            self._members, found = restored
            ensemble.check(self._members)
        elif start is not None:
            ensemble.check(self._members, rtol=1e-6)
        self._records = _record_files(found, checkpoints) if on_disk else RecordsInMemory(found)
        self.resumed = restored is not None
        self.first = self._cursor = self._saved = int(self._members.cursor)
        self.compile_s = self._train_s = self._worked_s = self._whole_s = 0.0
        self._runner: Runner | None = None
        self._placed: EnsembleState | None = None  # members on the devices that are further than `_members`
        self._within = False  # whether a chunk began that did not end

    @property
    def records(self) -> Records:
        """All records so far, including those of a resumed checkpoint; empty if another process holds them on disk."""
        return {} if self._records is None else self._records.all()

    @property
    def finished(self) -> bool:
        """Whether the last step is trained and recorded."""
        return self._cursor > self.ensemble.steps

    def compile(self) -> float:
        """Compile the chunk, unless nothing is left to train; return the seconds of compilation."""
        if not self.finished:
            began = time.perf_counter()
            self._runner = compile_ensemble(self.ensemble, self._seeds, self._members, self._conditions)
            self.compile_s = time.perf_counter() - began
        return self.compile_s

    def chunks(
        self, stop_requested: Callable[[], bool] = lambda: False, chunk_s: float = 2.0, checkpoint_s: float = 20.0
    ) -> Iterator[Chunk]:
        """Train chunk by chunk to the last step, or until `stop_requested` is true in some process; yield the progress.

        stop_requested: called before each chunk. chunk_s: target seconds per chunk; the length of chunks does not affect
        results. checkpoint_s: seconds between checkpoints; one is also written at the end, unless the caller leaves the loop
        early. A further call continues the training.

        Raises RuntimeError if an error has interrupted a chunk before; CheckpointMismatch if records have other fields than
        those of the checkpoint.
        """
        if self.finished:
            return
        assert self._runner is not None
        self._collect()
        placed = self._runner.to_devices(self._members)
        length, saved_at, began_at, whole_s = 1, time.perf_counter(), time.perf_counter(), self._whole_s
        while not self.finished:
            orders = cluster.agree([length, time.perf_counter() - saved_at > checkpoint_s, stop_requested()])
            length, save_due, _ = orders[0]
            if save_due and self._cursor != self._saved:
                self._save()
                saved_at = time.perf_counter()
            if any(stop for *_, stop in orders):
                break
            until = min(self._cursor + length, self.ensemble.longest_chunk(self._cursor))
            began = time.perf_counter()
            self._placed, self._within = None, True  # its buffers are used again
            placed, records, worked = self._runner.advance(placed, until)
            seconds = time.perf_counter() - began
            self._worked_s += worked
            self._train_s += seconds
            # Aim at chunk_s, but grow at most tenfold: the first chunks are too short for a good measurement.
            length = max(1, min(10 * length, int((until - self._cursor) * chunk_s / max(seconds, 1e-9))))
            self._append(records)
            self._placed, self._cursor, self._within = placed, until, False
            self._whole_s = whole_s + time.perf_counter() - began_at
            yield Chunk(min(until, self.ensemble.steps), self._steps_here, self._train_s, records)
        self._save()

    @property
    def _steps_here(self) -> int:
        return min(self._cursor, self.ensemble.steps) - min(self.first, self.ensemble.steps)

    def _collect(self) -> None:
        """Bring the members from the devices, if they are further there; raises RuntimeError if a chunk was interrupted."""
        if self._within:
            raise RuntimeError("the training was interrupted within a chunk; continue from a checkpoint, or start again")
        if self._placed is not None:
            assert self._runner is not None
            self._members, self._placed = self._runner.to_host(self._placed), None

    def _append(self, records: Records) -> None:
        """Append the records of a chunk."""
        if self._records is None:
            return
        try:
            self._records.append(records)
        except ValueError as error:
            if not self.resumed:
                raise
            raise CheckpointMismatch(f"the checkpoint has other records than this training: {error}") from None

    def _save(self) -> None:
        """Collect the members, and write a checkpoint unless this step has been saved."""
        self._collect()
        if self._checkpoints is not None and self._records is not None and self._cursor != self._saved:
            self._checkpoints.save(self._cursor, self._members, self._records.all(), self._facts)
        self._saved = self._cursor

    def result(self) -> Trained:
        """Return the members, records and times of the training so far; every process calls it."""
        self._collect()
        idle = 1 - self._worked_s / max(self._whole_s, 1e-9) if self._whole_s else 0.0
        return Trained(self._members, self.records, self.finished, self.compile_s, self._train_s, self._steps_here, idle)


def _described(ties: tying.Ties) -> Any:
    """Return ties as a JSON value; those with pairs of functions by their leaves alone."""
    try:
        return json.loads(tying.ties_to_json(ties))
    except tying.TieError:
        return [[tie.source, tie.target] for tie in ties]


def _plain(value: Any) -> Any:
    """Return a fact as a JSON value."""
    return value.item() if isinstance(value, np.generic) else value


def _starting(ensemble: Ensemble, seeds: Sequence[int], start: TrainState) -> EnsembleState:
    """Return given members before the first step; raises ValueError unless they are like those of `Ensemble.start`."""
    expected = len(seeds), len(ensemble.arm_ties)
    if wrong := {leaf.shape[:2] for leaf in jax.tree.leaves(start.params)} - {expected}:
        raise ValueError(f"start: expected members [seed, arm] of shape {expected}, got {wrong.pop()}")
    own = jax.eval_shape(lambda: ensemble.start(seeds).state)
    found, wanted = (_kinds({"params": state.params, "opt_state": state.opt_state}) for state in (start, own))
    for path in {**wanted, **found}:
        if found.get(path) != wanted.get(path):
            advice = "" if path.startswith("params") else "; the state of all members is vmap(vmap(optimizer.init))(params)"
            raise ValueError(
                f"start: {path}: expected {wanted.get(path, 'nothing')}, as Ensemble.start returns, got "
                f"{found.get(path, 'nothing')}{advice}"
            )
    return EnsembleState(start, jnp.int32(0))


def _kinds(tree: Any) -> dict[str, str]:
    """Return the dtype and shape of each leaf by path."""
    return {path_name(path): f"{jnp.result_type(leaf)} {jnp.shape(leaf)}" for path, leaf in jax.tree.leaves_with_path(tree)}


def _record_files(found: Records, checkpoints: Checkpoints | None) -> RecordFiles | None:
    """Return files that begin with the records of a checkpoint; None in all processes but the first."""
    if checkpoints is None or jax.process_index() > 0:
        return None
    if isinstance(found, RecordFiles):
        return found
    files = RecordFiles(checkpoints.record_folder)
    files.append(found)
    return files


def _restored(
    members: EnsembleState, checkpoints: Checkpoints | None, on_disk: bool, facts: Facts
) -> tuple[EnsembleState, Records] | None:
    """Return members and records of the newest checkpoint, which the first process reads and sends to the others.

    on_disk: do not send records, which the first process holds on disk. facts: of the training, as in `Checkpoints.restore`.
    """

    def read() -> tuple[EnsembleState, Records] | None:
        last = checkpoints.restore(members, facts) if checkpoints is not None else None
        return None if last is None else last[1:]

    if jax.process_count() == 1:
        return read()
    try:
        answer, _ = cluster.wait_for_all(read if jax.process_index() == 0 else None)  # verifying large files takes long
    except Exception as error:
        cluster.from_first(pack(error))  # or the others would wait forever
        raise
    sent = (answer[0], {}) if answer is not None and on_disk else answer
    content = cluster.from_first(pack(sent) if jax.process_index() == 0 else None)
    return answer if jax.process_index() == 0 else unpack(content, members)


@contextlib.contextmanager
def bar_of(steps: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for the block of a `with` statement; yield a function that takes the number of steps done.

    steps: number of steps in total. shown: whether there is a bar; None if standard error is a terminal.
    """
    if not (sys.stderr is not None and sys.stderr.isatty() if shown is None else shown):
        yield lambda step: None
        return
    import rich.console
    import rich.progress

    columns = (
        rich.progress.TextColumn("training"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda step: bar.update(task, completed=step)
