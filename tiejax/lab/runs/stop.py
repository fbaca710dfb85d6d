"""Request to stop a run, by Ctrl-C or SIGTERM."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """The run was asked to stop; everything done so far is stored. The message says how much that is."""


def stop_flag() -> Callable[[], bool]:
    """Return a function that returns whether Ctrl-C or SIGTERM was received; a second one ends the process at once.

    In another thread than the main one, where Python handles no signals, it returns False.
    """
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, handler)
    return lambda: bool(received)


@contextlib.contextmanager
def handlers_restored() -> Iterator[None]:
    """Restore the handlers of Ctrl-C and SIGTERM at the end, for the caller of a run in a process that continues."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not one of Python
                signal.signal(number, handler)
