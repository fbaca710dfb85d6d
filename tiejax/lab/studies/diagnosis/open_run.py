"""Opening a run for its diagnosis: its settings, the members of its last checkpoint, and the probes for them."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import training
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import KIND, Manifest, damaged
from tiejax.lab.runs.run_directory import CHECKPOINTS, CONFIG
from tiejax.lab.runs.train import Part
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis.probes import LONGEST, Probes, exor_probes, text_probes
from tiejax.lab.studies.diagnosis.settings import Settings, settings_of_run
from tiejax.lab.studies.exor import ensemble as exor_ensemble
from tiejax.lab.studies.text_mlm import ensemble as text_ensemble
from tiejax.lab.studies.text_mlm import text as text_mlm
from tiejax.lab.studies.untying import ensemble as untying_ensemble
from tiejax.statistics.arms import ARMS
from tiejax.training import Ensemble
from tiejax.training.records import join_records, join_seeds

TEXT_SEEDS = 3  # seeds diagnosed of a run on text, where a member takes seconds


class OpenRun(NamedTuple):
    """A run and the members of its last checkpoint.

    study: its name. params: of all members, `[seed, arm, ...]`. records: by recorder. encode: (params of a member, tokens,
    position) -> hidden states h `[contexts, width]`.
    """

    study: str
    settings: Any
    seeds: list[int]
    arms: list[str]
    step: int
    params: Any
    records: Mapping[str, Mapping[str, np.ndarray]]
    encode: Callable[[Any, Any, Any], Any]
    probes: Probes


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    return (folder / KIND).is_file() or ((folder / CONFIG).is_file() and (folder / CHECKPOINTS).is_dir())


def open_run(settings: Settings, console: Console) -> OpenRun:
    """Open the run to diagnose, with the members of its last checkpoint; raises BadInput."""
    for name in ("corpus", "input_table", "output_table", "tokenizer"):
        if getattr(settings, name) is not None:
            raise BadInput(f"--{name}: only applies to checkpoints in the hub's format, not to a run of tiejax")
    # Read once, since another process may start a new run in this directory meanwhile.
    manifest, run_settings = settings_of_run(settings.folder)
    if damage := damaged(settings.folder, manifest):
        console.warn(f"{settings.folder}: changed since the run wrote them: {', '.join(damage)}; using its checkpoint")
    if manifest.study == "text_mlm":
        return _on_text(manifest, run_settings, settings.folder, console)
    return _on_exor(manifest, run_settings, settings.folder, console)


def _on_exor(manifest: Manifest, settings: Any, folder: Path, console: Console) -> OpenRun:
    if settings.doses is not None:
        raise BadInput(f"{folder}: a run with several doses has several tasks; diagnose a run with a single distribution")
    if manifest.study == "untying":
        ensemble, arms = untying_ensemble.build_ensemble(settings), settings.untie_arms.names
    else:
        ensemble, arms = exor_ensemble.build_ensemble(settings), list(ARMS)
    model = exor_ensemble.build_model(settings)
    seeds, step, params, records = _restored_parts(manifest, ensemble, folder, console)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        return model.apply({"params": params}, tokens, position, method="encode")

    probes = exor_probes(settings.tasks[0], settings.ordered)
    return OpenRun(manifest.study, settings, seeds, arms, step, params, records, encode, probes)


def _on_text(manifest: Manifest, settings: Any, folder: Path, console: Console) -> OpenRun:
    text, planned = text_mlm.prepare(dataclasses.replace(settings, out=str(folder)), console, resume=True)
    if text.facts["fingerprint"] != manifest.text:
        raise BadInput(f"{folder}: its corpus has changed since the run was trained")
    ensemble = text_ensemble.build_ensemble(settings, text, planned)
    step, params, records = _restored(manifest, ensemble, settings.seed_list, folder, console)
    model = text_ensemble.build_model(settings, text)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        segments = (tokens != text.vocabulary.pad).astype(jnp.int32)
        states = model.apply({"params": params}, tokens, None, segments, method="encode")
        return states[jnp.arange(len(tokens)), position].astype(jnp.float32)

    names = text_ensemble.names_of_arms(settings, planned)
    probes = text_probes(text, min(settings.max_length, LONGEST))
    return OpenRun("text_mlm", settings, settings.seed_list[:TEXT_SEEDS], names, step, params, records, encode, probes)


def _restored_parts(manifest: Manifest, ensemble: Ensemble, folder: Path, console: Console) -> tuple[list[int], int, Any, Any]:
    """Return seeds, step, parameters and records of a run whose seeds may train in parts; raises BadInput.

    Parts that have not reached the step of the first are left out.
    """
    parts = [seed_list(part) for part in manifest.all_parts]
    found = [_restored(manifest, ensemble, parts[0], folder, console)]
    for number, seeds in enumerate(parts[1:], 1):
        with contextlib.suppress(BadInput):  # it has no checkpoint yet
            found.append(_restored(manifest, ensemble, seeds, folder, console, number))
    step = found[0][0]
    found = [one for one in found if one[0] == step]
    seeds = [seed for part in parts[: len(found)] for seed in part]
    if missing := sum(map(len, parts)) - len(seeds):
        console.warn(f"{folder}: {missing} seeds that were appended are still training, and left out")
    params = jax.tree.map(lambda *leaves: join_seeds(leaves, 0), *(params for _, params, _ in found))
    return seeds, step, params, join_records([records for *_, records in found])


def _restored(
    manifest: Manifest, ensemble: Ensemble, seeds: Sequence[int], folder: Path, console: Console, part: int = 0
) -> tuple[int, Any, Any]:
    """Return the step, parameters and records of the last checkpoint of a part of a run; raises BadInput."""
    like = jax.eval_shape(lambda: ensemble.start(seeds))
    name = Part(part).folder
    if not (folder / name).is_dir():
        raise BadInput(f"{folder}: has no checkpoint; train the run first")
    run = manifest.identity_in(name, part)
    checkpoints = training.Checkpoints(folder / name, ensemble.ties, console.warn, run, read_only=True)
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
