"""The host's loop: chunks on the device, progress and checkpoints between them."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from tiejax.training.checkpoint import Checkpoints
from tiejax.training.ensemble import Ensemble, Members, Records


class Progress(NamedTuple):
    """What a chunk's end tells the console. train_s: seconds spent in chunks by this process."""

    step: int
    steps: int
    steps_here: int
    train_s: float


class Trained(NamedTuple):
    """Members at the end (or where they were stopped), all records, and this process's times."""

    members: Members
    records: Records
    finished: bool
    compile_s: float
    train_s: float
    steps_here: int


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
    chunk_s: float = 2.0,
    checkpoint_s: float = 20.0,
) -> Trained:
    """Train the ensemble to its last step, from its last checkpoint if `resume`.

    A checkpoint holds the state and every record so far; one is written at least every `checkpoint_s` seconds, when
    `stop_requested` says so, and at the end. Chunks are sized to `chunk_s` seconds: their length changes no
    result, since a chunk ends between two steps.
    """
    members, parts = ensemble.start(seeds), list[Records]()
    if resume and checkpoints is not None:
        found = checkpoints.restore(members)
        if found is None:
            say("there is no checkpoint to go on from: starting at step 0")
        else:
            step, members, records = found
            parts = [records]
            ensemble.check(members)
            say(f"resuming at step {min(step, ensemble.steps)} of {ensemble.steps}")

    start = int(members.cursor)
    if start > ensemble.steps:
        return Trained(members, _joined(parts), True, 0.0, 0.0, 0)
    began = time.perf_counter()
    advance = ensemble.compile(seeds, members)
    compile_s = time.perf_counter() - began
    on_compiled(compile_s)

    cursor, train_s, length, saved_at, saved = start, 0.0, 1, time.perf_counter(), start
    while cursor <= ensemble.steps and not stop_requested():
        until = min(cursor + length, ensemble.longest_chunk(cursor))
        began = time.perf_counter()
        members, more = advance(members, until)
        jax.block_until_ready(members)
        seconds = time.perf_counter() - began
        train_s += seconds
        # Aim at chunk_s, but grow no faster than tenfold: the first chunks are too short to measure by.
        length = max(1, min(10 * length, int((until - cursor) * chunk_s / max(seconds, 1e-9))))
        cursor = until
        parts.append(more)
        on_progress(Progress(min(cursor, ensemble.steps), ensemble.steps, min(cursor, ensemble.steps) - start, train_s))
        if checkpoints is not None and time.perf_counter() - saved_at > checkpoint_s and cursor <= ensemble.steps:
            parts = [_joined(parts)]
            checkpoints.save(cursor, members, parts[0])
            saved_at, saved = time.perf_counter(), cursor
    records = _joined(parts)
    if checkpoints is not None and cursor != saved:
        checkpoints.save(cursor, members, records)
    here = min(cursor, ensemble.steps) - start
    return Trained(members, records, cursor > ensemble.steps, compile_s, train_s, here)
