"""Causal language models that are tied, untied, or tied and then untied."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tiejax.lab.comparison import segments
from tiejax.lab.comparison.arms import Class
from tiejax.lab.comparison.segments import Segment
from tiejax.lab.comparison.step_count import block_size, costs_of_run, steps_of
from tiejax.lab.comparison.training import Arrays, Trainer, Tuning, metrics_of, train_seeds, tune, with_claims
from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.gate import Gate, check_tried, finite_means
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.parts import Looks, facts_of, parts_begun
from tiejax.lab.runs.rates import Pair, Tried, tuning_rows
from tiejax.lab.runs.stages import Stages
from tiejax.lab.runs.text import keep_text
from tiejax.lab.runs.train import begin
from tiejax.lab.studies.causal_untying import claims, figures, natural, page, plan
from tiejax.lab.studies.causal_untying.model import Recipe, size_of, tuning_arm
from tiejax.lab.studies.causal_untying.planted_claims import Planted
from tiejax.lab.studies.causal_untying.settings import NATURAL_SEEDS, Settings
from tiejax.lab.studies.causal_untying.sizes import MOST_STEPS
from tiejax.lab.studies.causal_untying.text import Text, loss_of_bigram, losses_by_length, planted_facts
from tiejax.lab.studies.causal_untying.trigger import COSINE, SEEDS, STEP, running_cosines, train_triggered
from tiejax.system.json_values import plain
from tiejax.text.tokenizer import unknown

MOST_EPOCHS = 4  # of a run whose steps follow from --hours


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory, text = launched.settings, launched.run, launched.prepared
    assert directory is not None
    facts_of_text = text.streams.facts | {"fingerprint": text.streams.fingerprint}
    data = keep_text(directory, facts_of_text, text.streams.tokenizer_file.read_bytes())
    stop = begin(launched, console)
    announce(settings, text, console)
    parts = parts_begun(launched)
    block, first_seed = block_size(parts[0]), parts[0][0]
    tunings = tunings_of(settings, block)
    stages = Stages(launched, console, stop, costs_of(settings, tunings, parts, block))
    with console:
        by_trigger = SEEDS if settings.explore and (settings.tuned or settings.trigger is not None) else 0  # prefix and untied
        longest = Trainer(Recipe(settings, text), min(MOST_STEPS, MOST_EPOCHS * len(text.train) // settings.batch_size), stages)
        of_first, probe = costs_of(settings, tunings, parts[:1], block), tuning_arm("untied")
        steps = steps_of(longest, settings, probe, block, of_first, tunings, console, settings.step_unit, by_trigger)
        trainer = dataclasses.replace(longest, steps=steps)
        tried = {tuning.kind: tune(trainer, tuning) for tuning in tunings}
        check_tried(settings, tried, lambda seed: loss_of_bigram(settings, text, seed, steps), console)
        rates = rates_of(settings, tried)
        trainer, measured = with_natural_pairs(trainer, rates)
        with console.stage("bigram models"):
            bigrams = losses_by_length(settings, text, first_seed, steps)
        gate = Gate(bigrams["1"], settings.gate)
        test = functools.partial(growing, trainer=trainer, gate=gate)
        blocks = functools.partial(blocks_of, settings, size=block)
        arrays, parts, looks = train_seeds(launched, trainer, rates, blocks, test, console)
        triggered: dict[str, Any] = {}
        if (threshold := threshold_of(trainer, tried)) is not None:
            more, triggered = train_triggered(trainer, parts[0][:block], arrays, rates, threshold)
            arrays |= more

    seeds = [seed for part in parts for seed in part]
    directory.write_metrics(metrics_of(arrays, seeds))
    with console.stage("analysis"):
        body = summarise(arrays, seeds, text, steps, looks, gate)
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
            **planted_facts(text, text.judged(settings.final_blocks)),
            **({"natural": natural.facts(trainer.recipe.text, measured, arrays, settings)} if measured else {}),
            **({"trigger": triggered} if triggered else {}),
            **body,
            **facts_of(looks, parts),
            "timing": stages.timing,
        }
    )
    return finish(launched, console, results, figures.plot_all(arrays, results, planted_of(arrays, text, steps)), page.page)


def tunings_of(settings: Settings, block: int) -> list[Tuning]:
    """Return the models that choose the learning rates of each class of arms, `block` at a time."""
    tried = settings.tuning_seeds, block, settings.rates, settings.table_factors or [1.0]
    return [Tuning(kind, tuning_arm(kind), *tried) for kind in plan.CLASSES] if settings.tuned else []


def blocks_of(settings: Settings, parts: Sequence[list[int]], size: int) -> list[tuple[list[int], list[Segment]]]:
    """Return the blocks of at most `size` seeds of all parts of a run, each with its segments.

    The first block also trains exploratory arms, and the first seeds also train with a cosine.
    """
    primary, control = ([arm for arm in settings.arms if arm.cosine == cosine] for cosine in (False, True))
    main, with_more = segments.segments_of(primary), segments.segments_of([*primary, *settings.explored])
    with_control = set([seed for part in parts for seed in part][: settings.control_seeds])
    found = [(block, main if number else with_more) for number, block in enumerate(segments.blocks_of(parts, size))]
    chosen = [[seed for seed in block if seed in with_control] for block, _ in found]
    return found + [(block, segments.segments_of(control)) for block in chosen if block]


def costs_of(settings: Settings, tunings: Sequence[Tuning], parts: Sequence[list[int]], block: int) -> dict[str, float]:
    """Return the cost of every stage that is planned, in runs of one block."""
    costs = costs_of_run(tunings, blocks_of(settings, parts, block))
    return costs | ({natural.STAGE: float(-(-len(NATURAL_SEEDS) // block))} if settings.natural_pairs else {})


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
        f"{counted(settings.layers, 'layer')} of width {settings.width}, "
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
    return {kind: each.pair for kind, each in tried.items()}


def bytes_per_token(settings: Settings, text: Text) -> float | None:
    """Return the bytes of a predicted token of the final validation, on average; None with planted or unknown tokens."""
    predicted, none = text.judged(settings.final_blocks)[:, 1:], unknown(text.streams.tokenizer)
    if text.planting is not None or (none is not None and (predicted == none).any()):
        return None
    return text.streams.bytes_of(predicted) / predicted.size


def threshold_of(trainer: Trainer, tried: dict[Class, Tried]) -> float | None:
    """Return the threshold of untying by gradients; None without such models."""
    settings = trainer.recipe.settings
    if not settings.explore or settings.trigger is not None or not tried:
        return settings.trigger
    records = tried["tied"].records
    return float(np.nanmedian(running_cosines(records[STEP], records[COSINE], trainer.steps)[1]))


def with_natural_pairs(trainer: Trainer, rates: dict[Class, Pair]) -> tuple[Trainer, Arrays]:
    """Measure natural pairs, if the run has any; return a trainer that records their distances, and what was measured."""
    number = trainer.recipe.settings.natural_pairs
    if not number:
        return trainer, {}
    measured = trainer.stages.once(natural.STAGE, "natural pairs", lambda: natural.measure(trainer, rates["untied"], number))
    recipe = trainer.recipe
    recorded = recipe._replace(text=recipe.text._replace(natural=natural.pairs_by_list(measured)))
    return dataclasses.replace(trainer, recipe=recorded), measured


def final_losses(arrays: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the final validation loss of every arm, `[seed]`, and by bucket, `[seed, bucket]`, in nats a token."""
    arms = sorted(
        (field.removesuffix("/nats") for field in arrays if field.endswith("/nats")), key=lambda arm: arm != plan.TIED
    )
    nats, count = ({arm: arrays[f"{arm}/{field}"].astype(float) for arm in arms} for field in ("nats", "count"))
    with np.errstate(invalid="ignore", divide="ignore"):
        return ({arm: nats[arm].sum(-1) / count[arm].sum(-1) for arm in arms}, {arm: nats[arm] / count[arm] for arm in arms})


def planted_of(arrays: Arrays, text: Text, steps: int) -> Planted | None:
    """Return what claims on planted text are computed from; None without planted symbols."""
    return None if text.planting is None else Planted(arrays, text.of_pairs[0], steps)


def summarise(arrays: Arrays, seeds: Sequence[int], text: Text, steps: int, looks: Looks, gate: Gate) -> dict[str, Any]:
    """Return final losses, claims and diverged models, as in results.json.

    Claims are not tested if the models of either class, those of whole runs, do not pass the gate.
    """
    bucket_names, planted = text.bucket_names, planted_of(arrays, text, steps)
    losses, buckets = final_losses(arrays)
    of_gate = gate.facts(finite_means({arm: losses[arm] for arm in (plan.TIED, plan.NEVER_INDEPENDENT)}))
    tested, by_frequency = ({arm: of[arm] for arm in of if not arm.startswith(plan.EXPLORE)} for of in (losses, buckets))
    passed = not of_gate["gate"]["failed"]
    rows = claims.verdicts(tested, by_frequency, bucket_names, *looks.or_one(len(seeds)), planted, passed)
    arms = {arm: {"loss": values.tolist(), "by_frequency": buckets[arm].tolist()} for arm, values in losses.items()}
    if planted is not None:
        arms = {arm: {**row, "excess": {kind: values.tolist() for kind, values in planted.excess(arm).items()}}
                for arm, row in arms.items()}  # fmt: skip
    found = {**of_gate, "seeds": list(seeds), "arms": arms, "frequency_ranks": list(bucket_names)}
    return found | with_claims(arrays, losses, seeds, rows)


def growing(arrays: Arrays, seeds: Sequence[int], looks: Looks, trainer: Trainer, gate: Gate) -> list[dict[str, Any]]:
    """Return the rows of the claims that more seeds may decide: all except those of the control, whose seeds are fixed."""
    rows: list[dict[str, Any]] = summarise(arrays, seeds, trainer.recipe.text, trainer.steps, looks, gate)["claims"]
    return [row for row in rows if not row["id"].startswith("cosine/")]
