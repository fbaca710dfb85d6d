"""Tie, then untie: EXor's final loss over the step at which tied models untie, by what the optimizer then remembers."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tiejax.reporting import untie_curve as untie_page
from tiejax.reporting.plot import Plot
from tiejax.runs.console import Console
from tiejax.runs.finish import finish
from tiejax.runs.launch import Launched
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.runs.train import timing, train
from tiejax.statistics import untie_curve as untying
from tiejax.statistics.arms import finite_seeds, select_seeds
from tiejax.studies.exor import task as exor
from tiejax.studies.exor.trajectories import SOLVED_WITHIN, Symbols, trajectories
from tiejax.studies.untying.ensemble import build_ensemble, named_arrays
from tiejax.studies.untying.settings import Settings


def conclude(settings: Settings, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[Plot]]":
    """Return what results.json says of a run, and its figures."""

    task, arms = settings.tasks[0], settings.arms
    bayes = exor.bayes(task, exor.split(task.bits)["train"])
    finite, lasted = finite_seeds(metrics)
    found: dict[str, Any] = {**lasted, "bayes": {"accuracy": bayes[0], "cross_entropy": bayes[1]}, "claims": [], "curves": []}
    if not finite.any():
        return found, []
    kept = select_seeds(metrics, finite)
    runs = trajectories(kept, Symbols.of(task), 2 * settings.half_period)
    exact = runs.exact["cross_entropy"][..., 0]
    solved = exact[..., -1] < bayes[1] + SOLVED_WITHIN
    others = {"accuracy": runs.exact["accuracy"][:, :, -1, 0]}
    for table, pairs in runs.relative.items():
        others |= {f"relative distance, {table}, {pair}": values[:, :, -1] for pair, values in pairs.items()}
    found |= untying.analyse(arms, exact[..., -1], solved, others, "exact cross-entropy")
    distances = {
        f"{pair.replace('_', ' ')} pair, {table}": values[:, :, -1]
        for pair in ("zero", "one")
        for table, pairs in runs.relative.items()
        if (values := pairs.get(pair)) is not None
    }
    curves, title = arms.curves(), "exact cross-entropy (nats)"
    return found, [
        untie_page.curve(found, title, curves, arms.step, bayes[1], solved),
        untie_page.distances(distances, curves, arms.step, "relative distance"),
        untie_page.trajectories(runs.exact_steps, exact, curves, arms.step, title, bayes[1]),
    ]


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    stop = stop_flag()
    # Accelerators multiply float32 in fewer bits unless told otherwise; exact risk would not be exact.
    jax.config.update("jax_default_matmul_precision", "highest")
    devices = {"devices": [device.device_kind for device in jax.devices()]}
    facts = directory.write_environment(devices, launched.command) if directory else {}
    seeds, arms = settings.seed_list, len(settings.arms.step)
    console.say(
        f"EXor {settings.variant_name}, {settings.model} {settings.size}, tied and untied: {len(seeds)} seeds x {arms} arms, "
        f"{settings.steps:,} steps, {settings.engine} engine on {jax.device_count()} x {jax.devices()[0].device_kind}, "
        f"in {settings.out}"
    )
    models = arms * len(seeds)
    trained = train(build_ensemble(settings), seeds, launched, console, stop, models)
    if not trained.finished:
        return 130
    if directory is None:
        return 0

    metrics = named_arrays(trained.records, settings)
    directory.write_metrics(metrics)
    found, plots = conclude(settings, metrics)
    results = plain(
        {
            "experiment": "untying",
            "variant": settings.variant_name,
            "engine": settings.engine,
            "bits": settings.bits,
            "zero": settings.tasks[0].zero,
            "one": settings.tasks[0].one,
            "model": settings.model_settings,
            "steps": settings.steps,
            **found,
            "timing": timing(trained, models),
        }
    )
    finish(directory, settings, results, facts, plots, untie_page.page, console)
    return 0
