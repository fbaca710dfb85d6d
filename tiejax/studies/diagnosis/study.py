"""Should these embeddings be tied? Where the input and output tables of a checkpoint, or of a run of ours, stand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.geometry.equivalence import THRESHOLD
from tiejax.hub.tables import CheckpointError
from tiejax.reporting import figures
from tiejax.reporting.plot import Plot
from tiejax.runs.console import Console
from tiejax.runs.launch import Launched
from tiejax.runs.run_directory import CONFIG, RunDirectory, plain
from tiejax.settings.command_line import BadInput
from tiejax.studies.diagnosis import checkpoint, checkpoint_page, run_page
from tiejax.studies.diagnosis import run as own_run
from tiejax.studies.diagnosis.settings import STUDY, Settings
from tiejax.studies.diagnosis.verdict import verdict
from tiejax.text.corpus import CorpusError


def run(launched: Launched, console: Console) -> int:
    """Diagnose a model; return the exit status."""
    settings = launched.settings
    is_run = own_run.is_run(Path(settings.checkpoint).expanduser())
    found = of_run(settings, console) if is_run else of_checkpoint(settings, console)

    # All is known now, so that a diagnosis that fails leaves nothing behind.
    directory = RunDirectory.claim(STUDY.name, settings, resume=False, overwrite=launched.switches["overwrite"])
    facts = directory.write_environment({"devices": []}, launched.command)
    if found.arrays:
        directory.write_metrics(found.arrays)
    pictures = [(plot.caption, figures.save(plot.figure, directory.figures, plot.name)) for plot in found.plots]
    report = directory.write_report(found.page(found.results, facts, (directory.path / CONFIG).read_text(), pictures))
    directory.write_results(found.results)
    directory.release()
    for line in found.verdict:
        console.say(line)
    console.result(f"report: {report}")
    return 0


class Diagnosis(NamedTuple):
    """All that is known of a model. verdict: the answer, line by line. page: writes the report."""

    results: dict[str, Any]
    arrays: dict[str, np.ndarray]
    plots: list[Plot]
    verdict: Sequence[str]
    page: Callable[..., str]


def of_run(settings: Settings, console: Console) -> Diagnosis:
    """Diagnose a run of ours; raises BadInput."""
    for name in ("corpus", "input_table", "output_table", "tokenizer"):
        if getattr(settings, name) is not None:
            raise BadInput(f"--{name}: is for checkpoints of the hub; a run of ours has its own")
    assert settings.checkpoint is not None
    opened = own_run.open_run(Path(settings.checkpoint).expanduser(), console)
    with console.preparing() as tell:
        found = own_run.diagnose(opened, tell)
    results = plain({"experiment": "diagnose", "checkpoint": settings.checkpoint, **found})
    return Diagnosis(results, {}, run_page.plot_all(results, THRESHOLD), run_page.verdict(results), run_page.page)


def of_checkpoint(settings: Settings, console: Console) -> Diagnosis:
    """Diagnose a checkpoint in the hub's format; raises BadInput."""
    try:
        results, arrays = checkpoint.diagnose(settings, console)
    except (CheckpointError, CorpusError) as error:
        raise BadInput(str(error)) from None
    plots = checkpoint_page.plot_all(results, checkpoint.curves_of(results, arrays), arrays)
    return Diagnosis(results, arrays, plots, verdict(results), checkpoint_page.page)
