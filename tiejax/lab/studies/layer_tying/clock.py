"""The time of training, without that of compilation and of what is left out on purpose."""

import contextlib
import time
from collections.abc import Iterator

from tiejax.training.layered import Layered


class Clock:
    """The seconds since it was made, without those of compilation and of what is done in `paused`."""

    def __init__(self, layered: Layered) -> None:
        self._layered = layered
        self._began, self._left_out = self._now(), 0.0

    def _now(self) -> float:
        return time.perf_counter() - self._layered.compile_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done in this context."""
        began = self._now()
        yield
        self._left_out += self._now() - began

    @property
    def seconds(self) -> float:
        return self._now() - self._began - self._left_out
