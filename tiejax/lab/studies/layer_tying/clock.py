"""A clock for training time that excludes compilation."""

import contextlib
import time
from collections.abc import Iterator

from tiejax.training.layered import Layered


class Clock:
    """Measures seconds since its creation, without compilation and without time spent in `paused`."""

    def __init__(self, layered: Layered) -> None:
        self._layered = layered
        self._began, self._left_out = self._now(), 0.0

    def _now(self) -> float:
        return time.perf_counter() - self._layered.compile_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in this context."""
        began = self._now()
        yield
        self._left_out += self._now() - began

    @property
    def seconds(self) -> float:
        return self._now() - self._began - self._left_out
