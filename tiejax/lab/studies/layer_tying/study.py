"""Dynamic layer tying: layers tied by an agent during training (Hay and Wolf, ICLR 2024), compared with fixed maps."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tokenizers

from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate, check_tried, finite_means
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import facts_of, looks_done, next_seeds, parts_begun
from tiejax.lab.runs.rates import KEPT, Pair, Tried, choose_rates, tuning_rows
from tiejax.lab.runs.text import keep_text
from tiejax.lab.runs.train import begin, timing_of
from tiejax.lab.studies.layer_tying import figures, page
from tiejax.lab.studies.layer_tying.analysis import Metrics, analyse
from tiejax.lab.studies.layer_tying.generation import generated
from tiejax.lab.studies.layer_tying.initial_weights import keep_initial, read_initial
from tiejax.lab.studies.layer_tying.jobs import Jobs, ModelName, best_loss
from tiejax.lab.studies.layer_tying.model import facts_of_model
from tiejax.lab.studies.layer_tying.records import metrics_of, sizes_of
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import Text, losses_of_bigram
from tiejax.lab.studies.layer_tying.text import prepare as prepare_text

Results = dict[str, Any]


class Prepared(NamedTuple):
    """What a run needs: its text, and the weights from which variants start, by name, unless the run may have copies."""

    text: Text
    weights: Mapping[str, bytes]


def prepare(settings: Settings, console: Console, resume: bool) -> Prepared:
    """Prepare the text of a run, and read the weights from which its variants start; raises BadInput."""
    text = prepare_text(settings, console, resume)
    return Prepared(text, {} if resume else read_initial(settings, text.streams.vocabulary))


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    assert directory is not None
    prepared: Prepared = launched.prepared
    text, streams = prepared.text, prepared.text.streams
    tokenizer_file = streams.tokenizer_file.read_bytes()
    data = keep_text(directory, streams.facts | {"fingerprint": streams.fingerprint}, tokenizer_file)
    keep_initial(settings, directory, streams.vocabulary, prepared.weights)
    stop = begin(launched, console)
    model = facts_of_model(settings, streams.vocabulary)
    announce(settings, text, model["parameters_untied"], console)

    jobs = Jobs(launched, text, console, stop)
    with console:
        tried, findings, runs = train_all(launched, jobs, text, console)
    results = {
        "experiment": "layer_tying",
        "model": model,
        "data": data,
        "steps": settings.steps,
        "rates": {name: rate for name, (rate, _) in jobs.rates.items()},
        "table_factors": {name: factor for name, (_, factor) in jobs.rates.items()},
        "tuning": {name: row | {"method": settings.classes[name]} for name, row in tuning_rows(tried).items()},
        "tuning_seeds": settings.tuning_seeds if tried else [],
        **findings,
        "timing": timing_of(jobs.compile_s, jobs.train_s if jobs.here else 0.0, jobs.here),
    }
    if settings.objective == "causal":
        decode = functools.partial(tokenizers.Tokenizer.from_buffer(tokenizer_file).decode, skip_special_tokens=False)
        validation = text.blocks["validation"]
        with console.stage("generated text"):
            results["generated"] = generated(settings, directory, validation, streams.vocabulary, decode, console.warn)
    return finish(launched, console, results, figures.plot_all(runs, findings, results.get("bigram")), page.page)


def train_all(launched: Launched, jobs: Jobs, text: Text, console: Console) -> tuple[dict[str, Tried], Results, Metrics]:
    """Choose the learning rates, and train and assess the seeds of all looks. Raises Stopped.

    Returns the rates that were tried by class, the findings of results.json, and the arrays for figures.
    """
    settings, directory = launched.settings, launched.run
    assert directory is not None

    def reported() -> list[ModelName]:
        return models_of(settings, [seed for part in parts_begun(launched) for seed in part])

    jobs.expect(reported())
    tried = tune(jobs, settings)
    check_tried(settings, tried, lambda seed: losses_of_bigram(settings, text, seed)["selection"], console)
    jobs.rates = {kind: each.pair for kind, each in tried.items()}
    bigram = None
    if settings.objective == "causal":
        with console.stage("bigram model"):
            seed = parts_begun(launched)[0][0]
            bigram = {"seed": seed, "losses": losses_of_bigram(settings, text, seed)}
    while True:
        jobs.train(reported())
        parts = parts_begun(launched)
        looks = looks_done(launched, [len(part) for part in parts])
        trained = settings.of_seeds([seed for part in parts for seed in part])
        records = {(name.method, name.seed): jobs.records[name] for name in models_of(trained, trained.seed_list)}
        with console.stage("analysis"):
            metrics, sizes = metrics_of(trained, records), sizes_of(trained, records)
            directory.write_metrics(metrics)
            passed = gate_of(trained, bigram, metrics)
            tested = not passed or not passed["gate"]["failed"]
            per_word = text.tokens_per_word if settings.objective == "causal" else {}
            findings, runs = analyse(metrics, sizes, per_word, settings.variants_by_name, looks, tested)
        if next_seeds(launched, console, looks, lambda: findings["claims"]) is None:  # noqa: B023
            return tried, {"sizes": sizes, **passed, **findings, **facts_of(looks, parts)}, runs


def gate_of(settings: Settings, bigram: Results | None, metrics: Metrics) -> Results:
    """Return the bigram model, and whether final losses pass the gate, for results.json; {} without one."""
    if bigram is None:
        return {}
    of_method = dict(zip(settings.names, metrics["test_loss"], strict=True))
    gate = Gate(bigram["losses"]["test"], settings.gate)
    return {"bigram": bigram} | gate.facts(finite_means({name: of_method[name] for name in settings.gated}))


def models_of(settings: Settings, seeds: Sequence[int]) -> list[ModelName]:
    """Return the models of these seeds with every method, seed by seed, so that a run ends with whole seeds."""
    return [ModelName(method, seed) for seed in seeds for method in settings.names]


def tune(jobs: Jobs, settings: Settings) -> dict[str, Tried]:
    """Choose the learning rate of each class of methods, and the factor of the tables'; {} without `--rates`. Raises Stopped.

    The given pairs are tried for all classes at once, further ones, and those that the first seed chooses, class by class.
    """
    if settings.rates is None:
        return {}
    pairs, seeds = list(itertools.product(settings.rates, settings.factors)), settings.tuning_seeds

    def models(method: str, pairs: Sequence[Pair], seeds: Sequence[int]) -> list[ModelName]:
        return [ModelName(method, seed, *pair) for pair in pairs for seed in seeds]

    def losses_of(name: str, pairs: Sequence[Pair], seeds: Sequence[int]) -> np.ndarray:
        asked = models(settings.classes[name], pairs, seeds)
        jobs.train(asked)
        return np.array([best_loss(jobs.records[model]) for model in asked]).reshape(len(pairs), -1)

    def choose(name: str) -> Tried:
        def losses_at(pairs: Sequence[Pair]) -> np.ndarray:
            jobs.later.pop(name, None)
            return losses_of(name, pairs, seeds)

        first_at = (lambda pairs: losses_of(name, pairs, seeds[:1])[:, 0]) if settings.halved else None
        return choose_rates(settings.rates or (), losses_at, settings.factors, first_at)

    if settings.halved:  # which pairs are trained with the other seeds is not known yet
        jobs.later = dict.fromkeys(settings.classes, KEPT * (len(seeds) - 1) * int(settings.steps or 0))
    first = seeds[:1] if settings.halved else seeds
    jobs.train([model for method in settings.classes.values() for model in models(method, pairs, first)])
    return {name: choose(name) for name in settings.classes}


def announce(settings: Settings, text: Text, parameters: int, console: Console) -> None:
    """Print the text, the methods and the model of the run."""
    tokens = {name: len(part) * (settings.context - 1) for name, part in text.blocks.items()}
    console.say(
        f"text: {tokens['train']:,} tokens for training, {tokens['validation']:,} for validation, {tokens['test']:,} for test, "
        f"in blocks of {settings.context}; vocabulary {text.streams.vocabulary:,}; "
        f"fingerprint {text.streams.fingerprint[:16]}"
    )
    seeds = f"{'up to ' if settings.until else ''}{counted(settings.number_of_seeds, 'seed')}"
    console.say(
        f"{counted(len(settings.names), 'method')} x {seeds}, {counted(settings.steps or 0, 'step')}, "
        f"{parameters:,} parameters untied, on "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )
