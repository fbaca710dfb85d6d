"""Opening a run for its diagnosis: its settings, the members of its last checkpoint, and the probes for them."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tiejax.lab.runs.checkpoints import restored, restored_parts
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import Manifest, damaged
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis.probes import LONGEST, Probes, exor_probes, text_probes
from tiejax.lab.studies.diagnosis.settings import Settings, settings_of_run
from tiejax.lab.studies.exor import ensemble as exor_ensemble
from tiejax.lab.studies.text_mlm import ensemble as text_ensemble
from tiejax.lab.studies.text_mlm import text as text_mlm
from tiejax.lab.studies.untying import study as untying
from tiejax.statistics.arms import ARMS

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
        ensemble, arms = untying.build_ensemble(settings), settings.untie_arms.names
    else:
        ensemble, arms = exor_ensemble.build_ensemble(settings), list(ARMS)
    model = exor_ensemble.build_model(settings)
    seeds, step, params, records = restored_parts(manifest, ensemble, folder, console.warn)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        return model.apply({"params": params}, tokens, position, method="encode")

    probes = exor_probes(settings.tasks[0], settings.ordered)
    return OpenRun(manifest.study, settings, seeds, arms, step, params, records, encode, probes)


def _on_text(manifest: Manifest, settings: Any, folder: Path, console: Console) -> OpenRun:
    text, planned = text_mlm.prepare(dataclasses.replace(settings, out=str(folder)), console, resume=True)
    if text.facts["fingerprint"] != manifest.text:
        raise BadInput(f"{folder}: its corpus has changed since the run was trained")
    ensemble = text_ensemble.build_ensemble(settings, text, planned)
    step, params, records = restored(manifest, ensemble, settings.seed_list, folder, console.warn)
    model = text_ensemble.build_model(settings, text)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        segments = (tokens != text.vocabulary.pad).astype(jnp.int32)
        states = model.apply({"params": params}, tokens, None, segments, method="encode")
        return states[jnp.arange(len(tokens)), position].astype(jnp.float32)

    names = text_ensemble.names_of_arms(settings, planned)
    probes = text_probes(text, min(settings.max_length, LONGEST))
    return OpenRun("text_mlm", settings, settings.seed_list[:TEXT_SEEDS], names, step, params, records, encode, probes)
