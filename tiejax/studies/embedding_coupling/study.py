"""Encoders with input and output embeddings of different shapes: pre-trained, their head discarded, fine-tuned, probed."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tiejax.models import bert
from tiejax.runs.console import Console
from tiejax.runs.finish import finish
from tiejax.runs.launch import Launched
from tiejax.runs.resume import keep_text
from tiejax.runs.run_directory import plain
from tiejax.runs.stages import Stages, Stopped
from tiejax.runs.train import begin
from tiejax.statistics.claims import assess
from tiejax.studies.embedding_coupling import page, plots
from tiejax.studies.embedding_coupling.claims import claims
from tiejax.studies.embedding_coupling.costs import costs_of
from tiejax.studies.embedding_coupling.preparation import Prepared
from tiejax.studies.embedding_coupling.settings import Settings
from tiejax.studies.embedding_coupling.shape_stages import Arrays, ShapeStages
from tiejax.studies.embedding_coupling.summary import collect, score
from tiejax.studies.embedding_coupling.text import unigram_entropy


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    assert directory is not None
    prepared: Prepared = launched.prepared
    data = keep_text(directory, prepared.text.facts, prepared.text.tokenizer_file)
    stop, facts = begin(launched, full_precision=settings.compute_dtype == "float32")
    announce(settings, prepared, console)

    stages = Stages(launched, console, stop, costs_of(settings, prepared))
    left: dict[str, Arrays] = {}
    try:
        with console:
            for name in settings.every_shape:
                left |= run_shape(settings, name, prepared, stages)
    except Stopped:
        console.result(f"stopped with {stages.share:.0%} of the run done; go on with the same command and --resume")
        return 130

    directory.write_metrics(metrics_of(settings, left))
    body = conclude(settings, prepared, left)
    timing = {
        "compile_s": stages.compile_s,
        "train_s": stages.train_s,
        "model_steps_per_s": stages.model_steps / stages.train_s if stages.train_s else None,
    }
    results = plain({"experiment": "embedding_coupling", "data": data, "steps": settings.steps, **body, "timing": timing})
    finish(directory, settings, results, facts, plots.plot_all(body, left), page.page, console)
    return 0


def announce(settings: Settings, prepared: Prepared, console: Console) -> None:
    """Say what is about to be trained on what."""
    text, plan = prepared.text, prepared.plan
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
    console.say(
        f"{len(settings.every_shape)} shapes x {len(settings.seed_list)} seeds, {plan.steps:,} steps of {plan.rows} rows "
        f"({plan.tokens:,.0f} tokens, {plan.padding:.1%} padding) on {jax.device_count()} x {jax.devices()[0].device_kind}, "
        f"{plan.mesh} a member, in {settings.out}"
    )


def run_shape(settings: Settings, name: str, prepared: Prepared, stages: Stages) -> dict[str, Arrays]:
    """Pre-train, fine-tune and probe one shape; return what its stages leave, parameters left out."""
    own = ShapeStages(settings, name, settings.every_shape[name], prepared, stages)
    pretrained = stages.once(f"pretrain-{name}", own.pretrain)
    left = {f"pretrain-{name}": pretrained}
    encoders = own.encoders(pretrained)
    for task in prepared.tasks:
        stage = f"rates-{name}-{task.name}"
        left[stage] = rates = stages.once(stage, functools.partial(own.rates, task, encoders))
        stage = f"scores-{name}-{task.name}"
        left[stage] = stages.once(stage, functools.partial(own.scores, task, encoders, rates["rate"], stage))
        if task.name == settings.drop_task:
            left |= own.without_layers(task, encoders, rates["rate"])
    left[f"probes-{name}"] = stages.once(f"probes-{name}", lambda: own.probe(encoders, pretrained))
    return {stage: {key: value for key, value in arrays.items() if "/" not in key} for stage, arrays in left.items()}


def metrics_of(settings: Settings, left: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
    """Return the records of pre-training as the arrays of metrics.npz: `[shape, seed, record]`."""
    shapes = list(settings.every_shape)
    each = [left[f"pretrain-{name}"] for name in shapes]
    stacked = {
        name: values if name.endswith("step") else np.stack([of[name] for of in each]) for name, values in each[0].items()
    }
    return {"shapes": np.array(shapes), "seeds": np.array(settings.seed_list), **stacked}


def conclude(settings: Settings, prepared: Prepared, left: Mapping[str, Arrays]) -> dict[str, Any]:
    """Return what results.json says of a run."""
    shapes = settings.every_shape
    vocabulary = prepared.text.twins.vocabulary
    body = collect(list(shapes), [task.name for task in prepared.tasks], left, settings.seed_list)
    counts = {name: bert.count_parameters(shape, vocabulary, settings.max_length) for name, shape in shapes.items()}
    body |= {
        "shapes": {
            name: {**(settings.shapes or {})[name], "pretraining_parameters": before, "fine_tuning_parameters": after}
            for name, (before, after) in counts.items()
        },
        "tasks": {task.name: task.facts for task in prepared.tasks},
        "probes": prepared.probes.facts,
        "drop_task": settings.drop_task,
        "unigram_entropy": unigram_entropy(prepared.text),
        "claims": [],
    }
    if body["seeds"]:
        body["gate"] = gate(settings, body)
        body["claims"] = assess(claims(body, shapes))
    return body


def gate(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether pre-training was long enough for shapes to be compared, as the protocol asks before the run of record.

    The baseline's validation loss at least .3 nat below the unigram entropy, and its score on development above its control's.
    """
    base = settings.baseline
    assert base is not None
    below = body["unigram_entropy"] - float(np.median(body["pretraining"][base]["loss"]))
    gain = score(body, base, measure="development_accuracy") - score(body, base, "control", "development_accuracy")
    return {
        "baseline": base,
        "nats_below_unigram": below,
        "development_gain": float(np.median(gain)),
        "passed": bool(below >= 0.3 and np.median(gain) > 0),
    }
