"""How a run is asked to stop: Ctrl-C or SIGTERM."""

import signal
from collections.abc import Callable
from types import FrameType


def stop_flag() -> Callable[[], bool]:
    """Return a function that says whether Ctrl-C or SIGTERM has come; a second one ends the process at once."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    return lambda: bool(seen)
