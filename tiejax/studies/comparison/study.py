"""Runs of one study beside each other: settings that differ, claims, one figure."""

import dataclasses

from tiejax.reporting import figures
from tiejax.reporting.page import RunOnPage
from tiejax.runs.console import Console
from tiejax.runs.launch import Launched
from tiejax.runs.run_directory import CONFIG, RunDirectory, plain
from tiejax.runs.writing import naming
from tiejax.studies.comparison import page, plots
from tiejax.studies.comparison.beside import compare
from tiejax.studies.comparison.finished_run import read
from tiejax.studies.comparison.settings import STUDY, labels


def run(launched: Launched, console: Console) -> int:
    """Compare runs; return the exit status."""
    settings = launched.settings
    results = plain(compare(read(settings.folders, labels(settings.folders))))

    # All is known now, so that a comparison that fails leaves nothing behind.
    directory = RunDirectory.claim(STUDY, settings, resume=False, overwrite=launched.switches["overwrite"])
    facts = directory.write_environment({"devices": []}, launched.command)
    with naming(directory.figures):
        pictures = [(plot.caption, figures.save(plot.figure, directory.figures, plot.name)) for plot in plots.plot_all(results)]
    yaml = (directory.path / CONFIG).read_text()
    report = directory.write_report(page.page(RunOnPage(results, dataclasses.asdict(settings), yaml, facts, pictures)))
    directory.write_results(results)
    directory.release()
    for line in page.finding(results):
        console.say(line)
    console.result(f"report: {report}")
    return 0
