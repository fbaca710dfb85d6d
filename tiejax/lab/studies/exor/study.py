"""EXor: tied against untied masked language models, many seeds at once (Bertolotti and Cazzola, ICML 2024)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax.lab.reporting.plot import Plot
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import InSeries, Looks, train_parts
from tiejax.lab.runs.train import begin
from tiejax.lab.studies.exor import dose_figures, dose_page, figures, page
from tiejax.lab.studies.exor.analysis import analyse, registered_claims
from tiejax.lab.studies.exor.claim_values import Setup
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, count_contexts
from tiejax.lab.studies.exor.dose_response import Responses, analyse_doses
from tiejax.lab.studies.exor.dose_response import claims as dose_claims
from tiejax.lab.studies.exor.ensemble import (
    build_engine,
    build_ensemble,
    by_split,
    conditions_and_seeds,
    named_arrays,
)
from tiejax.lab.studies.exor.plateaus import Level, levels
from tiejax.lab.studies.exor.residual_bound import check
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.exor.sizes import need
from tiejax.lab.studies.exor.task import EXor, bayes_risk, split, strings
from tiejax.lab.studies.exor.trajectories import trajectories
from tiejax.statistics.arms import ARMS, select_seeds
from tiejax.statistics.claims import Claim, assess_in_looks
from tiejax.system.json_values import plain
from tiejax.training.records import Records


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    stop, facts = begin(launched, console)
    return train_and_report(launched, console, stop, facts, InSeries())


def train_and_report(
    launched: Launched, console: Console, stop: Callable[[], bool], facts: Mapping[str, Any], series: InSeries
) -> int:
    """Train, analyse and write the report; return the exit status.

    Args:
        launched: the process.
        console: the console.
        stop: returns whether the run was asked to stop.
        facts: content of environment.json.
        series: the place of the run among several.
    """
    settings, directory = launched.settings, launched.run
    announce(settings, console)

    on_disk = need(settings).disk > 0
    scratch = directory.path if on_disk and directory is not None else None
    test = functools.partial(test_claims, scratch=scratch)
    trained = train_parts(launched, console, stop, build_ensemble, conditions_and_seeds, test, ARMS, on_disk, series, by_split)
    if trained is None:
        return 130
    if directory is None:
        return 0

    settings = trained.settings
    metrics = named_arrays(trained.records, settings)
    directory.write_metrics(metrics, in_files=on_disk)
    if settings.doses is None:
        body, plots = conclude(settings, metrics, scratch)
        body["residual_bound"] = check(trained.params, build_engine(settings), settings.ordered)
    else:
        body, plots = conclude_doses(settings, metrics, scratch)
    if trained.looks.planned:
        body["claims"] = test(settings, trained.records, trained.looks)
    results = plain(
        {
            "experiment": "exor",
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
    )
    write_page = page.page if settings.doses is None else dose_page.page
    finish(directory, launched.settings, results, facts, plots, write_page, console, launched.tracker)
    return 0


def test_claims(settings: Settings, records: Records, looks: Looks, scratch: Path | None) -> list[dict[str, Any]]:
    """Test the claims at the looks so far; return their rows. settings, records: of all seeds so far."""
    metrics = named_arrays(records, settings)
    return assess_in_looks(
        lambda seeds: claims_on_first(settings, metrics, seeds, scratch), looks.done, planned=len(looks.planned)
    )


def claims_on_first(settings: Settings, metrics: Mapping[str, np.ndarray], seeds: int, scratch: Path | None) -> Sequence[Claim]:
    """Return the registered claims on the first `seeds` seeds."""
    first = settings.of_seeds(settings.seed_list[:seeds])
    if settings.doses is None:
        task = settings.tasks[0]
        setup = setup_of(settings, task, bayes_risk(task, split(task.bits)["train"])[1])
        return registered_claims(select_seeds(metrics, slice(seeds)), setup, scratch)
    among = np.tile(np.arange(settings.number_of_seeds) < seeds, len(settings.tasks))
    return dose_claims(respond(first, select_seeds(metrics, among), scratch)[1])


def announce(settings: Settings, console: Console) -> None:
    """Print what is about to be trained, and warn if the exact risk is not computed."""
    doses = f" x {len(settings.tasks)} doses" if settings.doses is not None else ""
    seeds = f"{'at most ' if settings.until else ''}{counted(settings.number_of_seeds, 'seed')}"
    console.say(
        f"EXor {settings.variant_name}, {settings.model} {settings.size}: {seeds}{doses}, tied and "
        f"untied, {settings.steps:,} steps, {settings.engine} engine on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, in {settings.out}"
    )
    if (number := count_contexts(settings.tasks[0], settings.ordered)) > MAX_CONTEXTS:
        console.warn(f"exact risk is not computed: {number:,} contexts exceed the limit of {MAX_CONTEXTS:,}")


def conclude(settings: Settings, metrics: Mapping[str, np.ndarray], scratch: Path | None) -> tuple[dict[str, Any], list[Plot]]:
    """Return the body of results.json and the figures of a run of one task; scratch: as in `trajectories`."""
    task = settings.tasks[0]
    rows = {"all": strings(task.bits), **split(task.bits)}
    bayes = {
        name: dict(zip(("accuracy", "cross_entropy"), bayes_risk(task, split_rows), strict=True))
        for name, split_rows in rows.items()
    }
    setup = setup_of(settings, task, bayes["train"]["cross_entropy"])
    body, values = analyse(metrics, setup, levels_of(task), scratch)
    finite = np.asarray(metrics["finite"].all(axis=(0, 2)))
    plots = []
    if finite.any():
        published_first = settings.figure_style == "published"
        runs = values.runs if finite.all() else trajectories(metrics, task, setup.cycle, finite, scratch)
        plots = figures.plot_all(metrics, runs, task, body["uses"], bayes, published_first, body["plateaus"])
    return {"zero": task.zero, "bayes": {**bayes.pop("all"), "splits": bayes}, **body}, plots


def setup_of(settings: Settings, task: EXor, bayes_cross_entropy: float) -> Setup:
    """Return what the analysis must know of a task of resolved settings; bayes_cross_entropy: of the training split."""
    return Setup(
        task,
        bayes_cross_entropy,
        2 * settings.half_period,
        output_bias=settings.output_bias,
        asked_only=settings.softmax == "asked",
    )


def levels_of(task: EXor) -> list[Level]:
    """Return the plateaus of a task, or none if its contexts are too many."""
    return levels(task) if count_contexts(task, ordered=False) <= MAX_CONTEXTS else []


def conclude_doses(
    settings: Settings, metrics: Mapping[str, np.ndarray], scratch: Path | None
) -> tuple[dict[str, Any], list[Plot]]:
    """Return the body of results.json and the figures of a dose-and-response run; scratch: as in `trajectories`."""
    body, responses = respond(settings, metrics, scratch)
    return body, dose_figures.plot_doses(responses) if metrics["finite"].all(axis=2).any() else []


def respond(settings: Settings, metrics: Mapping[str, np.ndarray], scratch: Path | None) -> tuple[dict[str, Any], Responses]:
    """Return the body of results.json of a dose-and-response run, and the responses; scratch: as in `trajectories`."""
    assert settings.doses is not None
    train_strings = split(settings.bits)["train"]
    return analyse_doses(
        metrics,
        np.array([condition for condition, _ in settings.seeds_by_condition]),
        settings.doses,
        [setup_of(settings, task, bayes_risk(task, train_strings)[1]) for task in settings.tasks],
        [levels_of(task) for task in settings.tasks],
        scratch,
    )
