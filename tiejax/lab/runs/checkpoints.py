"""Checkpoints of a run, without the log messages of orbax about damaged ones, which commands report in one line."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints
from tiejax.tying.errors import TieError
from tiejax.tying.ties import TiesLike


def open_checkpoints(run: RunDirectory, folder: Path, ties: TiesLike, say: Callable[[str], None], part: int = 0) -> Checkpoints:
    """Return the checkpoints of a run in one of its folders, with orbax silenced.

    ties, say: as for `Checkpoints`. part: number of the part of the seeds that is trained there.
    """
    quiet_libraries()
    return Checkpoints(folder, ties, say, run.manifest.identity_in(folder.relative_to(run.path).as_posix(), part))


@contextlib.contextmanager
def matching_checkpoints(
    run: RunDirectory | None, folder: str, ties: TiesLike, say: Callable[[str], None], part: int = 0
) -> Iterator[Checkpoints | None]:
    """Open and close the checkpoints in a folder of a run, None without a run; raises BadInput if one does not match."""
    checkpoints = None if run is None else open_checkpoints(run, run.path / folder, ties, say, part)
    try:
        yield checkpoints
    except (CheckpointMismatch, TieError) as error:
        raise BadInput(f"--resume: {error}") from None
    finally:
        if checkpoints is not None:
            checkpoints.close()


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
