"""Checkpoints of a run, without the log messages of orbax about damaged ones, which commands report in one line."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.training.checkpoint import Checkpoints
from tiejax.tying.ties import TiesLike


def open_checkpoints(run: RunDirectory, folder: Path, ties: TiesLike, say: Callable[[str], None], part: int = 0) -> Checkpoints:
    """Return the checkpoints of a run in one of its folders, with orbax silenced.

    ties, say: as for `Checkpoints`. part: number of the part of the seeds that is trained there.
    """
    quiet_libraries()
    return Checkpoints(folder, ties, say, run.manifest.identity_in(folder.relative_to(run.path).as_posix(), part))


def quiet_libraries() -> None:
    """Permanently silence the messages of orbax about damaged checkpoints.

    The threads that read a damaged checkpoint outlive the call and then find the event loop of orbax closed.
    """
    for library in ("absl", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    before = sys.unraisablehook
    if getattr(before, "drops_late_callbacks", False):
        return

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        late = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        if not late:
            before(unraisable)

    hook.drops_late_callbacks = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook
