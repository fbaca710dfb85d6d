"""Training of models in other processes, so that several share a device that a single small model leaves mostly idle."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax

from tiejax.lab.runs.manifest import Manifest
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import Text
from tiejax.lab.studies.layer_tying.trainer import Ended, Task, Trainer, Watcher

POLL_S = 0.2


class Assignment(NamedTuple):
    """What a process needs to train the models of a run; device: index of the device that it uses."""

    settings: Settings
    text: Text
    manifest: Manifest
    resume: bool
    device: int


class RemoteTrainer:
    """Trains models as `Trainer` does, in a process that starts with the first of them and ends with this one."""

    def __init__(self, settings: Settings, text: Text, directory: RunDirectory, resume: bool, device: int) -> None:
        self._settings, self._text, self._directory = settings, text, directory
        self._resume, self._device = resume, device
        self._started: tuple[Any, Connection, Any] | None = None

    def train(self, task: Task, watcher: Watcher) -> Ended:
        """Train a model, resuming from its last checkpoint if the run is resumed. Raises BadInput."""
        process, connection, stopping = self._start()
        try:
            connection.send(task)
            while True:
                if watcher.stop():
                    stopping.set()
                if not connection.poll(POLL_S):
                    continue
                kind, *content = connection.recv()
                if kind == "ended":
                    return Ended(*content)
                if kind == "refused":
                    raise BadInput(*content)
                if kind == "failed":
                    raise RuntimeError(*content)
                getattr(watcher, kind)(*content)
        except (EOFError, ConnectionError):
            process.join()
            raise BadInput(
                f"--processes_per_device: a process ended with status {process.exitcode} while it trained {task.model.method}, "
                f"seed {task.model.seed}; fewer processes need less memory; continue with --resume"
            ) from None

    def close(self) -> None:
        """End the process."""
        if self._started is not None:
            process, connection, _ = self._started
            connection.close()
            process.join()
            self._started = None

    def _start(self) -> tuple[Any, Connection, Any]:
        if self._started is None:
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            stopping = context.Event()
            assignment = Assignment(self._settings, self._text, self._directory.manifest, self._resume, self._device)
            process = context.Process(target=_serve, args=(there, stopping, assignment), daemon=True)
            process.start()
            there.close()  # so that the end of the process closes the connection
            self._started = process, here, stopping
        return self._started


def _serve(connection: Connection, stopping: Any, assignment: Assignment) -> None:
    """Train the models that the first process asks for, until it closes the connection or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first process decides when to stop
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings, text, manifest, resume, device = assignment
    path = Path(str(settings.out))
    # The first process holds the lock, and writes everything but checkpoints.
    directory = RunDirectory(path, filelock.FileLock(path / ".lock"), manifest)
    trainer = Trainer(settings, text, directory, resume, [jax.devices()[device]])

    def tell(kind: str) -> Callable[..., None]:
        return lambda *content: connection.send((kind, *content))

    watcher = Watcher(stopping.is_set, tell("steps"), tell("saved"), tell("warn"))
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            tell("ended")(*trainer.train(task, watcher))
        except BadInput as error:
            tell("refused")(str(error))
        except Exception:
            tell("failed")(traceback.format_exc())


def _end_with_parent() -> None:
    """End this process at once when the one that started it has ended, since another may then resume the run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
