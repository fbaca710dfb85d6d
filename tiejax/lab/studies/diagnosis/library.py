"""The diagnosis as a function: `tiejax.diagnose`."""

import os
import re
from typing import Any

from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis.checkpoint import diagnose_checkpoint
from tiejax.lab.studies.diagnosis.open_run import is_run, open_run
from tiejax.lab.studies.diagnosis.run import diagnose_run
from tiejax.lab.studies.diagnosis.settings import Settings


class DiagnosisError(ValueError):
    """A model that cannot be diagnosed: one line that begins with the argument or the file to blame."""


def diagnose(
    folder: str | os.PathLike[str],
    corpus: str | None = None,
    tokenizer: str | None = None,
    input_table: str | None = None,
    output_table: str | None = None,
    neighbours: int = 10,
    sample: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Say where the input and output embedding tables of a model stand, as results.json of a diagnosis does.

    folder: a checkpoint in the hub's format (config.json and *.safetensors), or a run directory of ours. Of a checkpoint,
    corpus: a text file, a folder of them, or .gz, in which its tokens are counted; tokenizer: a tokenizer.json, a vocab.txt,
    or a name on the hub; input_table, output_table: tensors, where their usual names do not find them; neighbours: how many
    are compared, of `sample` tokens drawn from `seed`. A checkpoint is read by rows, and may be larger than the memory.

    Nothing is printed, and nothing is changed in a run that is read; prepared text is made anew where it is gone. Raises a
    ValueError of one line, CheckpointError, CorpusError or DiagnosisError, that names the argument or the file to blame.
    """
    try:
        settings = Settings(
            checkpoint=os.fspath(folder),
            corpus=corpus,
            input_table=input_table,
            output_table=output_table,
            tokenizer=tokenizer,
            neighbours=neighbours,
            sample=sample,
            seed=seed,
        ).resolved()
        if is_run(settings.folder):
            return diagnose_run(open_run(settings, Console(silent=True)), settings)
        return diagnose_checkpoint(settings)[0]
    except BadInput as error:
        # What is said on a command line spells settings as options.
        raise DiagnosisError(re.sub(r"(?<![\w/-])--(?=[a-z])", "", str(error))) from None
