"""Untying: EXor's final loss as a function of the step at which tied models untie, for each optimizer-state policy."""

import dataclasses
from pathlib import Path

import numpy as np

from tiejax import training
from tiejax.lab.reporting import untie_curve
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import model_words
from tiejax.lab.reporting.untie_curve import plot_curve, plot_trajectories
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.train import begin
from tiejax.lab.studies.exor import ensemble as exor
from tiejax.lab.studies.exor.study import Concluded, Kind, Metrics, train_and_report
from tiejax.lab.studies.exor.task import bayes_risk, split
from tiejax.lab.studies.exor.trajectories import solves, trajectories
from tiejax.lab.studies.untying.settings import Settings
from tiejax.statistics.arms import diverged_members
from tiejax.statistics.claims import Claim
from tiejax.statistics.untie_curve import Finals, analyse, claims
from tiejax.training import Ensemble
from tiejax.training.records import Records

LOSS = "exact cross-entropy"
MARGIN = 0.05  # nats: the smallest difference of interest


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    arms = launched.settings.untie_arms.names
    compared = f", tied and untied: {{seeds}} x {len(arms)} arms"
    kind = Kind("untying", compared, arms, build_ensemble, named_arrays, claims_on_first, conclude, page)
    return train_and_report(launched, console, begin(launched, console), kind)


def build_ensemble(settings: Settings) -> Ensemble:
    """Return the ensemble of resolved settings: EXor's members, with training phases for each arm."""
    assert settings.steps is not None
    arms = settings.untie_arms
    arm_ties, phases = training.phases_of_arms(arms.step.tolist(), settings.steps, arms.policy.tolist(), arms.new.tolist())
    ensemble, optimizer = exor.build_ensemble(settings), exor.make_optimizer(settings, counts="leaf")
    return dataclasses.replace(ensemble, optimizer=optimizer, arm_ties=arm_ties, phases=phases)


def named_arrays(records: Records, settings: Settings) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: those of EXor, and the arms."""
    return exor.named_arrays(records, settings) | settings.untie_arms.arrays


def claims_on_first(settings: Settings, metrics: Metrics, scratch: Path | None, seeds: int) -> list[Claim]:
    """Return the claims on the first `seeds` seeds."""
    losses, (diverged, _) = final_losses(metrics), diverged_members(metrics)
    return claims(settings.untie_arms, losses[:, :seeds], diverged[:, :seeds], LOSS, MARGIN)


def final_losses(metrics: Metrics) -> np.ndarray:
    """Return the exact cross-entropy on the training split after the last step, `[arm, seed]`."""
    return metrics["exact_cross_entropy"][:, :, -1, 0].astype(float)


def conclude(settings: Settings, metrics: Metrics, scratch: Path | None) -> Concluded:
    """Return the body of results.json and the figures of a run; final losses are those after the last step."""
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
        "zero": task.zero,
        **seeds,
        "bayes": {"accuracy": accuracy, "cross_entropy": bayes},
        **analyse(arms, finals, LOSS, MARGIN),
    }
    if not finite.any():
        return body, []
    curves, title = arms.curves(), "exact cross-entropy (nats)"
    return body, [
        plot_curve(body, title, curves, arms.step, bayes),
        plot_trajectories(runs.exact_steps, runs.exact["cross_entropy"][..., 0], curves, arms.step, title, bayes),
    ]


def page(run: RunOnPage) -> str:
    """Return the HTML page of a run."""
    results = run.results
    model = results["model"]
    setting = {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "model": model_words(results),
        "Bayes": f"cross-entropy {results['bayes']['cross_entropy']:.4f} nats on the training split",
        "final": "exact cross-entropy and distances after the last step; relative distances: divided by the mean distance "
        "between spellings of 0 and spellings of 1 in the same table",
    }
    title = f"EXor, {results['variant']}: tied, then untied, {model['architecture']} {model['size']}"
    return untie_curve.render(title, setting, run)
