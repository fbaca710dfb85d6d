"""The settings of a run that another command reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiejax.lab.runs import manifest
from tiejax.lab.runs.run_directory import CONFIG, RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study


def reopened(folder: Path, studies: Mapping[str, Study], purpose: str) -> tuple[manifest.Manifest, Any]:
    """Return the manifest and the settings of a run.

    Args:
        folder: the run directory.
        studies: the studies whose runs are accepted, by name.
        purpose: what can be done with runs of these studies, as a participle, such as "diagnosed".

    Raises:
        BadInput: The folder contains no usable run of these studies, or its settings were edited.
    """
    run = RunDirectory.opened(folder)
    if run.study not in studies:
        raise BadInput(f"{folder}: is a run of {run.study}; only runs of {', '.join(studies)} can be {purpose}")
    study = studies[run.study]
    try:
        given, _ = command_line.parse(study.settings, study.command, [], base=folder / CONFIG)
        settings = given.resolved()
    except BadInput as error:
        raise BadInput(f"{folder / CONFIG}: is not the configuration of a run ({error})") from None
    if by_variant := getattr(settings, "by_variant", None):
        names = ", ".join(str(folder / name) for name in by_variant)
        raise BadInput(f"{folder}: contains runs of several variants; name one of them: {names}")
    before = manifest.with_later(run.settings, study.settings(), study.may_change)
    if changed := manifest.differences(before, manifest.settings_of(settings, study.may_change)):
        raise BadInput(f"{folder / CONFIG}: was edited since the run was started ({'; '.join(changed)})")
    return run, settings
