"""Embedding coupling: encoders with input and output embeddings of different shapes are pre-trained, fine-tuned and probed."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate, finite_means
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.runs.stages import Stages
from tiejax.lab.runs.text import keep_text
from tiejax.lab.runs.train import begin, warn_of_deadlock
from tiejax.lab.studies.embedding_coupling import figures, page
from tiejax.lab.studies.embedding_coupling.claims import verdicts
from tiejax.lab.studies.embedding_coupling.encoders import (
    CHECKPOINT,
    Arrays,
    Encoders,
    checkpoint_size,
    encoders_of_checkpoint,
    encoders_of_shape,
    export,
    losses_of_bigrams,
    pretrain,
)
from tiejax.lab.studies.embedding_coupling.preparation import Prepared, costs_of
from tiejax.lab.studies.embedding_coupling.probes import probe
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.sizes import parameters
from tiejax.lab.studies.embedding_coupling.summary import collect, collect_all, score
from tiejax.lab.studies.embedding_coupling.text import unigram_entropy
from tiejax.lab.studies.embedding_coupling.tuning import Tuning


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    assert directory is not None
    prepared: Prepared = launched.prepared
    data = keep_text(directory, prepared.text.facts, prepared.text.tokenizer_file)
    stop = begin(launched, console)
    announce(settings, prepared, console)

    bigrams = {}
    if prepared.start is None:
        with console.stage("bigram models"):
            bigrams = losses_of_bigrams(settings, prepared.text, prepared.plan)
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in bigrams.items())
        console.say(f"bigram models of the sentences that pre-training reads, in nats a masked token: {losses}")
    stages = Stages(launched, console, stop, costs_of(settings, prepared))
    left: dict[str, Arrays] = {}
    with console:
        for name in settings.every_shape:
            left[f"pretrain.{name}"] = records = pretrain_shape(settings, name, prepared, directory, stages)
            check_shape(settings, name, records, bigrams, console)
        for name in names_of(settings):
            left |= transfer(settings, name, encoders_of(settings, name, prepared, stages), prepared, stages)

    with console.stage("analysis"):
        metrics = metrics_of(settings, left)
        directory.write_metrics(metrics)
        body = conclude(settings, prepared, left, bigrams)
    results = {"experiment": "embedding_coupling", "data": data, "steps": settings.steps, **body, "timing": stages.timing}
    drawn = figures.plot_all(body, settings.every_shape, metrics)
    return finish(launched, console, results, drawn, page.page)


def announce(settings: Settings, prepared: Prepared, console: Console) -> None:
    """Print the text, the tasks and the shapes of the run."""
    text, plan = prepared.text, prepared.plan
    if prepared.start is None:
        sentences = {name: split["sentences"] for name, split in text.facts["splits"].items()}
        console.say(
            f"text: {sentences['train']:,} sentences for training, {sentences['validation']:,} for validation; "
            f"{text.vocabulary.size:,} tokens{' and a twin of each' if text.twins.ids else ''}; "
            f"fingerprint {text.facts['fingerprint'][:16]}"
        )
    for task in prepared.tasks:
        number = task.facts["sentences"]
        console.say(
            f"task {task.name}: {task.kind}, {len(task.labels)} labels, {number['train']:,} sentences for training, "
            f"{number['development']:,} for development, {number['test']:,} for test"
        )
        for split, others in (("development", "training"), ("test", "training or development")):
            if found := task.facts["repeated"][split]:
                console.warn(f"task {task.name}: {found:,} of the {number[split]:,} {split} sentences are also in {others}")
    seeds = counted(len(settings.trained_seeds), "seed")
    models = f"{counted(len(settings.every_shape), 'shape')} x {seeds}, {counted(plan.steps, 'step')} of "
    models += f"{counted(plan.rows, 'row')} ({plan.tokens:,.0f} tokens, {plan.padding:.1%} padding)"
    if prepared.start is not None:
        models = f"the {prepared.start.family} in {settings.start} x {counted(len(settings.seed_list), 'seed')}"
    console.say(f"{models} on {jax.device_count()} x {jax.devices()[0].device_kind}, {plan.mesh} per member, in {settings.out}")
    warn_of_deadlock(plan.mesh, console)


def names_of(settings: Settings) -> list[str]:
    """Return the names of the encoders of a run."""
    return list(settings.every_shape) or [CHECKPOINT]


def pretrain_shape(settings: Settings, name: str, prepared: Prepared, directory: RunDirectory, stages: Stages) -> Arrays:
    """Pre-train one shape, and write its models; return its records, without parameters."""
    text = prepared.text
    stage, label = f"pretrain.{name}", f"pre-training of {name}"
    pretrained = stages.once(stage, label, lambda: pretrain(settings, name, text, prepared.plan, stages))
    export(settings, name, text, pretrained, directory)
    return {field: values for field, values in pretrained.items() if "/" not in field}


def check_shape(settings: Settings, name: str, records: Arrays, bigrams: Mapping[str, float], console: Console) -> None:
    """Print the final loss of the tuning seeds of a shape beside the bigram's; raise BadInput unless it passes the gate."""
    gate = Gate(min(bigrams.values()), settings.gate)
    loss = finite_means({name: records["validation_loss"][len(settings.seed_list) :, -1]})
    console.say(f"{name}: pre-trained to {loss[name]:.4f} nats (seeds for tuning); best bigram model: {gate.bigram:.4f}")
    gate.check(loss)


def encoders_of(settings: Settings, name: str, prepared: Prepared, stages: Stages) -> Encoders:
    """Return the encoders of a pre-trained shape, or of the checkpoint of a run."""
    if prepared.start is not None:
        return encoders_of_checkpoint(settings, prepared.start)
    return encoders_of_shape(settings, settings.every_shape[name], prepared.text, stages.read(f"pretrain.{name}"))


def transfer(settings: Settings, name: str, encoders: Encoders, prepared: Prepared, stages: Stages) -> dict[str, Arrays]:
    """Fine-tune and probe encoders; return the arrays of each stage."""
    left: dict[str, Arrays] = {}
    tuning = Tuning(settings, name, encoders, prepared.plan.mesh, stages, {})
    for task in prepared.tasks:
        stage = f"rates.{name}.{task.name}"
        left[stage] = rates = tuning.rates(task, stage)
        stage = f"scores.{name}.{task.name}"
        label = f"scores of {name}, {task.name}"
        left[stage] = stages.once(stage, label, functools.partial(tuning.scores, task, rates["rate"], stage))
        if task.name == settings.drop_task:
            left |= tuning.dropped(task, rates["rate"])
            left |= tuning.mixed(task) if settings.layer_mix else {}
    stage, reported = f"probes.{name}", len(settings.seed_list)
    left[stage] = stages.once(
        stage, f"probes of {name}", lambda: probe(encoders, reported, prepared.probes, prepared.plan.mesh)
    )
    return left


def metrics_of(settings: Settings, left: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
    """Return the records of pre-training as the arrays of metrics.npz: `[shape, seed, record]`."""
    seeds, each = settings.seed_list, [left[f"pretrain.{name}"] for name in settings.every_shape]
    arrays = {"shapes": np.array(list(settings.every_shape), dtype=str), "seeds": np.array(seeds)}
    for field, values in each[0].items() if each else ():
        by_shape = [records[field][: len(seeds)] for records in each]
        arrays[field] = values if field.endswith("step") else np.stack(by_shape)
    return arrays


def conclude(
    settings: Settings, prepared: Prepared, left: Mapping[str, Arrays], bigrams: Mapping[str, float]
) -> dict[str, Any]:
    """Analyse a run; return its part of results.json. bigrams: losses of bigram models; empty for a checkpoint."""
    of_run = names_of(settings), [task.name for task in prepared.tasks], left, settings.seed_list
    # Claims are about all seeds: a diverged model counts as the worst.
    every = collect_all(*of_run)
    body = collect(*of_run) | {
        "shapes": facts_of_shapes(settings, prepared),
        "tasks": {task.name: task.facts for task in prepared.tasks},
        "probes": prepared.probes.facts,
        "drop_task": settings.drop_task,
        "tuning_seeds": settings.tuning_seeds,
        "claims": [],
    }
    if bigrams:
        losses = finite_means({name: np.array(final["loss"]) for name, final in every["pretraining"].items()})
        body |= Gate(min(bigrams.values()), settings.gate).facts(losses)
        body |= {"bigram": bigrams, "unigram_entropy": unigram_entropy(prepared.text)}
    if body["seeds"]:
        if bigrams:
            body["transfer"] = gain_of_baseline(settings, body)
        tested = not (bigrams and body["gate"]["failed"])
        body["claims"] = verdicts(body | every, settings.every_shape, tested)
    return body


def facts_of_shapes(settings: Settings, prepared: Prepared) -> dict[str, dict[str, Any]]:
    """Return the shapes with their parameter counts, as in results.json; for a checkpoint, its fine-tuned parameters."""
    if prepared.start is not None:
        layers = prepared.start.model.encoder.layers
        return {CHECKPOINT: {"layers": layers, "fine_tuning_parameters": checkpoint_size(prepared.start)}}
    facts = {}
    for name, shape in settings.every_shape.items():
        before, after = parameters(shape, prepared.text.twins.vocabulary, settings.max_length, pooler=True)
        facts[name] = dataclasses.asdict(shape) | {"pretraining_parameters": before, "fine_tuning_parameters": after}
    return facts


def gain_of_baseline(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline's median gain over its control on development; pre-training matters only if it is above 0."""
    base = settings.baseline
    assert base is not None
    gain = score(body, base, measure="development_accuracy") - score(body, base, "control", "development_accuracy")
    return {"baseline": base, "development_gain": float(np.median(gain)), "passed": bool(np.median(gain) > 0)}
