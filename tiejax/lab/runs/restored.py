"""The members of a run as its last checkpoint holds them, for commands that read runs and change nothing."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from tiejax import training
from tiejax.lab.runs.manifest import Manifest
from tiejax.lab.runs.train import Part
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.command_line import BadInput
from tiejax.training import Ensemble
from tiejax.training.records import join_records, join_seeds


def restored_parts(
    manifest: Manifest, ensemble: Ensemble, folder: Path, warn: Callable[[str], None]
) -> tuple[list[int], int, Any, Any]:
    """Return seeds, step, parameters and records of a run whose seeds may train in parts; raises BadInput.

    Parts that have not reached the step of the first are left out.
    """
    parts = [seed_list(part) for part in manifest.all_parts]
    found = [restored(manifest, ensemble, parts[0], folder, warn)]
    for number, seeds in enumerate(parts[1:], 1):
        with contextlib.suppress(BadInput):  # it has no checkpoint yet
            found.append(restored(manifest, ensemble, seeds, folder, warn, number))
    step = found[0][0]
    found = [one for one in found if one[0] == step]
    seeds = [seed for part in parts[: len(found)] for seed in part]
    if missing := sum(map(len, parts)) - len(seeds):
        warn(f"{folder}: {missing} seeds that were appended are still training, and left out")
    params = jax.tree.map(lambda *leaves: join_seeds(leaves, 0), *(params for _, params, _ in found))
    return seeds, step, params, join_records([records for *_, records in found])


def restored(
    manifest: Manifest, ensemble: Ensemble, seeds: Sequence[int], folder: Path, warn: Callable[[str], None], part: int = 0
) -> tuple[int, Any, Any]:
    """Return the step, parameters and records of the last checkpoint of a part of a run; raises BadInput."""
    like = jax.eval_shape(lambda: ensemble.start(seeds))
    name = Part(part).folder
    if not (folder / name).is_dir():
        raise BadInput(f"{folder}: has no checkpoint; train the run first")
    run = manifest.identity_in(name, part)
    checkpoints = training.Checkpoints(folder / name, ensemble.ties, warn, run, read_only=True)
    try:
        last = checkpoints.restore(like)
    except training.CheckpointMismatch as error:
        raise BadInput(f"{folder}: {error}") from None
    finally:
        checkpoints.close()
    if last is None:
        raise BadInput(f"{folder}: has no checkpoint; train the run first")
    step, members, records = last
    return min(step, ensemble.steps), members.state.params, records
