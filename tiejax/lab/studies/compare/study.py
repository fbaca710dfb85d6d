"""Finished runs of one study side by side: settings that differ, claims, a figure."""

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import write_outputs
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import RESULTS_FORMAT, RunDirectory
from tiejax.lab.studies.compare import figures, page
from tiejax.lab.studies.compare.compare import compare, read
from tiejax.lab.studies.compare.settings import STUDY, labels
from tiejax.system.json_values import plain


def run(launched: Launched, console: Console) -> int:
    """Compare runs; return the exit status."""
    settings = launched.settings
    results = plain(compare(read(settings.folders, labels(settings.folders))))

    # Reserved last, so that a command that fails leaves no directory.
    directory = RunDirectory.reserve(STUDY, settings, resume=False, overwrite=launched.switches["overwrite"])
    directory.write_environment({"devices": []}, launched.command)
    shown = Console(quiet=True) if launched.switches["json"] else console
    report = write_outputs(shown, directory, settings, results, figures.plot_all(results), page.page)
    if launched.switches["json"]:
        console.json({"format": RESULTS_FORMAT, "finding": page.finding(results), **results, "report": str(report)})
        return 0
    for line in page.finding(results):
        console.say(line)
    console.result(f"report: {report}")
    return 0
