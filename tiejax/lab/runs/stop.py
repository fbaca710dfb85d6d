"""Request to stop a run, by Ctrl-C or SIGTERM."""

import signal
from collections.abc import Callable
from types import FrameType


class Stopped(Exception):
    """The run was asked to stop; everything done so far is stored. The message says how much that is."""


def stop_flag() -> Callable[[], bool]:
    """Return a function that returns whether Ctrl-C or SIGTERM was received; a second one ends the process at once."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    return lambda: bool(received)
