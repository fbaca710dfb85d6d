"""Masked-LM pre-training on text with planted twins, tied against untied (Bertolotti and Cazzola, ICML 2024)."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tiejax.lab.reporting.figures import Plot
from tiejax.lab.reporting.untie_curve import plot_curve, plot_trajectories
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate, finite_means
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.text import keep_text
from tiejax.lab.runs.train import begin, check_same_data, timing_of, train, warn_of_deadlock
from tiejax.lab.studies.text_mlm import claims, ensemble, figures, page
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text, pairs_of
from tiejax.pretraining.step_plan import StepPlan
from tiejax.statistics import untie_curve
from tiejax.statistics.arms import diverged_members, select_seeds
from tiejax.statistics.claims import Family
from tiejax.statistics.untie_arms import Arms
from tiejax.training.loop import Trained


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    text, plan = launched.prepared
    data = text.facts if directory is None else keep_text(directory, text.facts, text.tokenizer)
    hint = "--data_dir: the processes prepared different texts; give a directory that all share, or a --tokenizer"
    check_same_data(text.facts["fingerprint"], hint)
    stop = begin(launched, console)
    arms = ensemble.arms_of(settings, plan)
    names = ensemble.names_of_arms(settings, plan)
    models = len(names) * len(settings.seed_list)
    announce(settings, text, plan, models, console)

    tracked = functools.partial(ensemble.with_distances, pairs=pairs_of(text)[1])
    members = ensemble.build_ensemble(settings, text, plan)
    trained = train(members, settings.seed_list, launched, console, stop, models, names, tracked=tracked)
    if not trained.finished:
        return 130
    if directory is None:
        return 0

    with console.stage("analysis"):
        metrics = ensemble.named_arrays(trained.records, settings, text, arms)
        directory.write_metrics(metrics)
        bigrams = ensemble.losses_of_bigrams(settings, text, plan)
        gate = Gate(min(bigrams.values()), settings.gate)
        body, plots = conclude(settings, plan, metrics, gate) if arms is None else conclude_untying(arms, metrics, gate)
    results = {
        "experiment": "text_mlm",
        "data": data,
        "model": ensemble.facts_of_model(settings, text.twins.vocabulary),
        "steps": plan.steps,
        "reach": ensemble.reach(settings, plan),
        "bigram": bigrams,
        **body,
        "timing": timing_on_text(trained, models, plan),
    }
    return finish(launched, console, results, plots, page.page if arms is None else page.untie_page)


def announce(settings: Settings, text: Text, plan: StepPlan, models: int, console: Console) -> None:
    """Print the text, the models and the steps of the run, and warn if twins cannot meet."""
    sentences = {name: split["sentences"] for name, split in text.facts["splits"].items()}
    console.say(
        f"text: {sentences['train']:,} sentences for training, {sentences['validation']:,} for validation; "
        f"{text.vocabulary.size:,} tokens and "
        f"{counted(len(text.twins.ids), 'twin')}; fingerprint {text.facts['fingerprint'][:16]}"
    )
    console.say(
        f"{counted(len(settings.seed_list), 'seed')}, {models} models tied and untied, "
        f"{counted(plan.steps, 'step')} of {counted(plan.rows, 'row')} "
        f"({plan.tokens:,.0f} tokens, {plan.padding:.1%} padding) on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, {plan.mesh} per member, in {settings.out}"
    )
    warn_of_deadlock(plan.mesh, console)
    far = ensemble.reach(settings, plan)
    console.say(
        f"reach: learning rates sum to {far['per_coordinate']:.3g}, words start {far['initial']:.3g} apart per coordinate"
    )
    if 2 * far["per_coordinate"] < far["initial"]:
        console.warn("twins cannot meet in this run: raise --steps or --learning_rate")


def timing_on_text(trained: Trained, models: int, plan: StepPlan) -> dict[str, float | None]:
    """Return the `timing` of results.json, with tokens per second; no rates if this process trained nothing."""
    times = timing_of(trained.compile_s, trained.train_s, trained.steps_here * models)
    rate = times["model_steps_per_s"]
    return {
        **times,
        "tokens_per_s": rate * plan.tokens if rate else None,
        "idle_share": trained.idle_share if rate else None,
        "padding": plan.padding,
    }


def conclude(
    settings: Settings, plan: StepPlan, metrics: Mapping[str, np.ndarray], gate: Gate
) -> tuple[dict[str, Any], list[Plot]]:
    """Return the results and the figures of a run of tied against untied models."""
    decay = settings.weight_decay * ensemble.reach(settings, plan)["per_coordinate"] if settings.optimizer == "adamw" else 0.0
    body, runs = claims.analyse(metrics, decay, gate)
    return body, figures.plot_all(runs, body)


def conclude_untying(arms: Arms, metrics: Mapping[str, np.ndarray], gate: Gate) -> tuple[dict[str, Any], list[Plot]]:
    """Return the results and the figures of a run with members that untie during training."""
    diverged, seeds = diverged_members(metrics)
    finite = np.asarray(~diverged.any(axis=0))
    runs = select_seeds(metrics, finite)
    distances = claims.final_distances(runs)
    others = {"accuracy": claims.final(runs["validation_accuracy"])}
    others |= {f"distance, end / start, {name}": values for name, values in distances.items()}
    loss = claims.final(metrics["validation_loss"])
    of_gate = gate.facts(finite_means({"untied": loss[arms.baseline("independent")], "tied": loss[arms.baseline("tied")]}))
    family: Family = "exploratory" if of_gate["gate"]["failed"] else "registered"
    finals = untie_curve.Finals(loss, diverged, None, others)
    body = {**seeds, **of_gate, **untie_curve.analyse(arms, finals, "validation loss", claims.LOSS_MARGIN, family)}
    if not finite.any():
        return body, []
    curves, title = arms.curves(), "validation loss (nats per masked token)"
    return body, [
        plot_curve(body, title, curves, arms.step, None, gate.bigram),
        plot_trajectories(runs["validation_step"], runs["validation_loss"], curves, arms.step, title, None, gate.bigram),
    ]
