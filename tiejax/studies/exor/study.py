"""EXor: tied against untied masked language models, many seeds at once (Bertolotti and Cazzola, ICML 2024)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax.runs import environment, launch
from tiejax.runs.console import Console
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.studies.exor import claims as findings
from tiejax.studies.exor import dose_page as dose_response
from tiejax.studies.exor import page as pages
from tiejax.studies.exor import plots
from tiejax.reporting.uses import uses as plot_uses
from tiejax.studies.exor import task as exor
from tiejax.studies.exor.dose_response import analyse_doses
from tiejax.studies.exor.ensemble import build_ensemble, named_arrays
from tiejax.studies.exor.settings import EXPERIMENT, Config
from tiejax.studies.exor.trajectories import Symbols, Trajectories


def task_symbols(task: exor.EXor) -> "Symbols":
    """Return what the analysis needs to know of a task."""

    return Symbols(task.vocabulary, task.even, task.odd, task.used, task.probability)


def draw(
    config: Config,
    metrics: Mapping[str, np.ndarray],
    runs: "Trajectories",
    found: Mapping[str, Any],
    bayes: Mapping[str, Mapping[str, float]],
) -> "list[Drawn]":
    """Return the figures of a run in the order of its report."""

    task, finite = config.tasks[0], np.asarray(metrics["finite"].all(axis=(0, 2)))
    symbols, names = task_symbols(task), plots.symbol_names(len(task.zero), len(task.one))
    labels = {bit: plots.pair_label(bit, symbols.imbalance(bit)) for bit in ("zero", "one") if bit in runs.distance["input"]}
    exact = {name: runs.exact[name] for name in ("cross_entropy", "accuracy") if name in runs.exact}
    sampled = {
        "cross_entropy": metrics["validation_redrawn_loss"][:, finite],
        "accuracy": metrics["validation_redrawn_accuracy"][:, finite],
    }
    relative = {table: {pair: runs.final(values) for pair, values in pairs.items()} for table, pairs in runs.relative.items()}
    tables = {table: metrics[f"distance_{table}"][:, finite] for table in ("input", "output")}
    drawn = plots.distances(runs.steps, runs.distance, labels, config.figure_style == "published") if labels else []
    return [
        *drawn,
        plots.relative_distances(runs.steps, runs.relative, labels),
        plots.learning(runs.exact_steps, exact, runs.steps, sampled, bayes),
        plots.final_values({name: runs.final(v, exact=True)[..., 0] for name, v in exact.items()}, relative, labels),
        plots.all_distances(runs.steps, tables, metrics["pairs"], names),
        plot_uses(findings.of_seeds(metrics, finite), names, found["uses"]),
    ]


def conclude(config: Config, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run of one task, and its figures."""

    task = config.tasks[0]
    bayes = {name: exor.bayes(task, rows) for name, rows in {"all": exor.strings(task.bits), **exor.split(task.bits)}.items()}
    found, runs = findings.analyse(metrics, task_symbols(task), bayes["train"][1], 2 * config.half_period)
    named = {name: {"accuracy": accuracy, "cross_entropy": nats} for name, (accuracy, nats) in bayes.items()}
    drawn = draw(config, metrics, runs, found, named) if found["seeds"] else []
    return {"zero": task.zero, "bayes": {**named.pop("all"), "splits": named}, **found}, drawn


def conclude_doses(config: Config, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a dose-and-response run, and its figures."""

    assert config.doses is not None
    train = exor.split(config.bits)["train"]
    body, found = analyse_doses(
        metrics,
        np.array([condition for condition, _ in config.members]),
        config.doses,
        [task_symbols(task) for task in config.tasks],
        [exor.bayes(task, train)[1] for task in config.tasks],
        2 * config.half_period,
    )
    responses = found.doses, found.bound, found.gap, found.excess, found.solved
    return body, dose_response.drawn(*responses) if body["seeds"] else []


def main(argv: Sequence[str]) -> int:
    """Run the experiment; return its exit status."""
    environment.one_device_a_core()
    started = launch.start(EXPERIMENT, argv)
    config, run = started.config, started.run
    assert config.out is not None
    console = Console(started.switches["quiet"], silent=not started.first)
    if started.finished:
        console.result(f"the run is finished: {Path(config.out) / 'report.html'}")
        return 0
    stop = stop_flag()

    # Accelerators multiply float32 in fewer bits unless told otherwise; exact risk would not be exact.
    jax.config.update("jax_default_matmul_precision", "highest")

    devices = {"devices": [one.device_kind for one in jax.devices()]}
    facts = run.write_environment(devices, launch.command_of(argv)) if run else {}
    conditions, seeds = zip(*config.members, strict=True)
    models, doses = 2 * len(seeds), f" x {len(config.tasks)} doses" if config.doses is not None else ""
    console.say(
        f"EXor {config.variant_name}, {config.model} {config.size}: {len(config.seed_list)} seeds{doses}, tied and untied, "
        f"{config.steps:,} steps, {config.engine} engine on {jax.device_count()} x {jax.devices()[0].device_kind}, "
        f"in {config.out}"
    )
    ensemble = build_ensemble(config)
    if "exact" not in ensemble.recorders:
        number = exor.count_contexts(config.tasks[0], config.ordered)
        console.warn(f"exact risk is left out: {number:,} contexts are more than {exor.MAX_CONTEXTS:,}")
    trained = launch.train(ensemble, seeds, started, console, stop, models, conditions)
    if not trained.finished:
        return 130
    if run is None:
        return 0

    metrics = named_arrays(trained.records, config)
    run.write_metrics(metrics)
    found, drawn = (conclude if config.doses is None else conclude_doses)(config, metrics)
    results = plain(
        {
            "experiment": "exor",
            "variant": config.variant_name,
            "engine": config.engine,
            "bits": config.bits,
            "one": config.tasks[0].one,
            "model": config.model_settings,
            "steps": config.steps,
            **found,
            "timing": launch.timing(trained, models),
        }
    )
    write_page = pages.page if config.doses is None else dose_response.page
    launch.finish(run, config, results, facts, drawn, write_page, console)
    return 0
