"""Scalars of every member as TensorBoard event files, by tensorboardX: no TensorFlow.

To be loaded where event files are asked for: tensorboardX imports torch where there is one.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


class EventFiles:
    """One folder of event files a member (`untied-seed-3`), which TensorBoard overlays as runs.

    Points that an earlier process left in `folder` vanish from TensorBoard: a run that is resumed writes them again.
    """

    def __init__(self, folder: Path, seeds: Sequence[int], arms: Sequence[str]) -> None:
        # tensorboardX's SummaryWriter would start a thread and a pipe a member.
        self._writers = [[_opened(folder / f"{arm}-seed-{seed}") for arm in arms] for seed in seeds]

    def write(self, records: Mapping[str, np.ndarray], steps: np.ndarray) -> None:
        """Append points, on disk when this returns: records `[record, seed, arm]` by name, at steps `[record]`."""
        for seed, of_seed in enumerate(self._writers):
            for arm, writer in enumerate(of_seed):
                for place, step in enumerate(steps):
                    values = [
                        Summary.Value(tag=name, simple_value=float(points[place, seed, arm]))
                        for name, points in records.items()
                    ]
                    writer.write_event(Event(step=int(step), wall_time=time.time(), summary=Summary(value=values)))
                writer.flush()

    def close(self) -> None:
        """Close the files; what was written stays."""
        for of_seed in self._writers:
            for writer in of_seed:
                writer.close()


def _opened(folder: Path) -> EventsWriter:
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"))
    # TensorBoard forgets what earlier files hold of this step and later ones.
    writer.write_event(Event(step=0, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START)))
    return writer
