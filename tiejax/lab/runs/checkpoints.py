"""The checkpoints of a run, without what the libraries below say of damaged ones: a command tells that in one line."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.training.checkpoint import Checkpoints
from tiejax.tying.tie import Tie


def open_checkpoints(run: RunDirectory, folder: Path, ties: Sequence[Tie], say: Callable[[str], None]) -> Checkpoints:
    """Return the checkpoints of a run in a folder of it, as a command wants them; ties, say: as of `Checkpoints`."""
    quiet_libraries()
    return Checkpoints(folder, ties, say, run.manifest.identity_in(folder.relative_to(run.path).as_posix()))


def quiet_libraries() -> None:
    """Silence, in this process and for good, what orbax logs and prints of checkpoints that are damaged.

    Reads of a damaged checkpoint go on in threads that outlive the call and find orbax's event loop closed.
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
