"""Should these embeddings be tied? Where the input and output tables of a checkpoint, or of a run of ours, stand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.plot import Plot
from tiejax.lab.runs.checkpoints import quiet_libraries
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import CONFIG, RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis import checkpoint_figures, checkpoint_page, run_figures, run_page, verdict
from tiejax.lab.studies.diagnosis.checkpoint import diagnose_checkpoint
from tiejax.lab.studies.diagnosis.open_run import is_run, open_run
from tiejax.lab.studies.diagnosis.run import diagnose_run
from tiejax.lab.studies.diagnosis.settings import STUDY, Settings
from tiejax.system.naming import naming
from tiejax.text.errors import CorpusError


class Diagnosis(NamedTuple):
    """All that is known of a model. verdict: the answer, line by line. page: writes the report, as `checkpoint_page.page`."""

    results: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    plots: list[Plot]
    verdict: Sequence[str]
    page: Callable[..., str]


def run(launched: Launched, console: Console) -> int:
    """Diagnose a model; return the exit status."""
    settings = launched.settings
    diagnosis = of_run(settings, console) if is_run(settings.folder) else of_checkpoint(settings, console)

    # All is known now, so that a diagnosis that fails leaves nothing behind.
    directory = RunDirectory.claim(STUDY, settings, resume=False, overwrite=launched.switches["overwrite"])
    facts = directory.write_environment({"devices": []}, launched.command)
    if diagnosis.arrays:
        directory.write_metrics(diagnosis.arrays)
    with naming(directory.figures):
        pictures = [(plot.caption, figures.save(plot.figure, directory.figures, plot.name)) for plot in diagnosis.plots]
    yaml = (directory.path / CONFIG).read_text()
    report = directory.write_report(diagnosis.page(diagnosis.results, facts, yaml, pictures))
    directory.write_results(diagnosis.results)
    directory.release()
    for line in diagnosis.verdict:
        console.say(line)
    console.result(f"report: {report}")
    return 0


def of_run(settings: Settings, console: Console) -> Diagnosis:
    """Diagnose a run of ours; raises BadInput."""
    quiet_libraries()  # what they say of a damaged checkpoint is told in one line
    opened = open_run(settings, console)
    with console.preparing() as tell:
        results = diagnose_run(opened, settings, tell)
    return Diagnosis(results, {}, run_figures.plot_all(results), verdict.of_run(results), run_page.page)


def of_checkpoint(settings: Settings, console: Console) -> Diagnosis:
    """Diagnose a checkpoint in the hub's format; raises BadInput."""
    # Blocks of rows go through the processor alone, and none of a GPU's memory is taken for them.
    jax.config.update("jax_platforms", "cpu")
    try:
        with console.preparing() as tell:
            results, arrays = diagnose_checkpoint(
                settings, tell, lambda error: console.warn(f"tokens have no texts: {as_options(error)}")
            )
    except (CheckpointError, CorpusError) as error:
        raise BadInput(as_options(error)) from None
    plots = checkpoint_figures.plot_all(results, arrays)
    return Diagnosis(results, arrays, plots, verdict.of_checkpoint(results), checkpoint_page.page)


def as_options(error: ValueError) -> str:
    """Write what is said of a checkpoint or a corpus as on a command line: fields with dashes."""
    if isinstance(error, CheckpointError):
        return error.as_options()
    return f"--{error}" if isinstance(error, CorpusError) else str(error)
