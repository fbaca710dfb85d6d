"""TensorBoard event files, written by the SummaryWriter of tensorboardX, which needs no TensorFlow.

Import this module only where event files are requested: tensorboardX imports PyTorch if it is installed.
"""

import time
from pathlib import Path
from typing import Any

import tensorboardX
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog


class _File:
    """An event file that is written at once, as the `FileWriter` of a `SummaryWriter`.

    That of tensorboardX writes in a thread. If the disk is full, the thread ends, and the process waits for it forever.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._events = EventsWriter(str(folder / "events"))
        self.flush, self.close = self._events.flush, self._events.close
        # TensorBoard then discards the points of earlier files in the folder.
        self._write(Event(session_log=SessionLog(status=SessionLog.START)), 0)

    def _write(self, event: Any, step: int) -> None:
        event.step, event.wall_time = step, time.time()
        self._events.write_event(event)

    def add_summary(self, summary: Any, global_step: int | None = None, walltime: float | None = None) -> None:
        """Append a summary."""
        self._write(Event(summary=summary), global_step or 0)


class Writer(tensorboardX.SummaryWriter):
    """A SummaryWriter for one folder that starts anew: TensorBoard discards points that an earlier process wrote there.

    Its methods raise OSError if the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._own = _File(folder)
        super().__init__(str(folder))

    def _get_file_writer(self) -> _File:
        self.file_writer, self.all_writers = self._own, {self.logdir: self._own}
        return self._own
