"""The diagnosis as a function, `tiejax.lab.diagnose`."""

import os
import re
from typing import Any

from tiejax.checkpoints.diagnose.checkpoint import diagnose_checkpoint
from tiejax.checkpoints.diagnose.options import Options
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis.open_run import open_run
from tiejax.lab.studies.diagnosis.run import diagnose_run
from tiejax.lab.studies.diagnosis.settings import Settings, is_run


class DiagnosisError(ValueError):
    """Raised for a model that cannot be diagnosed; the message is one line that starts with the argument or the file."""


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
    """Measure how similar the input and output embedding tables of a model are.

    A checkpoint is read row by row, and may be larger than memory. Nothing is printed, and a run directory is not changed;
    the prepared text of a run on text is prepared again if it is missing.

    Args:
        folder: a checkpoint in the Hugging Face format (config.json and *.safetensors), its id on the hub, or a run directory
            of tiejax
        corpus: a text file, a folder of text files, or a .gz file, in which the checkpoint's tokens are counted
        tokenizer: a tokenizer.json, a vocab.txt, or a name on the Hugging Face Hub; by default the checkpoint's own
        input_table: name of the input table's tensor; by default, that of the architecture, if it is known
        output_table: name of the output table's tensor; by default, likewise
        neighbours: number of nearest neighbours compared per token
        sample: number of tokens whose neighbours are compared
        seed: random seed of the samples

    Returns:
        The measures: the content of results.json as written by `tiejax diagnose`.

        Of a checkpoint: `fact` is `untied` (two tables are stored, and some rows differ), `equal` (two tables are stored, and
        are equal in every value: tied) or `absent` (one table is read: tied if `check["answer"]` is "agrees"; `head` is False
        if the architecture predicts no tokens, and `form` says how a table is stored that is not read). `alignment` has the
        mean cosines `identity`, `procrustes` and `least_squares`; like `neighbours`, `canonical`, `published`, `standing` and
        `tokens`, it compares two different tables, and is None unless `fact` is `untied`. `standing` is `near`, `between`,
        `apart` or `unclear`. The guide (docs/diagnose.md) describes all entries.

        Of a run: `alignment` is a list of members for each arm, each with `tied`, True or False, and the scores of its two
        tables, or, if it is tied, of its table and those of the untied member of the same seed, if there is one.

    Raises:
        CheckpointError: if the checkpoint cannot be used
        CorpusError: if the corpus cannot be read
        DiagnosisError: if an argument or a run directory cannot be used
    """
    try:
        options = Options(corpus, tokenizer, input_table, output_table, neighbours, sample, seed)
        settings = Settings(os.fspath(folder), **options._asdict()).resolved()
        if is_run(settings.folder):
            return diagnose_run(open_run(settings, Console(silent=True)), settings)
        return diagnose_checkpoint(os.fspath(folder), options)[0]
    except BadInput as error:
        # Messages for the command line spell the settings as flags.
        raise DiagnosisError(re.sub(r"(?<![\w/-])--(?=[a-z])", "", str(error))) from None
