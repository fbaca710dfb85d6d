"""The settings of a diagnosis."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from tiejax.checkpoints.diagnose.options import Options
from tiejax.lab.runs import manifest
from tiejax.lab.runs.manifest import KIND
from tiejax.lab.runs.resume import reopened
from tiejax.lab.runs.run_directory import CHECKPOINTS, CONFIG
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
    """A diagnosis: how similar the input and output tables of a model are.

    Args:
        checkpoint: folder of a checkpoint in the Hugging Face format (config.json and *.safetensors, also sharded), or a run
            directory of tiejax
        corpus: text in which tokens are counted, to rank them by frequency: a text file, a folder of text files, or a .gz file
            (default: rank tokens by id)
        input_table: name of the tensor of the input embeddings (default: that of the architecture, if it is known)
        output_table: name of the tensor of the output embeddings (default: that of the architecture, if it is known)
        tokenizer: a tokenizer.json, a vocab.txt, or a name on the Hugging Face Hub (default: the checkpoint's own)
        neighbours: number of nearest neighbours compared per token
        sample: number of tokens whose neighbours are compared; neighbours are searched among all tokens
        seed: random seed of the samples
        out: directory of the diagnosis (default: runs/diagnose/NAME, where NAME is that of the checkpoint's folder)
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
        """Return the settings with all defaults filled in; raises BadInput for values that cannot be used."""
        if not self.checkpoint:
            raise BadInput(f"checkpoint: name a folder with config.json and *.safetensors: {command_line.program()} FOLDER")
        checks.check_counts(self, ("neighbours",))
        check_most("sample", self.sample)
        checks.check_not_negative(self, ("seed",))
        if self.sample < 2:
            raise BadInput(f"--sample: expected an integer >= 2, got {self.sample}")
        if self.out == "":
            raise BadInput("--out: expected the path of a directory, got ''")
        name = Path(os.path.realpath(self.folder)).name or "checkpoint"
        return dataclasses.replace(self, out=self.out or str(Path("runs", "diagnose", name)))

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint or the run, unless the checkpoint is named by its id on the hub."""
        return Path(self.checkpoint or "").expanduser()

    @property
    def options(self) -> Options:
        """The options of a checkpoint's diagnosis."""
        named = {name: getattr(self, name) for name in Options._fields}
        return Options(**named)


def settings_of_run(folder: Path) -> tuple[manifest.Manifest, Any]:
    """Return the manifest and the settings of a run; raises BadInput."""
    return reopened(folder, DIAGNOSED, "diagnosed")


def device_a_core(settings: Settings) -> bool:
    """Whether the diagnosed run trained on text with one device per core, which affects the last bits of its numbers."""
    try:
        run, run_settings = settings_of_run(settings.folder)
    except BadInput:  # not a run, or a refused one
        return False
    return run.study == text_mlm.STUDY.name and text_mlm.STUDY.device_a_core(run_settings)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    return (folder / KIND).is_file() or ((folder / CONFIG).is_file() and (folder / CHECKPOINTS).is_dir())


STUDY = Study(
    "diagnosis",
    Settings,
    CommandLine(
        description="Measure how similar the input and output embedding tables of a checkpoint are: whether they are tied, "
        "whether config.json agrees, norms by token rank, alignment, shared neighbours, the tokens whose two rows differ most, "
        "and the memory that tying would save. Writes a report with figures.",
        example="Example: PROGRAM checkpoints/pythia-160m --corpus novels/. Tables are read row by row, so "
        "a checkpoint may be larger than memory; pickle files are never opened.",
        switches={
            "overwrite": "replace the existing diagnosis in the directory",
            "quiet": "print only warnings and the path of the report",
        },
        first=("corpus", "overwrite", "out"),
        positional=("checkpoint",),
    ),
    run="tiejax.lab.studies.diagnosis.study:run",
    reserves_at_end=True,
    single_process=True,
    device_a_core=device_a_core,
    any_platform=lambda settings: is_run(settings.folder),  # tables of a checkpoint are read on the CPU
)
