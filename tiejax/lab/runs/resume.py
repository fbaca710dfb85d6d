"""What a command asks for, and what an interrupted run goes on from: its own settings, its own text and tokenizer."""

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.lab.runs import contents
from tiejax.lab.runs.manifest import is_as_written
from tiejax.lab.runs.run_directory import CONFIG, RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study

DATA, TOKENIZER = "data.json", "tokenizer.json"  # of a run on text, in its directory


class Request(NamedTuple):
    """What a command line asks for. settings: resolved. out: the run directory, wherever it lies now."""

    settings: Any
    switches: dict[str, bool]
    out: Path
    argv: Sequence[str]

    @property
    def command(self) -> str:
        """The command as somebody else would repeat it: from the start."""
        words = [word for word in self.argv if word not in ("--resume", "--overwrite")]
        return f"{command_line.program()} {shlex.join(words)}".rstrip()


def read(study: Study, argv: Sequence[str]) -> Request:
    """Return what `argv` asks for, fit for what its run directory holds; a resumed run starts from its own config.yaml.

    Nothing is written. Raises BadInput.
    """
    given, switches = command_line.parse(study.settings, study.command, argv)
    out = Path(given.out or given.resolved().out or "")
    resume, overwrite = switches.get("resume", False), switches["overwrite"]
    contents.check(out, overwrite)
    if "resume" not in switches and RunDirectory.state(out) == "unfinished" and not overwrite:
        raise BadInput(f"--out {out}: holds an unfinished run; name another directory, or --overwrite it")
    RunDirectory.check(out, resume, overwrite)
    if (resume or overwrite) and (out / CONFIG).exists():
        RunDirectory.check_study(out, study.name, "resume" if resume else "overwrite")
    settings = _resumed(study, argv, out) if resume else given.resolved()
    # Where it is now: a run directory may have been moved.
    return Request(dataclasses.replace(settings, out=str(out)), switches, out, argv)


def parsed(study: Study, argv: Sequence[str]) -> Request:
    """Return what `argv` asks for without a look at the run directory; raises BadInput."""
    given, switches = command_line.parse(study.settings, study.command, argv)
    settings = given.resolved()
    return Request(settings, switches, Path(settings.out), argv)


def _resumed(study: Study, argv: Sequence[str], out: Path) -> Any:
    """Return the settings that the run in `out` was started with; raises BadInput if others are asked for."""
    before, _ = command_line.parse(study.settings, study.command, [], base=out / CONFIG)
    now, _ = command_line.parse(study.settings, study.command, argv, base=out / CONFIG)
    before = dataclasses.replace(before, **{name: getattr(now, name) for name in study.may_change})
    now = dataclasses.replace(now, out=before.out)
    if changed := command_line.differences(before, now):
        # A null that stands for the default that the run was started with is no difference.
        with contextlib.suppress(BadInput):
            changed = command_line.differences(before, now.resolved())
    if changed:
        raise BadInput(f"--resume: {out} was started with another configuration ({'; '.join(changed)})")
    return before.resolved()


def trained_tokenizer(settings: Any, resume: bool) -> str | None:
    """Return the file of the vocabulary that was trained for a run on text that is resumed, None if there is none.

    Raises BadInput if that is damaged.
    """
    trained = Path(settings.out, TOKENIZER)
    if settings.tokenizer is not None or not resume or not trained.exists():
        return None
    written = RunDirectory.opened(trained.parent).files.get(TOKENIZER)
    if written is not None and not is_as_written(trained, written):
        raise BadInput(f"--resume: {trained} is damaged; put its own back, or --overwrite the run")
    return str(trained)


def keep_text(run: RunDirectory, facts: Mapping[str, Any], tokenizer: bytes) -> dict[str, Any]:
    """Keep in the run directory what a run is trained on; return what it was started with. Raises BadInput if that differs.

    facts: of the text, with its `fingerprint`.
    """
    run.bind(facts["fingerprint"])
    # A vocabulary trained anew would be another one: the run keeps its own.
    run.keep(TOKENIZER, tokenizer)
    before: dict[str, Any] = json.loads(run.keep(DATA, json.dumps(facts, indent=2).encode()))
    return before
