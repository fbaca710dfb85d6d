"""The diagnosis of a checkpoint or a run: should its embeddings be tied?"""

import jax

from tiejax.checkpoints.diagnose.checkpoint import diagnose_checkpoint
from tiejax.checkpoints.diagnose.verdict import verdict
from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.lab.runs.checkpoints import quiet_libraries
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import reserve_and_finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis import checkpoint_page, run_page
from tiejax.lab.studies.diagnosis.open_run import open_run
from tiejax.lab.studies.diagnosis.run import diagnose_run
from tiejax.lab.studies.diagnosis.settings import STUDY, is_run
from tiejax.text.errors import CorpusError


def run(launched: Launched, console: Console) -> int:
    """Diagnose a model; return the exit status."""
    return (_of_run if is_run(launched.settings.folder) else _of_checkpoint)(launched, console)


def _of_run(launched: Launched, console: Console) -> int:
    """Diagnose a run; raises BadInput."""
    quiet_libraries()  # a damaged checkpoint is reported in one line of ours
    opened = open_run(launched.settings, console)
    with console.preparing() as progress:
        results = diagnose_run(opened, launched.settings, progress)
    plots = run_page.plot_all(results)
    return reserve_and_finish(STUDY, launched, console, results, plots, run_page.page, run_page.verdict(results))


def _of_checkpoint(launched: Launched, console: Console) -> int:
    """Diagnose a checkpoint in the hub's format; raises BadInput."""
    # Blocks of rows are processed on the CPU, so that no memory of a GPU is reserved.
    jax.config.update("jax_platforms", "cpu")
    try:
        with console.preparing(announce=True) as progress, reading.shown(progress):
            results, arrays = diagnose_checkpoint(
                launched.settings.checkpoint or "",
                launched.settings.options,
                progress,
                lambda error: console.warn(f"the report shows token ids only: {_as_options(error)}"),
            )
    except (CheckpointError, CorpusError) as error:
        raise BadInput(_as_options(error)) from None
    plots = checkpoint_page.plot_all(results, arrays)
    return reserve_and_finish(STUDY, launched, console, results, plots, checkpoint_page.page, verdict(results), arrays=arrays)


def _as_options(error: ValueError) -> str:
    """Return an error's message with the names of settings spelled as flags."""
    if isinstance(error, CheckpointError):
        return error.as_options()
    return f"--{error}" if isinstance(error, CorpusError) else str(error)
