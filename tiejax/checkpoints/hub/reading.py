"""Progress of reading large tensors, and refusal of those that exceed the memory.

A context variable holds the callback, so that the functions between a command and the file need not pass it on.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.system.memory import machine_memory, size_words

Progress = Callable[[str, int, int | None], None]  # (phase, bytes done, bytes in total)

LARGE = 2**28  # bytes from which on progress is reported
SHARE = 4  # one array may take 1/SHARE of the memory, because several copies of it exist

_PROGRESS: contextvars.ContextVar[Progress] = contextvars.ContextVar("_PROGRESS", default=lambda phase, done, total: None)


@contextlib.contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Report the progress of reading within this context, first with 0 bytes done and the size in the name of the phase."""
    token = _PROGRESS.set(progress)
    try:
        yield
    finally:
        _PROGRESS.reset(token)


def steps(phase: str, total: int) -> Callable[[int], None]:
    """Begin to read or write `total` bytes; return a function to be called with the number of bytes of every step."""
    progress, done = _PROGRESS.get(), 0
    named = f"{phase} ({size_words(total)})"

    def step(number: int) -> None:
        nonlocal done
        done += number
        if total >= LARGE:
            progress(named, min(done, total), total)

    step(0)
    return step


def counted(blocks: Iterable[bytes], step: Callable[[int], None]) -> Iterator[bytes]:
    """Pass blocks on, and call `step` with the length of each."""
    for block in blocks:
        yield block
        step(len(block))


def check_memory(what: str | tuple[str, ...], needed: int, share: int = 1) -> None:
    """Raise CheckpointError if an array of `needed` bytes exceeds 1/`share` of the memory. what: the message's subject."""
    memory = machine_memory()
    if memory is not None and needed > memory // share:
        limit = f"this machine has {size_words(memory)}" + (f", of which 1/{share} may be used at a time" if share > 1 else "")
        raise CheckpointError(*([what] if isinstance(what, str) else what), f": takes {size_words(needed)} in memory; {limit}")
