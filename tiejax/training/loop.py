"""The host's loop: chunks on the devices, checkpoints between them."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax

from tiejax.training import cluster
from tiejax.training.checkpoint import Checkpoints
from tiejax.training.ensemble import Ensemble, EnsembleState
from tiejax.training.hand_over import packed, unpacked
from tiejax.training.kept_records import RecordFiles, Records, RecordsInMemory
from tiejax.training.runner import Runner, compile_ensemble


class Chunk(NamedTuple):
    """What was done: up to which step, how many steps in this process, seconds that it spent in chunks, the new records."""

    step: int
    steps_here: int
    train_s: float
    records: Records


class Trained(NamedTuple):
    """Members at the end (or where they were stopped), all records, and this process's times.

    idle_share: part of the time, from the first step to the last, in which the devices had nothing to do.
    """

    members: EnsembleState
    records: Records
    finished: bool
    compile_s: float
    train_s: float
    steps_here: int
    idle_share: float


def train(
    ensemble: Ensemble,
    seeds: Sequence[int],
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    conditions: Sequence[int] | None = None,
    chunk_s: float = 2.0,
    checkpoint_s: float = 20.0,
    records_on_disk: bool = False,
) -> Trained:
    """Train the ensemble to its last step, from its last checkpoint if `resume`; arguments as of `Training`."""
    training = Training(ensemble, seeds, checkpoints, resume, conditions, records_on_disk)
    training.compile()
    for _ in training.chunks(chunk_s=chunk_s, checkpoint_s=checkpoint_s):
        pass
    return training.result()


class Training:
    """An ensemble on its way to its last step: `compile`, then go through `chunks`, then ask for the `result`.

    checkpoints: where they are kept; of several processes, the first gives them, and all have the same result.
    resume: begin from the last checkpoint, if there is one. conditions: of the seeds, as `Ensemble` says.
    A checkpoint holds the state and every record so far, whatever the number of devices.
    records_on_disk: keep records in files beside the checkpoints, for those that outgrow memory, and return arrays that are
    read from there. Of several processes the first alone has them then, and says for all whether it is so.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        seeds: Sequence[int],
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
        conditions: Sequence[int] | None = None,
        records_on_disk: bool = False,
    ) -> None:
        self.ensemble, self._seeds, self._conditions, self._checkpoints = ensemble, seeds, conditions, checkpoints
        on_disk, somewhere = cluster.agree([records_on_disk, checkpoints is not None])[0]
        if on_disk and not somewhere:
            raise ValueError("records_on_disk: needs checkpoints, beside which records are kept")
        self._members = ensemble.start(seeds)
        found: Records = {}
        restored = _restored(self._members, checkpoints, bool(on_disk)) if resume else None
        if restored is not None:
            self._members, found = restored
            ensemble.check(self._members)
        self._kept = _kept(found, checkpoints) if on_disk else RecordsInMemory(found)
        self.resumed = restored is not None
        self.first = self._cursor = self._saved = int(self._members.cursor)
        self.compile_s = self._train_s = self._worked_s = self._whole_s = 0.0
        self._runner: Runner | None = None

    @property
    def records(self) -> Records:
        """All records so far, those of the checkpoint first; none where another process keeps them on disk."""
        return {} if self._kept is None else self._kept.all()

    @property
    def finished(self) -> bool:
        """Whether the last step is done and recorded."""
        return self._cursor > self.ensemble.steps

    def compile(self) -> float:
        """Compile the chunk, unless nothing is left to train; return the seconds that it took."""
        if not self.finished:
            began = time.perf_counter()
            self._runner = compile_ensemble(self.ensemble, self._seeds, self._members, self._conditions)
            self.compile_s = time.perf_counter() - began
        return self.compile_s

    def chunks(
        self, stop_requested: Callable[[], bool] = lambda: False, chunk_s: float = 2.0, checkpoint_s: float = 20.0
    ) -> Iterator[Chunk]:
        """Train chunk by chunk, until the last step or until `stop_requested` of some process says so.

        A checkpoint is written at least every `checkpoint_s` seconds, and at the end. Chunks are sized to `chunk_s` seconds:
        their length changes no result, since a chunk ends between two steps.
        """
        if self.finished:
            return
        assert self._runner is not None
        placed = self._runner.to_devices(self._members)
        length, saved_at, began_at = 1, time.perf_counter(), time.perf_counter()
        while not self.finished:
            orders = cluster.agree([length, time.perf_counter() - saved_at > checkpoint_s, stop_requested()])
            length, save_due, _ = orders[0]
            if save_due and self._cursor != self._saved:
                self._save(placed)
                saved_at = time.perf_counter()
            if any(stop for *_, stop in orders):
                break
            until = min(self._cursor + length, self.ensemble.longest_chunk(self._cursor))
            began = time.perf_counter()
            placed, records, worked = self._runner.advance(placed, until)
            seconds = time.perf_counter() - began
            self._worked_s += worked
            self._train_s += seconds
            # Aim at chunk_s, but grow no faster than tenfold: the first chunks are too short to measure by.
            length = max(1, min(10 * length, int((until - self._cursor) * chunk_s / max(seconds, 1e-9))))
            self._cursor = until
            if self._kept is not None:
                self._kept.append(records)
            yield Chunk(min(until, self.ensemble.steps), self._steps_here, self._train_s, records)
        self._whole_s = time.perf_counter() - began_at
        self._save(placed)

    @property
    def _steps_here(self) -> int:
        return min(self._cursor, self.ensemble.steps) - min(self.first, self.ensemble.steps)

    def _save(self, placed: EnsembleState) -> None:
        """Collect the members, and write a checkpoint unless it is there already."""
        assert self._runner is not None
        self._members = self._runner.to_host(placed)
        if self._checkpoints is not None and self._kept is not None and self._cursor != self._saved:
            self._checkpoints.save(self._cursor, self._members, self._kept.all())
        self._saved = self._cursor

    def result(self) -> Trained:
        """Return members, records and times."""
        idle = 1 - self._worked_s / max(self._whole_s, 1e-9) if self._whole_s else 0.0
        return Trained(self._members, self.records, self.finished, self.compile_s, self._train_s, self._steps_here, idle)


def _kept(found: Records, checkpoints: Checkpoints | None) -> RecordFiles | None:
    """Return the files of the records from now on, with those that were found; None where another process has them."""
    if checkpoints is None or jax.process_index() > 0:
        return None
    if isinstance(found, RecordFiles):
        return found
    files = RecordFiles(checkpoints.record_folder)
    files.append(found)
    return files


def _restored(members: EnsembleState, checkpoints: Checkpoints | None, on_disk: bool) -> tuple[EnsembleState, Records] | None:
    """Return members and records of the last checkpoint, which the first process reads and gives to the others.

    on_disk: the others are given no records.
    """

    def read() -> tuple[EnsembleState, Records] | None:
        last = checkpoints.restore(members) if checkpoints is not None else None
        return None if last is None else last[1:]

    if jax.process_count() == 1:
        return read()
    try:
        answer, _ = cluster.wait_for_all(read if jax.process_index() == 0 else None)  # digests of large files take long
    except Exception as error:
        cluster.from_first(packed(error))  # the others must not wait for what never comes
        raise
    given = (answer[0], {}) if answer is not None and on_disk else answer
    content = cluster.from_first(packed(given) if jax.process_index() == 0 else None)
    return answer if jax.process_index() == 0 else unpacked(content, members)
