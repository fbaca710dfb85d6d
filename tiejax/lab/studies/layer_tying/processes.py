"""Training of models in other processes, so that several share a device that a single small model leaves mostly idle."""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax

from tiejax.lab.runs import compiled
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import Manifest
from tiejax.lab.runs.numbers import fix_numbers
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput, Refused
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import Text
from tiejax.lab.studies.layer_tying.trainer import Ended, Task, Trainer, Watcher

POLL_S = 0.2
STOP = "stop"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LESS = "fewer processes need less memory; continue with --resume"
# In the messages of XLA and of CUDA. The last one also stands for a device that other processes use.
TOO_SMALL = ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "out of memory", "Unable to initialize backend")


class Assignment(NamedTuple):
    """What a process needs to train the models of a run; device: index of the device that it uses."""

    settings: Settings
    text: Text
    manifest: Manifest
    resume: bool
    device: int


class RemoteTrainer:
    """Trains models as `Trainer` does, in a process that starts with the first of them and ends with this one."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._started: tuple[Any, Connection] | None = None

    def train(self, task: Task, watcher: Watcher) -> Ended:
        """Train a model, resuming from its last checkpoint if the run is resumed. Raises BadInput, Refused and OSError."""
        # The assignment is not an argument of the process: that would be written to a pipe that this process also holds open
        # for reading, so that it would wait forever if the other one dies before it has read it.
        messages: list[Any] = [task] if self._started else [self._assignment, task]
        process, connection = self._start()
        stopping = False
        while True:
            try:
                kind, *content = _exchange(connection, messages)
            except (EOFError, OSError):  # OSError also if the process ended in the middle of a message
                process.join()
                raise Refused(
                    f"--processes_per_device: a process ended with status {process.exitcode} while it trained "
                    f"{task.model.method}, seed {task.model.seed}; {LESS}"
                ) from None
            if kind == "ended":
                return Ended(*content)
            if kind == "raised":
                raise content[0]
            if kind != "nothing":
                getattr(watcher, kind)(*content)
            messages = []
            if not stopping and watcher.stop():
                stopping, messages = True, [STOP]

    def close(self) -> None:
        """End the process."""
        if self._started is not None:
            process, connection = self._started
            connection.close()
            process.join()
            self._started = None

    def _start(self) -> tuple[Any, Connection]:
        if self._started is None:
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            resource_tracker.ensure_running()  # which would let the signals through
            with _signals_held():
                process.start()
            there.close()  # so that the end of the process closes the connection
            self._started = process, here
        return self._started


def _exchange(connection: Connection, messages: Sequence[Any]) -> tuple[Any, ...]:
    """Send messages, and return the next message of the other side, or `nothing` if there is none yet."""
    for message in messages:
        connection.send(message)
    return connection.recv() if connection.poll(POLL_S) else ("nothing",)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back in this thread, and in a process that it starts until that one ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection) -> None:
    """Train the models that the first process asks for, until it closes the connection or ends."""
    for number in SIGNALS:  # the first process decides when to stop
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compiled.use()
    fix_numbers(Console(quiet=True, silent=True))
    trainer: Trainer | None = None
    with contextlib.suppress(EOFError, ConnectionError):  # the first process needs this one no longer
        assignment = connection.recv()
        while True:
            task = connection.recv()
            if task == STOP:  # of a model that ended meanwhile
                continue
            try:
                trainer = trainer or _trainer_of(assignment)
                answer: tuple[Any, ...] = ("ended", *trainer.train(task, _watcher_of(connection)))
            except (EOFError, ConnectionError):
                return
            except Exception as error:
                answer = "raised", _error_for_first(error)
            connection.send(answer)


def _trainer_of(assignment: Assignment) -> Trainer:
    settings, text, manifest, resume, device = assignment
    path = Path(str(settings.out))
    # The first process holds the lock, and writes everything but checkpoints.
    directory = RunDirectory(path, filelock.FileLock(path / ".lock"), manifest)
    return Trainer(settings, text, directory, resume, [jax.devices()[device]])


def _watcher_of(connection: Connection) -> Watcher:
    """Return a watcher that tells the first process about the training of a model, and stops when that asks for it."""
    stopping = False

    def tell(kind: str) -> Callable[..., None]:
        return lambda *content: connection.send((kind, *content))

    def stop() -> bool:
        nonlocal stopping
        stopping = stopping or (connection.poll() and connection.recv() == STOP)
        return stopping

    return Watcher(stop, tell("steps"), tell("saved"), tell("warn"))


def _error_for_first(error: Exception) -> Exception:
    """Return the error that the first process raises: the same, Refused if memory is too small, or one with the traceback."""
    if isinstance(error, BadInput | OSError):
        return error
    if isinstance(error, RuntimeError) and any(words in str(error) for words in TOO_SMALL):
        return Refused(f"--processes_per_device: the memory of the device is too small; {LESS}")
    return RuntimeError("".join(traceback.format_exception(error)))


def _end_with_parent() -> None:
    """End this process at once when the one that started it has ended, since another may then resume the run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
