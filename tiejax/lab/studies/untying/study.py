"""Untying: EXor's final loss as a function of the step at which tied models untie, for each optimizer-state policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax.lab.reporting.plot import Plot
from tiejax.lab.reporting.untie_curve import plot_curve, plot_distances, plot_trajectories
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import Looks, train_parts
from tiejax.lab.runs.train import begin
from tiejax.lab.studies.exor.ensemble import by_split, conditions_and_seeds
from tiejax.lab.studies.exor.outcomes import solves
from tiejax.lab.studies.exor.task import bayes_risk, split
from tiejax.lab.studies.exor.trajectories import TABLES, trajectories
from tiejax.lab.studies.untying.ensemble import build_ensemble, named_arrays
from tiejax.lab.studies.untying.page import page
from tiejax.lab.studies.untying.settings import Settings
from tiejax.lab.studies.untying.sizes import need
from tiejax.statistics.arms import diverged_members, replace_diverged
from tiejax.statistics.claims import Claim, assess_in_looks
from tiejax.statistics.untie_curve import Finals, analyse, claims
from tiejax.system.json_values import plain
from tiejax.training.records import Records

LOSS = "exact cross-entropy"
MARGIN = 0.05  # nats: the smallest difference of interest


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    stop, facts = begin(launched, console)
    seeds, arms = counted(settings.number_of_seeds, "seed"), settings.untie_arms.names
    console.say(
        f"EXor {settings.variant_name}, {settings.model} {settings.size}, tied and untied: "
        f"{'at most ' if settings.until else ''}{seeds} x {len(arms)} arms, {settings.steps:,} steps, "
        f"{settings.engine} engine on {jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )
    on_disk = need(settings).disk > 0
    trained = train_parts(
        launched, console, stop, build_ensemble, conditions_and_seeds, test_claims, arms, on_disk, tracked=by_split
    )
    if trained is None:
        return 130
    if directory is None:
        return 0

    settings = trained.settings
    metrics = named_arrays(trained.records, settings)
    directory.write_metrics(metrics, in_files=on_disk)
    body, plots = conclude(settings, metrics, directory.path if on_disk else None)
    if trained.looks.planned:
        body["claims"] = test_claims(settings, trained.records, trained.looks)
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
            **body,
            **trained.facts,
            "timing": trained.timing,
        }
    )
    finish(directory, launched.settings, results, facts, plots, page, console, launched.tracker)
    return 0


def test_claims(settings: Settings, records: Records, looks: Looks) -> list[dict[str, Any]]:
    """Test the claims at the looks so far; return their rows. settings, records: of all seeds so far."""
    metrics = named_arrays(records, settings)
    losses, (diverged, _) = final_losses(metrics), diverged_members(metrics)

    def claims_on_first(seeds: int) -> list[Claim]:
        worst = replace_diverged(losses[:, :seeds], diverged[:, :seeds], "high")
        return claims(settings.untie_arms, worst, LOSS, MARGIN)

    return assess_in_looks(claims_on_first, looks.done, planned=len(looks.planned))


def final_losses(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the exact cross-entropy on the training split after the last step, `[arm, seed]`."""
    return metrics["exact_cross_entropy"][:, :, -1, 0].astype(float)


def conclude(settings: Settings, metrics: Mapping[str, np.ndarray], scratch: Path | None) -> tuple[dict[str, Any], list[Plot]]:
    """Return the body of results.json and the figures of a run; final losses are those after the last step.

    scratch: as in `trajectories`.
    """
    task, arms = settings.tasks[0], settings.untie_arms
    accuracy, bayes = bayes_risk(task, split(task.bits)["train"])
    diverged, seeds = diverged_members(metrics)
    finite = np.asarray(~diverged.any(axis=0))
    cycle = 2 * settings.half_period
    runs = trajectories(metrics, task, cycle, finite, scratch)
    loss = metrics["exact_cross_entropy"][..., 0].astype(float)  # of the training split: [arm, seed, record]
    solved = solves(metrics["exact_step"], loss, bayes, cycle).happened
    final = {(table, pair): values[:, :, -1] for table, pairs in runs.relative.items() for pair, values in pairs.items()}
    others = {"accuracy": runs.exact["accuracy"][:, :, -1, 0]}
    others |= {f"relative distance, {table}, {pair}": values for (table, pair), values in final.items()}
    finals = Finals(final_losses(metrics), diverged, solved, others)
    body = {
        **seeds,
        "bayes": {"accuracy": accuracy, "cross_entropy": bayes},
        **analyse(arms, finals, LOSS, MARGIN),
    }
    if not finite.any():
        return body, []
    distances = {
        f"{pair} pair, {table}": final[table, pair] for pair in ("zero", "one") for table in TABLES if (table, pair) in final
    }
    curves, title = arms.curves(), "exact cross-entropy (nats)"
    return body, [
        plot_curve(body, title, curves, arms.step, bayes),
        plot_distances(distances, curves, arms.step, "relative distance"),
        plot_trajectories(runs.exact_steps, runs.exact["cross_entropy"][..., 0], curves, arms.step, title, bayes),
    ]
