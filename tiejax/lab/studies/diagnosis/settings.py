"""What may be asked of a diagnosis."""

import dataclasses
from pathlib import Path
from typing import Any

from tiejax.checkpoints.diagnose.options import Options
from tiejax.lab.runs import manifest
from tiejax.lab.runs.run_directory import CONFIG, RunDirectory
from tiejax.lab.settings import checks, command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.sizes import check_most
from tiejax.lab.settings.study import Study
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.text_mlm import settings as text_mlm
from tiejax.lab.studies.untying import settings as untying

# The studies whose runs can be diagnosed, by name.
DIAGNOSED = {study.name: study for study in (exor.STUDY, untying.STUDY, text_mlm.STUDY)}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where the input and output tables of a checkpoint stand.

    Args:
        checkpoint: folder of a checkpoint in the hub's format, or directory of a run of ours
        corpus: a text file, a folder of them, or .gz, in which the checkpoint's tokenizer counts tokens, for their ranks of
            frequency (default: tokens rank by their ids)
        input_table: tensor of the input embeddings (default: found by the usual names of the model's family)
        output_table: tensor of the output embeddings (default: found by the usual names of the model's family)
        tokenizer: a tokenizer.json, a vocab.txt, or a name on the hub (default: the checkpoint's own)
        neighbours: how many nearest neighbours of a token are compared
        sample: of how many tokens; neighbours are looked for among all
        seed: of what is drawn
        out: directory of the diagnosis (default: runs/diagnose/NAME, by the folder's name)
    """

    checkpoint: str | None = None
    corpus: str | None = None
    input_table: str | None = None
    output_table: str | None = None
    tokenizer: str | None = None
    neighbours: int = 10
    sample: int = 2000
    seed: int = 0
    out: str | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default written out; raises BadInput if they make no sense."""
        if not self.checkpoint:
            raise BadInput(f"needs a checkpoint: {command_line.program()} FOLDER, with config.json and *.safetensors in it")
        checks.check_counts(self, ("neighbours",))
        check_most("sample", self.sample)
        checks.check_not_negative(self, ("seed",))
        if self.sample < 2:
            raise BadInput(f"--sample: must be at least 2, got {self.sample}")
        if self.out == "":
            raise BadInput("--out: must name a directory, got nothing")
        name = Path(self.checkpoint).expanduser().absolute().resolve().name or "checkpoint"
        return dataclasses.replace(self, out=self.out or str(Path("runs", "diagnose", name)))

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint or the run."""
        return Path(self.checkpoint or "").expanduser()

    @property
    def options(self) -> Options:
        """The options of a checkpoint's diagnosis."""
        named = {name: getattr(self, name) for name in Options._fields}
        return Options(**named)


def settings_of_run(folder: Path) -> tuple[manifest.Manifest, Any]:
    """Return what a run is and holds, and its own settings; raises BadInput."""
    made = RunDirectory.opened(folder)
    name = made.study
    if name not in DIAGNOSED:
        raise BadInput(f"{folder}: is a run of {name}; {', '.join(DIAGNOSED)} can be diagnosed")
    study = DIAGNOSED[name]
    try:
        given, _ = command_line.parse(study.settings, study.command, [], base=folder / CONFIG)
        settings = given.resolved()
    except BadInput as error:
        raise BadInput(f"{folder / CONFIG}: is not the configuration of a run ({error})") from None
    if changed := manifest.differences(made.settings, manifest.settings_of(settings, study.may_change)):
        raise BadInput(f"{folder / CONFIG}: was edited since the run was started ({'; '.join(changed)})")
    return made, settings


def device_a_core(settings: Settings) -> bool:
    """Say whether a text run is diagnosed that wanted every core to be a device: its numbers depend on it in the last bits."""
    try:
        made, of_run = settings_of_run(settings.folder)
    except BadInput:  # no run, or one that the study refuses
        return False
    return made.study == text_mlm.STUDY.name and text_mlm.STUDY.device_a_core(of_run)


def _run(launched: Any, console: Any) -> int:
    from tiejax.lab.studies.diagnosis.study import run

    return run(launched, console)


STUDY = Study(
    "diagnosis",
    Settings,
    CommandLine(
        description="Say where the input and output embedding tables of a checkpoint stand: tied in fact or not, whether "
        "config.json agrees, norms by token rank, alignment, shared neighbours, tokens whose roles differ most, the memory "
        "that tying would save. Leaves a report with figures.",
        example="Example: PROGRAM checkpoints/pythia-160m --corpus novels/. Tables are read by rows, so "
        "that a checkpoint may be larger than the memory; pickles are never opened.",
        switches={
            "overwrite": "remove the diagnosis that is in the directory and start anew",
            "quiet": "print nothing but warnings and the path of the report",
        },
        first=("corpus", "overwrite", "out"),
        positional={
            "checkpoint": "folder of a checkpoint in the hub's format (config.json and *.safetensors, also sharded), or the "
            "directory of a run of ours"
        },
    ),
    run=_run,
    claims_at_end=True,
    single_process=True,
    device_a_core=device_a_core,
)
