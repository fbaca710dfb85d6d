"""The settings of a command, checked against its run directory; the settings of a run that is resumed or read."""

import contextlib
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.lab.runs import manifest
from tiejax.lab.runs.manifest import Manifest
from tiejax.lab.runs.run_directory import CONFIG, RunDirectory, check_contents
from tiejax.lab.settings import checks, command_line
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study


class Request(NamedTuple):
    """A parsed command line. settings: resolved. out: the current path of the run directory."""

    settings: Any
    switches: dict[str, bool]
    out: Path
    argv: Sequence[str]

    @property
    def command(self) -> str:
        """The command line that repeats the run from scratch."""
        words = [word for word in self.argv if word not in ("--resume", "--overwrite")]
        return f"{command_line.program()} {shlex.join(words)}".rstrip()


def read(study: Study, argv: Sequence[str]) -> Request:
    """Parse `argv` and check it against the run directory; the settings of a resumed run are those in its config.yaml.

    Nothing is written. Raises BadInput.
    """
    given, switches = command_line.parse(study.settings, study.command, argv)
    asked: Any = None if given.out else given.resolved()  # settings decide the default directory
    out = Path(given.out or asked.out or "")
    resume, overwrite = switches.get("resume", False), switches["overwrite"]
    check_contents(out, overwrite)
    if "resume" not in switches and RunDirectory.state(out) == "unfinished" and not overwrite:
        raise BadInput(f"--out {out}: contains an unfinished run; name another directory, or --overwrite it")
    RunDirectory.check(out, resume, overwrite)
    if (resume or overwrite) and (out / CONFIG).exists():
        RunDirectory.check_study(out, study.name, "resume" if resume else "overwrite")
    settings = _resumed(study, argv, out) if resume else asked or given.resolved()
    # The run directory may have been moved since the run started.
    return Request(dataclasses.replace(settings, out=str(out)), switches, out, argv)


def parsed(study: Study, argv: Sequence[str]) -> Request:
    """Parse `argv` without a check of the run directory; raises BadInput."""
    given, switches = command_line.parse(study.settings, study.command, argv)
    settings = given.resolved()
    return Request(settings, switches, Path(settings.out), argv)


def _resumed(study: Study, argv: Sequence[str], out: Path) -> Any:
    """Return the settings of the run in `out`, with appended seeds; raises BadInput if `argv` asks for other changes."""
    before, _ = command_line.parse(study.settings, study.command, [], base=out / CONFIG)
    now, _ = command_line.parse(study.settings, study.command, argv, base=out / CONFIG)
    longer = [name for name in study.extends if checks.is_longer(getattr(now, name), getattr(before, name))]
    before = dataclasses.replace(before, **{name: getattr(now, name) for name in (*study.may_change, *longer)})
    if study.appends and before.until is now.until is None:
        before = dataclasses.replace(before, seeds=_appended(before.seeds, now.seeds))
        if now.seeds is None or checks.seed_list(now.seeds) == checks.seed_list(before.seeds):
            now = dataclasses.replace(now, seeds=before.seeds)
    now = dataclasses.replace(now, out=before.out)
    if changed := command_line.differences(before, now):
        # None is not a difference if it resolves to the value with which the run was started.
        with contextlib.suppress(BadInput):
            changed = command_line.differences(before, now.resolved())
    if changed:
        names = [line.partition(":")[0] for line in changed]
        only = "; seeds can only be appended" if study.appends and "seeds" in names else ""
        for name in study.extends:
            if name in names:
                only += f"; {name} can only be added{'' if getattr(before, name) else ', to a run of several variants'}"
        raise BadInput(f"--resume: {out} was started with other settings ({'; '.join(changed)}){only}")
    return before.resolved()


def _appended(before: Any, now: Any) -> Any:
    """Return the setting `seeds` of a run with those that `now` appends; that of the run if `now` removes or reorders some."""
    if now is None:
        return before
    checks.check_seeds(now)
    return now if checks.extends(now, before) else before


def reopened(folder: Path, studies: Mapping[str, Study], purpose: str) -> tuple[Manifest, Any]:
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
