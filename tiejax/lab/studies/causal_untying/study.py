"""Causal language models that are tied, untied, or tied and then untied."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.step_count import block_size, steps_of
from tiejax.lab.comparison.training import Arrays, Trainer, train_seeds, tune
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import Looks, facts_of
from tiejax.lab.runs.rates import Pair, Tried, best_pairs, rate_lines, tuning_rows
from tiejax.lab.runs.stages import Stages, Stopped
from tiejax.lab.runs.text import keep_text
from tiejax.lab.runs.train import begin
from tiejax.lab.settings.checks import seed_list
from tiejax.lab.studies.causal_untying import bigram, figures, natural, natural_figures, page, plan, planted_figures
from tiejax.lab.studies.causal_untying.model import size_of
from tiejax.lab.studies.causal_untying.planted_claims import Planted
from tiejax.lab.studies.causal_untying.planted_text import facts as facts_of_planting
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.stages import blocks, costs, step_count_of, tuning_of
from tiejax.lab.studies.causal_untying.summary import TUNED, summarise
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.lab.studies.causal_untying.train import Recipe
from tiejax.lab.studies.causal_untying.trigger import COSINE, STEP, Cosines, train_triggered
from tiejax.system.json_values import plain


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory, text = launched.settings, launched.run, launched.prepared
    assert directory is not None
    facts_of_text = text.streams.facts | {"fingerprint": text.streams.fingerprint}
    data = keep_text(directory, facts_of_text, text.streams.tokenizer_file.read_bytes())
    stop = begin(launched, console)
    announce(settings, text, console)
    stages = Stages(launched, console, stop, costs(settings, directory.manifest.all_parts))
    try:
        with console:
            block = block_size(directory.manifest.all_parts)
            budget = step_count_of(settings, text, stages, directory.manifest.all_parts)
            steps = steps_of(budget, stages, block, console)
            trainer = Trainer(Recipe(settings, text), steps, stages)
            tried = {kind: tune(trainer, tuning_of(settings, kind, block)) for kind in TUNED if settings.tuned}
            check_models(settings, text, tried, steps, console)
            rates = rates_of(settings, tried)
            trainer, measured = with_natural_pairs(trainer, rates)
            first_seed = seed_list(directory.manifest.all_parts[0])[0]
            with console.stage("bigram models"):
                bigrams = bigram.losses_by_length(settings, text, first_seed, steps)
            gate = Gate(bigrams["1"], settings.gate)
            test = functools.partial(growing, trainer=trainer, gate=gate)
            arrays, parts, looks = train_seeds(launched, trainer, rates, functools.partial(blocks, settings), test, console)
            arrays, triggered = with_triggered(trainer, parts[0][:block], arrays, rates, threshold_of(trainer, tried))
    except Stopped:
        console.result(f"stopped with {stages.share:.0%} of the run done; continue with the same command and --resume")
        return 130

    seeds = [seed for part in parts for seed in part]
    directory.write_metrics({"seeds": np.array(seeds), **{name.replace("/", "."): values for name, values in arrays.items()}})
    with console.stage("analysis"):
        body = summarise(arrays, seeds, text.bucket_names, looks, gate, planted_of(arrays, text, steps))
    results = plain(
        {
            "experiment": "causal_untying",
            "data": data,
            "steps": steps,
            "tokens": steps * settings.batch_size * (settings.context - 1),
            "epochs": steps * settings.batch_size / len(text.train),
            "unigram_entropy": text.entropy,
            "bytes_per_token": bytes_per_token(settings, text),
            "bigram": {"seed": first_seed, "losses": bigrams},
            "rates": {kind: rate for kind, (rate, _) in rates.items()},
            "table_factors": {kind: factor for kind, (_, factor) in rates.items()},
            "tuning": tuning_rows(tried),
            "tuning_seeds": settings.tuning_seeds if tried else [],
            "models": models_of(settings, text),
            **planted_facts(text, settings),
            **natural_facts(trainer.recipe.text, measured, arrays, settings),
            **({"trigger": triggered} if triggered else {}),
            **body,
            **facts_of(looks, parts),
            "timing": stages.timing,
        }
    )
    plots = figures.plot_all(arrays, results)
    if measured:
        plots.append(natural_figures.plot_pairs(results["natural"]))
    if (planted := planted_of(arrays, text, steps)) is not None:
        plots = [*planted_figures.plot_all(planted, results), *plots]
    finish(launched, console, results, plots, page.page)
    return 0


def announce(settings: Settings, text: Text, console: Console) -> None:
    """Print the text and the models of the run."""
    tokens = {name: part.shape[0] * (part.shape[1] - 1) for name, part in (("train", text.train), ("held", text.validation))}
    console.say(
        f"text: {tokens['train']:,} tokens for training, {tokens['held']:,} for validation, in blocks of {settings.context}; "
        f"vocabulary {text.vocabulary:,}, entropy {text.entropy:.3f} nats; fingerprint {text.streams.fingerprint[:16]}"
    )
    parameters = {row["arm"]: row["parameters"] for row in models_of(settings, text)}
    console.say(
        f"{counted(len(settings.arms), 'arm')} x {counted(settings.number_of_seeds, 'seed')}, "
        f"{counted(settings.layers or 0, 'layer')} of width {settings.width}, "
        f"{parameters[plan.TIED]:,} parameters tied and {parameters[plan.NEVER_INDEPENDENT]:,} untied, on "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )


def models_of(settings: Settings, text: Text) -> list[dict[str, Any]]:
    """Return the size of the model of every arm."""
    return [
        {"arm": arm.name, **size_of(settings, text.vocabulary, arm)._asdict()} for arm in (*settings.arms, *settings.explored)
    ]


def rates_of(settings: Settings, tried: dict[Class, Tried]) -> dict[Class, Pair]:
    """Return the learning rate of each class of arms, and the factor of the tables'."""
    if not tried:
        assert settings.tied_rate is not None
        assert settings.untied_rate is not None
        return {"tied": (settings.tied_rate, settings.tied_factor), "untied": (settings.untied_rate, settings.untied_factor)}
    return best_pairs(tried)


def check_models(settings: Settings, text: Text, tried: dict[Class, Tried], steps: int, console: Console) -> None:
    """Print the learning rates that were chosen; raise BadInput unless the models of every class learn enough."""
    for line in rate_lines(tried):
        console.say(line)
    if tried and settings.gate is not None:
        of_bigram = bigram.loss_of_bigram(settings, text, settings.tuning_seeds[0], steps)
        console.say(f"bigram model of the tokens of seed {settings.tuning_seeds[0]}: {of_bigram:.4f} nats")
        Gate(of_bigram, settings.gate).check({str(kind): each.losses[each.best].mean() for kind, each in tried.items()})


def bytes_per_token(settings: Settings, text: Text) -> float | None:
    """Return the bytes of a predicted token of the final validation, on average; None with planted symbols."""
    if text.planting is not None:
        return None
    predicted = text.judged(settings.final_blocks)[:, 1:]
    return text.streams.bytes_of(predicted) / predicted.size


def threshold_of(trainer: Trainer, tried: dict[Class, Tried]) -> float | None:
    """Return the threshold of untying by gradients; None without such models."""
    settings = trainer.recipe.settings
    if not settings.explore or settings.trigger is not None or not tried:
        return settings.trigger
    records = tried["tied"].records
    return Cosines.of(records[STEP], records[COSINE], trainer.steps).threshold


def with_triggered(
    trainer: Trainer, seeds: Sequence[int], arrays: Arrays, rates: dict[Class, Pair], threshold: float | None
) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays with those of models that their gradients untie, and the steps; as they are without a threshold.

    seeds: of the first block.
    """
    if threshold is None:
        return arrays, {}
    more, triggered = train_triggered(trainer, seeds, arrays, rates, threshold)
    return arrays | more, triggered


def with_natural_pairs(trainer: Trainer, rates: dict[Class, Pair]) -> tuple[Trainer, Arrays]:
    """Measure natural pairs, if the run has any; return a trainer that records their distances, and what was measured."""
    number = trainer.recipe.settings.natural_pairs
    if not number:
        return trainer, {}
    measured = trainer.stages.once(natural.STAGE, "natural pairs", lambda: natural.measure(trainer, rates["untied"], number))
    recipe = trainer.recipe
    recorded = recipe._replace(text=recipe.text._replace(natural=natural.pairs_by_list(measured)))
    return dataclasses.replace(trainer, recipe=recorded), measured


def natural_facts(text: Text, measured: Arrays, arrays: Arrays, settings: Settings) -> dict[str, Any]:
    """Return the natural pairs and their distances in the tables of all arms, for results.json."""
    if not measured:
        return {}
    arms = [arm.name for arm in settings.arms]
    return {"natural": natural.facts(text, measured) | {"tables": natural.relative_distances(arrays, text.of_pairs[0], arms)}}


def planted_facts(text: Text, settings: Settings) -> dict[str, Any]:
    """Return what is planted, for results.json."""
    if text.planting is None or text.ends is None:
        return {}
    judged = text.judged(settings.final_blocks)
    return {"planted": facts_of_planting(text.streams, text.planting, text.ends, text.train, judged)}


def planted_of(arrays: Arrays, text: Text, steps: int) -> Planted | None:
    """Return what claims on planted text are computed from; None without planted symbols."""
    return None if text.planting is None else Planted(arrays, text.of_pairs[0], steps)


def growing(arrays: Arrays, seeds: Sequence[int], looks: Looks, trainer: Trainer, gate: Gate) -> list[dict[str, Any]]:
    """Return the rows of the claims that more seeds may decide: all except those of the control, whose seeds are fixed."""
    text, planted = trainer.recipe.text, planted_of(arrays, trainer.recipe.text, trainer.steps)
    rows: list[dict[str, Any]] = summarise(arrays, seeds, text.bucket_names, looks, gate, planted)["claims"]
    return [row for row in rows if not row["id"].startswith("cosine/")]
