"""Tokens per second of the causal language models that are tied and untied, compared with the transformers library's GPT-2."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from experiments.bench import decoder
from experiments.bench.arithmetic import FORWARD_AND_BACKWARD, device_rates
from experiments.bench.contender import Side, Train, Work, allocator, compare, environment_of_sides, installed
from experiments.bench.settings import CausalBench
from experiments.bench.timing import over_words, range_words, ratio, spread, write_results
from tiejax import tying
from tiejax.lab.comparison.training import Members, Trainer
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.model import Recipe
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.models.counts import layer_matrices
from tiejax.training.loop import Training

BLOCKS = 64


EACH = "torch-each"  # a model on each core, as ours
OURS = Side("ours", (), "experiments.bench.causal:train_ours")
SIDES = {"ours": OURS, "torch": decoder.SIDES["torch"], EACH: decoder.SIDES["torch-each"]}


def run(settings: CausalBench, console: Console) -> None:
    """Measure all sides in turn, print rates, their ratios and the share of the rate of products, write results.json."""
    variables = environment_of_sides(device_a_core=True)
    processes = {name: environment.cores() if name == EACH else 1 for name in installed(SIDES, console)}
    sides = {name: (SIDES[name].train, [job_of(settings, name)] * number, variables) for name, number in processes.items()}
    rates = compare(settings, sides)
    results = results_of(settings, rates, device_rates()["flops"])
    for line in lines(results):
        console.say(line)
    console.result(f"results: {write_results('causal', settings, {**results, 'allocator': allocator()})}")


def job_of(settings: CausalBench, side: str) -> Any:
    """Return the job of a side's process."""
    if side == "ours":
        return settings
    threads = 1 if side == EACH else environment.cores()
    return decoder.torch_job(settings.study_settings(), "gpt2", tying.independent(settings.layers), 1e-3, threads)


def parts_of(study: Settings, vocabulary: int) -> tuple[Trainer, plan.Arm]:
    """Return what trains the untied models of a study on random text."""
    assert study.context is not None
    blocks = np.random.default_rng(0).integers(0, vocabulary, (BLOCKS, study.context), np.int32)
    streams: Any = SimpleNamespace(vocabulary=vocabulary)  # all that training reads of the streams
    text = Text(streams, blocks, blocks[: study.batch_size], np.zeros(vocabulary, np.int32), ["all"], 0.0)
    arm = plan.Arm(plan.NEVER_EQUAL, False)
    # No stages: nothing is stored.
    return Trainer(Recipe(study, text), study.steps or 0, None), arm  # type: ignore[arg-type]


def train_ours(settings: CausalBench) -> Train:
    """Return our training of one untied model on each device, compiled and warmed up."""
    trainer, arm = parts_of(settings.study_settings(), settings.vocab_size)
    members = Members(range(jax.device_count()), [1e-3] * jax.device_count())
    ensemble = trainer.ensemble(arm, 0, trainer.steps)
    training = Training(ensemble, members.seeds)
    training.compile()
    chunks = training.chunks(chunk_s=max(0.2, settings.seconds / 4))
    tokens = settings.batch_size * settings.context * len(members.seeds)
    before = next(chunks)

    def train(seconds: float) -> Work:
        nonlocal before
        began = before
        while before.train_s - began.train_s < seconds or before is began:
            before = next(chunks)
        return Work((before.steps_here - began.steps_here) * tokens, before.train_s - began.train_s)

    return train


def products_of_token(settings: Any) -> float:
    """Return the flops of the matrix products of one token, forward and backward; attention over half of the context."""
    attention = 2 * settings.context // 2 * settings.width
    layer = layer_matrices(settings.width, 4 * settings.width) + attention
    return 2.0 * FORWARD_AND_BACKWARD * (settings.layers * layer + settings.vocab_size * settings.width)


def results_of(settings: CausalBench, rates: dict[str, list[float]], flops: float) -> dict[str, Any]:
    """Return the results: tokens per second of each side, the ratios, and the share of the rate of large products.

    flops: rate of large matrix products of all cores.
    """
    share = products_of_token(settings) / flops
    results: dict[str, Any] = {
        "tokens_per_second": {name: spread(measured) for name, measured in rates.items()},
        "share_of_products": {name: spread([rate * share for rate in measured]) for name, measured in rates.items()},
    }
    for name in (name for name in rates if name != "ours"):
        results[f"over_{name.replace('-', '_')}"] = ratio(rates["ours"], rates[name])
    return results


def lines(results: dict[str, Any]) -> list[str]:
    """Return the lines of the results for the terminal."""
    found = []
    for name, rate in results["tokens_per_second"].items():
        share = results["share_of_products"][name]["median"]
        found.append(
            f"{name:>10}: {rate['median']:,.0f} tokens per second {range_words(rate)}, {share:.0%} of the rate of large matrix "
            "products"
        )
    for name, words in (("over_torch", "torch"), ("over_torch_each", "torch with a model on each core")):
        if over := results.get(name):
            found.append(over_words(over, words))
    return found
