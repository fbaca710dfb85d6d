"""The end of a run: figures, report, and the results, which mark it as finished."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import CONFIG, REPORT, RESULTS_FORMAT, RunDirectory
from tiejax.lab.settings.study import Study
from tiejax.system.json_values import plain

Page = Callable[[RunOnPage], str]


def finish(
    launched: Launched,
    console: Console,
    results: Mapping[str, Any],
    plots: Sequence[figures.Plot],
    page: Page,
    show_claims: bool = True,
) -> int:
    """Write figures, report and results; show warnings, the path of the report, and claims if asked; return the exit status.

    results: also as numpy scalars, and with numbers that are not finite, which become None. See `write_outputs`.
    """
    assert launched.run is not None
    results = plain(results)
    if results["excluded_seeds"]:
        for row in results["non_finite"]:
            console.warn(f"{row['arm']} seed {row['seed']} became non-finite (seen at step {row['step']})")
        if excluded := [seed for seed in results["excluded_seeds"] if seed not in results["seeds"]]:
            console.warn(f"excluded from the statistics: seeds {', '.join(map(str, excluded))}")
    report = write_outputs(console, launched.run, launched.settings, results, plots, page)
    launched.tracker.end(results["claims"])
    if show_claims:
        console.claims(results["claims"])
    console.result(f"report: {report}")
    return 0


def reserve_and_finish(
    study: Study,
    launched: Launched,
    console: Console,
    results: Mapping[str, Any],
    plots: Sequence[figures.Plot],
    page: Page,
    finding: Sequence[str],
    devices: Sequence[str] = (),
    arrays: Mapping[str, np.ndarray] | None = None,
) -> int:
    """Write the run of a command that does not train; show the finding and the path of the report; return the exit status.

    The run directory is reserved only now, so that a command that fails leaves nothing behind.

    devices: that computed, for the report. arrays: for metrics.npz. See `write_outputs`.
    """
    directory = RunDirectory.reserve(study, launched.settings, resume=False, overwrite=launched.switches["overwrite"])
    directory.write_environment({"devices": list(devices)}, launched.command)
    if arrays:
        directory.write_metrics(arrays)
    as_json = launched.switches.get("json", False)
    shown = Console(quiet=True) if as_json else console
    report = write_outputs(shown, directory, launched.settings, results, plots, page)
    if as_json:
        console.json({"format": RESULTS_FORMAT, "finding": finding, **results, "report": str(report)})
        return 0
    for line in finding:
        console.say(line)
    console.result(f"report: {report}")
    return 0


def write_outputs(
    console: Console, run: RunDirectory, settings: Any, results: Mapping[str, Any], plots: Sequence[figures.Plot], page: Page
) -> Path:
    """Write figures, report and results, which mark the run as finished; return the path of the report.

    page: renders the report as HTML.
    """
    with console.stage("figures"):
        pictures = [(plot.caption, figures.save(plot.figure, run.figures, plot.name)) for plot in plots]
        written = [picture.with_suffix(suffix) for _, picture in pictures for suffix in (".png", ".pdf")]
        run.add(written)
        for file in set(run.manifest.files) - {str(path.relative_to(run.path)) for path in written}:
            if file.startswith(f"{run.figures.name}/"):  # of an earlier version, or of fewer seeds
                run.drop(file)
        yaml = (run.path / CONFIG).read_text()
        html = page(RunOnPage(results, dataclasses.asdict(settings), yaml, run.environment, pictures))
        run.write(REPORT, html.encode())
    run.write_results(results)
    run.release()
    return run.path / REPORT
