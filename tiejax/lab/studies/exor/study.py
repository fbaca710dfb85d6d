"""EXor: tied against untied masked language models, many seeds at once (Bertolotti and Cazzola, ICML 2024)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.lab.reporting.figures import Plot
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import InSeries, Looks, train_parts
from tiejax.lab.runs.train import begin
from tiejax.lab.studies.exor import dose_page, figures, page
from tiejax.lab.studies.exor.analysis import analyse, values_of
from tiejax.lab.studies.exor.claim_values import Setup
from tiejax.lab.studies.exor.claims import claims
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, count_contexts
from tiejax.lab.studies.exor.dose_response import Responses, analyse_doses
from tiejax.lab.studies.exor.dose_response import claims as dose_claims
from tiejax.lab.studies.exor.ensemble import build_ensemble, by_split, conditions_and_seeds, named_arrays
from tiejax.lab.studies.exor.plateaus import levels
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.exor.sizes import need
from tiejax.lab.studies.exor.task import EXor, bayes_risk, split, strings
from tiejax.lab.studies.exor.trajectories import trajectories
from tiejax.statistics.arms import ARMS, select_seeds
from tiejax.statistics.claims import Claim, assess_in_looks
from tiejax.training.ensemble import Ensemble
from tiejax.training.records import Records

Metrics = Mapping[str, np.ndarray]
Concluded = tuple[dict[str, Any], list[Plot]]


class Kind(NamedTuple):
    """What distinguishes the studies of EXor's models: EXor, and untying, which trains them in other arms.

    compared: the seeds and arms, as announced, where `{seeds}` is replaced by the number of seeds. arrays: (records, settings)
    -> the arrays of metrics.npz. claims: (settings of all seeds so far, arrays, scratch, number of seeds) -> the claims on so
    many first seeds. conclude: (settings, arrays, scratch) -> the body of results.json, and the figures; scratch: as in
    `trajectories`.
    """

    experiment: str
    compared: str
    arms: Sequence[str]
    build: Callable[[Any], Ensemble]
    arrays: Callable[[Records, Any], dict[str, np.ndarray]]
    claims: Callable[[Any, Metrics, Path | None, int], Sequence[Claim]]
    conclude: Callable[[Any, Metrics, Path | None], Concluded]
    page: Callable[[RunOnPage], str]


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    return train_and_report(launched, console, begin(launched, console), kind_of(launched.settings))


def kind_of(settings: Settings) -> Kind:
    """Return the study of EXor with these settings."""
    doses = f" x {counted(len(settings.tasks), 'dose')}" if settings.doses is not None else ""
    ends = (conclude, page.page) if settings.doses is None else (conclude_doses, dose_page.page)
    compared = f": {{seeds}}{doses}, tied and untied"
    return Kind("exor", compared, ARMS, build_ensemble, named_arrays, claims_on_first, *ends)


def train_and_report(
    launched: Launched,
    console: Console,
    stop: Callable[[], bool],
    kind: Kind,
    series: InSeries = InSeries(),  # noqa: B008, a constant
) -> int:
    """Train, analyse and write the report, until `stop` returns that the run was asked to stop; return the exit status."""
    settings, directory = launched.settings, launched.run
    announce(settings, kind.compared, console)

    on_disk = need(settings).disk > 0
    scratch = directory.path if on_disk and directory is not None else None

    def test(settings: Settings, records: Records, looks: Looks) -> list[dict[str, Any]]:
        of_first = functools.partial(kind.claims, settings, kind.arrays(records, settings), scratch)
        return assess_in_looks(of_first, looks.done, planned=len(looks.planned))

    trained = train_parts(
        launched,
        console,
        stop,
        kind.build,
        conditions_and_seeds,
        console.stage("analysis")(test),
        kind.arms,
        on_disk,
        series,
        tracked=by_split,
    )
    if trained is None:
        return 130
    if directory is None:
        return 0

    settings = trained.settings
    with console.stage("analysis"):
        metrics = kind.arrays(trained.records, settings)
        directory.write_metrics(metrics, in_files=on_disk)
        body, plots = kind.conclude(settings, metrics, scratch)
        if trained.looks.planned:
            body["claims"] = test(settings, trained.records, trained.looks)
    results = {
        "experiment": kind.experiment,
        "variant": settings.variant_name,
        "engine": settings.engine,
        "bits": settings.bits,
        "one": settings.tasks[0].one,
        "model": settings.model_settings,
        "steps": settings.steps,
        **body,
        **trained.facts,
        "timing": trained.timing,
    }
    return finish(launched, console, results, plots, kind.page, series.show_claims)


def announce(settings: Settings, compared: str, console: Console) -> None:
    """Print what is about to be trained, and warn if the exact risk is not computed."""
    seeds = f"{'at most ' if settings.until else ''}{counted(settings.number_of_seeds, 'seed')}"
    console.say(
        f"EXor {settings.variant_name}, {settings.model} {settings.size}{compared.format(seeds=seeds)}, "
        f"{counted(settings.steps or 0, 'step')}, {settings.engine} engine "
        f"on {jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )
    if (number := count_contexts(settings.tasks[0], settings.ordered)) > MAX_CONTEXTS:
        console.warn(f"exact risk is not computed: {number:,} contexts exceed the limit of {MAX_CONTEXTS:,}")


def claims_on_first(settings: Settings, metrics: Metrics, scratch: Path | None, seeds: int) -> Sequence[Claim]:
    """Return the registered claims on the first `seeds` seeds."""
    if settings.doses is None:
        return claims(values_of(select_seeds(metrics, slice(seeds)), setup_of(settings, settings.tasks[0]), scratch))
    among = np.tile(np.arange(settings.number_of_seeds) < seeds, len(settings.tasks))
    first = settings.of_seeds(settings.seed_list[:seeds])
    return dose_claims(respond(first, select_seeds(metrics, among), scratch)[1])


def conclude(settings: Settings, metrics: Metrics, scratch: Path | None) -> Concluded:
    """Return the body of results.json and the figures of a run of one task."""
    task, setup = settings.tasks[0], setup_of(settings, settings.tasks[0])
    bayes = {
        name: dict(zip(("accuracy", "cross_entropy"), bayes_risk(task, rows), strict=True))
        for name, rows in {"all": strings(task.bits), **split(task.bits)}.items()
    }
    body, values = analyse(metrics, setup, levels(task), scratch)
    finite = np.asarray(metrics["finite"].all(axis=(0, 2)))
    plots = []
    if finite.any():
        runs = values.runs if finite.all() else trajectories(metrics, task, setup.cycle, finite, scratch)
        plots = figures.plot_all(metrics, runs, task, body, bayes)
    return {"zero": task.zero, "bayes": {**bayes.pop("all"), "splits": bayes}, **body}, plots


def setup_of(settings: Settings, task: EXor) -> Setup:
    """Return what the analysis must know of a task of resolved settings."""
    return Setup(
        task,
        bayes_risk(task, split(task.bits)["train"])[1],
        2 * settings.half_period,
        output_bias=settings.output_bias,
        asked_only=settings.softmax == "asked",
    )


def conclude_doses(settings: Settings, metrics: Metrics, scratch: Path | None) -> Concluded:
    """Return the body of results.json and the figures of a dose-and-response run."""
    body, responses = respond(settings, metrics, scratch)
    figures_of = (dose_page.plot_dose_gap, dose_page.plot_dose_cost) if metrics["finite"].all(axis=2).any() else ()
    return body, [plot(responses) for plot in figures_of]


def respond(settings: Settings, metrics: Metrics, scratch: Path | None) -> tuple[dict[str, Any], Responses]:
    """Return the body of results.json of a dose-and-response run, and the responses."""
    setups = [setup_of(settings, task) for task in settings.tasks]
    return analyse_doses(metrics, setups, [levels(task) for task in settings.tasks], scratch)
