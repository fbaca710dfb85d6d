"""The host's loop: chunks on the device, progress and checkpoints between them."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.training import cluster
from tiejax.training.checkpoint import Checkpoints
from tiejax.training.ensemble import Ensemble, EnsembleState, Records


class Progress(NamedTuple):
    """What a chunk's end tells the console. train_s: seconds spent in chunks by this process."""

    step: int
    steps: int
    steps_here: int
    train_s: float


class Trained(NamedTuple):
    """EnsembleState at the end (or where they were stopped), all records, and this process's times.

    idle_share: part of the time, from the first step to the last, in which the devices had nothing to do.
    """

    members: EnsembleState
    records: Records
    finished: bool
    compile_s: float
    train_s: float
    steps_here: int
    idle_share: float


def _joined(parts: list[Records]) -> Records:
    if not parts:
        return Records()
    return {
        name: {field: np.concatenate([part[name][field] for part in parts]) for field in fields}
        for name, fields in parts[0].items()
    }


def train(
    ensemble: Ensemble,
    seeds: Sequence[int],
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    on_compiled: Callable[[float], None] = lambda seconds: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop_requested: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
    on_records: Callable[[Records], None] = lambda records: None,
    chunk_s: float = 2.0,
    checkpoint_s: float = 20.0,
    conditions: Sequence[int] | None = None,
) -> Trained:
    """Train the ensemble to its last step, from its last checkpoint if `resume`.

    A checkpoint holds the state and every record so far, whatever the number of devices; one is written at least every
    `checkpoint_s` seconds, when `stop_requested` says so, and at the end. Chunks are sized to `chunk_s` seconds: their
    length changes no result, since a chunk ends between two steps. Of several processes, the first gives `checkpoints`;
    all return the same. `on_records` receives the records of every chunk, those of the checkpoint first.
    """
    members, parts = ensemble.start(seeds), list[Records]()
    if resume:
        members, parts = _restored(ensemble, members, checkpoints, say)
        for part in parts:
            on_records(part)

    start = int(members.cursor)
    if start > ensemble.steps:
        return Trained(members, _joined(parts), True, 0.0, 0.0, 0, 0.0)
    began = time.perf_counter()
    runner = ensemble.compile(seeds, members, conditions)
    compile_s = time.perf_counter() - began
    on_compiled(compile_s)

    placed = runner.to_devices(members)
    cursor, train_s, length, saved_at, saved = start, 0.0, 1, time.perf_counter(), start
    worked_s, started_at = 0.0, time.perf_counter()
    while cursor <= ensemble.steps:
        orders = cluster.agree([length, time.perf_counter() - saved_at > checkpoint_s, stop_requested()])
        length, save_due, _ = orders[0]
        if save_due and cursor != saved:
            members, parts = runner.to_host(placed), [_joined(parts)]
            if checkpoints is not None:
                checkpoints.save(cursor, members, parts[0])
            saved_at, saved = time.perf_counter(), cursor
        if any(stop for *_, stop in orders):
            break
        until = min(cursor + length, ensemble.longest_chunk(cursor))
        began = time.perf_counter()
        placed, more, worked = runner.advance(placed, until)
        seconds = time.perf_counter() - began
        worked_s += worked
        train_s += seconds
        # Aim at chunk_s, but grow no faster than tenfold: the first chunks are too short to measure by.
        length = max(1, min(10 * length, int((until - cursor) * chunk_s / max(seconds, 1e-9))))
        cursor = until
        parts.append(more)
        on_records(more)
        on_progress(Progress(min(cursor, ensemble.steps), ensemble.steps, min(cursor, ensemble.steps) - start, train_s))
    idle = 1 - worked_s / max(time.perf_counter() - started_at, 1e-9)
    members, records = runner.to_host(placed), _joined(parts)
    if checkpoints is not None and cursor != saved:
        checkpoints.save(cursor, members, records)
    here = min(cursor, ensemble.steps) - start
    return Trained(members, records, cursor > ensemble.steps, compile_s, train_s, here, idle)


def _restored(
    ensemble: Ensemble, members: EnsembleState, checkpoints: Checkpoints | None, say: Callable[[str], None]
) -> tuple[EnsembleState, list[Records]]:
    """Return members and records of the last checkpoint, which the first process reads and gives to the others."""
    try:
        found: Any = checkpoints.restore(members) if checkpoints is not None else None
    except Exception as error:  # the others must not wait for what never comes
        found = error
    if jax.process_count() > 1:
        found = pickle.loads(cluster.from_first(pickle.dumps(found) if jax.process_index() == 0 else None))
    if isinstance(found, Exception):
        raise found
    if found is None:
        say("there is no checkpoint to go on from: starting at step 0")
        return members, []
    step, members, records = found
    ensemble.check(members)
    say(f"resuming at step {min(step, ensemble.steps)} of {ensemble.steps}")
    return members, [records]
