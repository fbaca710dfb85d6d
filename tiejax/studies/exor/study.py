"""EXor: tied against untied masked language models, many seeds at once (Bertolotti and Cazzola, ICML 2024)."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tiejax.reporting.plot import Plot
from tiejax.runs.console import Console
from tiejax.runs.finish import finish
from tiejax.runs.launch import Launched
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.runs.train import timing, train
from tiejax.studies.exor import dose_page, page, plots, task
from tiejax.studies.exor.claims import analyse
from tiejax.studies.exor.dose_response import analyse_doses
from tiejax.studies.exor.ensemble import build_ensemble, named_arrays
from tiejax.studies.exor.settings import Settings
from tiejax.studies.exor.trajectories import Symbols


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    stop = stop_flag()
    # Accelerators multiply float32 in fewer bits unless told otherwise; exact risk would not be exact.
    jax.config.update("jax_default_matmul_precision", "highest")
    devices = {"devices": [device.device_kind for device in jax.devices()]}
    facts = directory.write_environment(devices, launched.command) if directory else {}
    announce(settings, console)

    ensemble = build_ensemble(settings)
    conditions, seeds = zip(*settings.members, strict=True)
    models = 2 * len(seeds)
    trained = train(ensemble, seeds, launched, console, stop, models, conditions)
    if not trained.finished:
        return 130
    if directory is None:
        return 0

    metrics = named_arrays(trained.records, settings)
    directory.write_metrics(metrics)
    found, plots = (conclude if settings.doses is None else conclude_doses)(settings, metrics)
    results = plain(
        {
            "experiment": "exor",
            "variant": settings.variant_name,
            "engine": settings.engine,
            "bits": settings.bits,
            "one": settings.tasks[0].one,
            "model": settings.model_settings,
            "steps": settings.steps,
            **found,
            "timing": timing(trained, models),
        }
    )
    write_page = page.page if settings.doses is None else dose_page.page
    finish(directory, settings, results, facts, plots, write_page, console)
    return 0


def announce(settings: Settings, console: Console) -> None:
    """Say what is about to be trained, and what of it cannot be computed."""
    doses = f" x {len(settings.tasks)} doses" if settings.doses is not None else ""
    console.say(
        f"EXor {settings.variant_name}, {settings.model} {settings.size}: {len(settings.seed_list)} seeds{doses}, tied and "
        f"untied, {settings.steps:,} steps, {settings.engine} engine on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, in {settings.out}"
    )
    if (number := task.count_contexts(settings.tasks[0], settings.ordered)) > task.MAX_CONTEXTS:
        console.warn(f"exact risk is left out: {number:,} contexts are more than {task.MAX_CONTEXTS:,}")


def conclude(settings: Settings, metrics: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], list[Plot]]:
    """Return what results.json says of a run of one task, and its figures."""
    exor = settings.tasks[0]
    rows = {"all": task.strings(exor.bits), **task.split(exor.bits)}
    best = {name: task.bayes(exor, strings) for name, strings in rows.items()}
    found, runs = analyse(metrics, Symbols.of(exor), best["train"][1], 2 * settings.half_period)
    bayes = {name: {"accuracy": accuracy, "cross_entropy": nats} for name, (accuracy, nats) in best.items()}
    published_first = settings.figure_style == "published"
    names = plots.symbol_names(len(exor.zero), len(exor.one))
    figures = []
    if found["seeds"]:
        figures = plots.plot_all(metrics, runs, Symbols.of(exor), names, found["uses"], bayes, published_first)
    return {"zero": exor.zero, "bayes": {**bayes.pop("all"), "splits": bayes}, **found}, figures


def conclude_doses(settings: Settings, metrics: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], list[Plot]]:
    """Return what results.json says of a dose-and-response run, and its figures."""
    assert settings.doses is not None
    train_rows = task.split(settings.bits)["train"]
    body, responses = analyse_doses(
        metrics,
        np.array([condition for condition, _ in settings.members]),
        settings.doses,
        [Symbols.of(exor) for exor in settings.tasks],
        [task.bayes(exor, train_rows)[1] for exor in settings.tasks],
        2 * settings.half_period,
    )
    return body, dose_page.plot_doses(responses) if body["seeds"] else []
