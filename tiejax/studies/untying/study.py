"""Tie, then untie: EXor's final loss over the step at which tied models untie, by what the optimizer then remembers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax.reporting import untie_curve as pages
from tiejax.reporting.plot import Drawn
from tiejax.runs import environment, launch
from tiejax.runs.console import Console
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.statistics import untie_curve as untying
from tiejax.studies.exor import claims as findings
from tiejax.studies.exor import study as base
from tiejax.studies.exor import task as exor
from tiejax.studies.untying.ensemble import build_ensemble, named_arrays
from tiejax.studies.untying.settings import EXPERIMENT, Config


def conclude(config: Config, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run, and its figures."""

    task, variants = config.tasks[0], config.variants
    bayes = exor.bayes(task, exor.split(task.bits)["train"])
    finite, lasted = findings.who_lasted(metrics)
    found: dict[str, Any] = {**lasted, "bayes": {"accuracy": bayes[0], "cross_entropy": bayes[1]}, "claims": [], "curves": []}
    if not finite.any():
        return found, []
    kept = findings.of_seeds(metrics, finite)
    runs = findings.trajectories(kept, base.task_symbols(task), 2 * config.half_period)
    exact = runs.exact["cross_entropy"][..., 0]
    solved = exact[..., -1] < bayes[1] + findings.SOLVED_WITHIN
    others = {"accuracy": runs.exact["accuracy"][:, :, -1, 0]}
    for table, pairs in runs.relative.items():
        others |= {f"relative distance, {table}, {pair}": values[:, :, -1] for pair, values in pairs.items()}
    found |= untying.analyse(variants, exact[..., -1], solved, others, "exact cross-entropy")
    distances = {
        f"{pair.replace('_', ' ')} pair, {table}": values[:, :, -1]
        for pair in ("zero", "one")
        for table, pairs in runs.relative.items()
        if (values := pairs.get(pair)) is not None
    }
    curves, title = variants.curves(), "exact cross-entropy (nats)"
    return found, [
        pages.curve(found, title, curves, variants.step, bayes[1], solved),
        pages.distances(distances, curves, variants.step, "relative distance"),
        pages.trajectories(runs.exact_steps, exact, curves, variants.step, title, bayes[1]),
    ]


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
    seeds, models = config.seed_list, len(config.variants.step) * len(config.seed_list)
    console.say(
        f"EXor {config.variant_name}, {config.model} {config.size}, tied and untied: {len(seeds)} seeds x "
        f"{len(config.variants.step)} variants, {config.steps:,} steps, {config.engine} engine on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, in {config.out}"
    )
    trained = launch.train(build_ensemble(config), seeds, started, console, stop, models)
    if not trained.finished:
        return 130
    if run is None:
        return 0

    metrics = named_arrays(trained.records, config)
    run.write_metrics(metrics)
    found, drawn = conclude(config, metrics)
    results = plain(
        {
            "experiment": "untying",
            "variant": config.variant_name,
            "engine": config.engine,
            "bits": config.bits,
            "zero": config.tasks[0].zero,
            "one": config.tasks[0].one,
            "model": config.model_settings,
            "steps": config.steps,
            **found,
            "timing": launch.timing(trained, models),
        }
    )
    launch.finish(run, config, results, facts, drawn, pages.page, console)
    return 0
