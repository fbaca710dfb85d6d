"""Checkpoints of a run, without the log messages of orbax about damaged ones, which commands report in one line."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from tiejax.lab.reporting.words import seeds_words
from tiejax.lab.runs.manifest import Manifest
from tiejax.lab.runs.run_directory import CHECKPOINTS, RunDirectory
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.command_line import BadInput
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints
from tiejax.training.ensemble import Ensemble
from tiejax.training.records import join_records, join_seeds
from tiejax.tying.errors import TieError
from tiejax.tying.ties import TiesLike


class Part(NamedTuple):
    """The part of a run's seeds that is trained; by default all of them.

    number: from 0. label: its name on the console. later: cost of the parts that may follow, in units of this part's.
    """

    number: int = 0
    label: str = ""
    later: float = 0.0

    @property
    def folder(self) -> str:
        """The folder of its checkpoints in the run directory."""
        return f"{CHECKPOINTS}/part-{self.number + 1}" if self.number else CHECKPOINTS


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


def restored_parts(
    manifest: Manifest, ensemble: Ensemble, folder: Path, warn: Callable[[str], None]
) -> tuple[list[int], int, Any, Any]:
    """Return seeds, step, parameters and records of a run whose seeds may train in parts; raises BadInput.

    Parts without a checkpoint at the step of the first are left out, with a warning that names their seeds.
    """
    parts = [seed_list(part) for part in manifest.all_parts]
    kept, found = [parts[0]], [restored(manifest, ensemble, parts[0], folder, warn)]
    for number, seeds in enumerate(parts[1:], 1):
        one = None
        with contextlib.suppress(BadInput):  # none yet, or it was lost
            one = restored(manifest, ensemble, seeds, folder, warn, number)
        if one is not None and one[0] == found[0][0]:
            kept.append(seeds)
            found.append(one)
        else:
            warn(f"{folder}: {seeds_words(seeds)} left out: no checkpoint at step {found[0][0]:,} in {Part(number).folder}")
    params = jax.tree.map(lambda *leaves: join_seeds(leaves, 0), *(params for _, params, _ in found))
    return [seed for part in kept for seed in part], found[0][0], params, join_records([records for *_, records in found])


def restored(
    manifest: Manifest, ensemble: Ensemble, seeds: Sequence[int], folder: Path, warn: Callable[[str], None], part: int = 0
) -> tuple[int, Any, Any]:
    """Return the step, parameters and records of the last checkpoint of a part of a run; raises BadInput."""
    like = jax.eval_shape(lambda: ensemble.start(seeds))
    name = Part(part).folder
    if not (folder / name).is_dir():
        raise BadInput(f"{folder}: has no checkpoint; train the run first")
    run = manifest.identity_in(name, part)
    checkpoints = Checkpoints(folder / name, ensemble.ties, warn, run, read_only=True)
    try:
        last = checkpoints.restore(like)
    except CheckpointMismatch as error:
        raise BadInput(f"{folder}: {error}") from None
    finally:
        checkpoints.close()
    if last is None:
        raise BadInput(f"{folder}: has no checkpoint; train the run first")
    step, members, records = last
    return min(step, ensemble.steps), members.state.params, records


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
