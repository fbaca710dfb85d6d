"""The diagnosis of a checkpoint or a run: should its embeddings be tied?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.checkpoints.diagnose.checkpoint import diagnose_checkpoint
from tiejax.checkpoints.diagnose.verdict import verdict
from tiejax.checkpoints.hub import reading
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.lab.reporting.figures import Plot
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.runs.checkpoints import quiet_libraries
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import write_outputs
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis import checkpoint_page, run_page
from tiejax.lab.studies.diagnosis.open_run import open_run
from tiejax.lab.studies.diagnosis.run import diagnose_run
from tiejax.lab.studies.diagnosis.settings import STUDY, Settings, is_run
from tiejax.text.errors import CorpusError


class Diagnosis(NamedTuple):
    """A finished diagnosis. arrays: for metrics.npz. verdict: sentences. page: renders it."""

    results: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    plots: list[Plot]
    verdict: Sequence[str]
    page: Callable[[RunOnPage], str]


def run(launched: Launched, console: Console) -> int:
    """Diagnose a model; return the exit status."""
    settings = launched.settings
    diagnosis = _of_run(settings, console) if is_run(settings.folder) else _of_checkpoint(settings, console)

    # The directory is reserved only now, so that a failed diagnosis leaves nothing behind.
    directory = RunDirectory.reserve(STUDY, settings, resume=False, overwrite=launched.switches["overwrite"])
    directory.write_environment({"devices": []}, launched.command)
    if diagnosis.arrays:
        directory.write_metrics(diagnosis.arrays)
    report = write_outputs(console, directory, settings, diagnosis.results, diagnosis.plots, diagnosis.page)
    for line in diagnosis.verdict:
        console.say(line)
    console.result(f"report: {report}")
    return 0


def _of_run(settings: Settings, console: Console) -> Diagnosis:
    """Diagnose a run; raises BadInput."""
    quiet_libraries()  # a damaged checkpoint is reported in one line of ours
    opened = open_run(settings, console)
    with console.preparing() as progress:
        results = diagnose_run(opened, settings, progress)
    return Diagnosis(results, {}, run_page.plot_all(results), run_page.verdict(results), run_page.page)


def _of_checkpoint(settings: Settings, console: Console) -> Diagnosis:
    """Diagnose a checkpoint in the hub's format; raises BadInput."""
    # Blocks of rows are processed on the CPU, so that no memory of a GPU is reserved.
    jax.config.update("jax_platforms", "cpu")
    try:
        with console.preparing(announce=True) as progress, reading.shown(progress):
            results, arrays = diagnose_checkpoint(
                settings.checkpoint or "",
                settings.options,
                progress,
                lambda error: console.warn(f"the report shows token ids only: {_as_options(error)}"),
            )
    except (CheckpointError, CorpusError) as error:
        raise BadInput(_as_options(error)) from None
    plots = checkpoint_page.plot_all(results, arrays)
    return Diagnosis(results, arrays, plots, verdict(results), checkpoint_page.page)


def _as_options(error: ValueError) -> str:
    """Return an error's message with the names of settings spelled as flags."""
    if isinstance(error, CheckpointError):
        return error.as_options()
    return f"--{error}" if isinstance(error, CorpusError) else str(error)
