"""TensorBoard event files of every member's scalars, written by tensorboardX without TensorFlow.

Import this module only where event files are requested: tensorboardX imports PyTorch if it is installed.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


class EventFiles:
    """One folder of event files per member (`untied-seed-3`), which TensorBoard overlays as runs.

    TensorBoard discards points that an earlier process wrote to `folder`: a resumed run writes them again.
    """

    def __init__(self, folder: Path, seeds: Sequence[int], arms: Sequence[str]) -> None:
        # tensorboardX's SummaryWriter would start a thread and a pipe per member.
        self._writers = [[_opened(folder / f"{arm}-seed-{seed}") for arm in arms] for seed in seeds]

    def write(self, records: Mapping[str, np.ndarray], steps: np.ndarray) -> None:
        """Append and flush points: records `[record, seed, arm]` by name, at steps `[record]`."""
        for seed, writers in enumerate(self._writers):
            for arm, writer in enumerate(writers):
                for place, step in enumerate(steps):
                    values = [
                        Summary.Value(tag=name, simple_value=float(points[place, seed, arm]))
                        for name, points in records.items()
                    ]
                    writer.write_event(Event(step=int(step), wall_time=time.time(), summary=Summary(value=values)))
                writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writers in self._writers:
            for writer in writers:
                writer.close()


def _opened(folder: Path) -> EventsWriter:
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"))
    # TensorBoard then discards points of earlier files at this and later steps.
    writer.write_event(Event(step=0, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START)))
    return writer
