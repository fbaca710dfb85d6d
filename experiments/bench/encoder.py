"""Tokens per second of pre-training an encoder, beside the library's trainer and a plain torch loop, which take turns.

One model on all cores is compared with one model on all cores, and a model a core with as many processes of one thread.
"""

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.bench.contender import Contender, Train, Work, allocator, environment_of_sides, take_turns
from experiments.bench.settings import ENDLESS, EncoderBench
from experiments.bench.timing import TimedEnsemble, recording_nothing, spread, write_results
from tiejax import training
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.pretraining_ensemble import build_ensemble
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.text import Text, prepare_text
from tiejax.pretraining.step_plan import StepPlan, devices_of_member, plan_rows

OURS = "ours"
# What each side needs installed, and what makes it.
SIDES = {
    OURS: ((), "experiments.bench.encoder:train_ours"),
    "trainer": (("torch", "transformers", "accelerate"), "experiments.bench.torch_encoder:train_by_library"),
    "loop": (("torch",), "experiments.bench.torch_encoder:train_by_loop"),
}
TOLD = {OURS: "ours", "trainer": "the library's trainer", "loop": "the plain torch loop"}


class Entry(NamedTuple):
    """One side in one of two forms: so many models, `models` being 1, on all cores, or the number of cores, one each."""

    side: str
    models: int


class OurJob(NamedTuple):
    """What our process trains: the models of so many seeds."""

    settings: EncoderBench
    seeds: int


def run(settings: EncoderBench, console: Console) -> None:
    """Measure all sides in turn, print a table and the ratios, write results.json; raises BadInput for an unusable text."""
    study = settings.of_study(1)
    text = prepare_text(study, console, False)
    planned = plan(study, text, devices=1)
    entries = [Entry(side, models) for models in sorted({1, environment.cores()}) for side in sides(SIDES, console)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder, "tokenizer.json")
        tokenizer.write_bytes(text.tokenizer_file)
        rates = measure(settings, entries, {entry: jobs_of(settings, entry, text, planned, tokenizer) for entry in entries})
    rows = [row_of(entry, rates[entry]) for entry in entries]
    for row in rows:
        console.say(row_line(row))
    ratios = [ratio_of(entry, rates) for entry in entries if entry.side != OURS]
    for ratio in ratios:
        console.say(ratio_line(ratio))
    measured = {
        "rows": rows,
        "ratios": ratios,
        "tokens_per_step": planned.tokens,
        "sentences_per_step": sentences_of(text, planned),
        "allocator": allocator(),
    }
    console.result(f"results: {write_results('encoder', settings, measured)}")


def sides(all_sides: Mapping[str, tuple[Sequence[str], str]], console: Console) -> list[str]:
    """Return the sides that can be measured here, of those with what they need and what makes them; say which cannot."""
    found = []
    for side, (needed, _) in all_sides.items():
        missing = [name for name in needed if not importlib.util.find_spec(name)]
        if missing:
            console.say(f"{', '.join(missing)} not installed: {TOLD[side]} is left out (pip install -e '.[parity]')")
        else:
            found.append(side)
    return found


def measure(settings: EncoderBench, entries: Sequence[Entry], jobs: Mapping[Entry, Sequence[Any]]) -> dict[Entry, list[float]]:
    """Return tokens per second of each entry, measured one after the other, entry after entry."""
    contenders = {entry: Contender(SIDES[entry.side][1], jobs[entry], environment_of_sides(a_core=True)) for entry in entries}
    return take_turns(contenders, settings.repeats, settings.seconds)


def jobs_of(settings: EncoderBench, entry: Entry, text: Text, planned: StepPlan, tokenizer: Path) -> Sequence[Any]:
    """Return what each process of an entry trains: ours all models in one, torch one each."""
    if entry.side == OURS:
        return [OurJob(settings, entry.models)]
    from experiments.bench.torch_encoder import Job

    study = settings.of_study(1)
    threads = environment.cores() // entry.models
    job = Job(
        shape=settings.shape,
        ids=text.train.ids,
        offsets=text.train.offsets,
        vocabulary=text.vocabulary,
        tokenizer=str(tokenizer),
        rows=planned.rows,
        row_length=study.max_length,
        sentences=sentences_of(text, planned),
        threads=threads,
        learning_rate=study.learning_rate,
        weight_decay=study.weight_decay,
        warm_up=study.warm_up,
        clip=study.clip,
    )
    return [job] * entry.models


def plan(study: Settings, text: Text, devices: int) -> StepPlan:
    """Return the plan of the steps on so many devices, of which as few train one model together as leave none without work."""
    lengths, mesh = np.diff(text.train.offsets), devices_of_member(len(study.seed_list), devices, devices)
    return plan_rows(lengths, study.batch_rows, study.max_length, True, mesh, ENDLESS)


def sentences_of(text: Text, planned: StepPlan) -> int:
    """Return how many sentences have as many tokens as a step's packed rows, on average."""
    return max(1, round(planned.tokens / float(np.mean(np.diff(text.train.offsets)))))


def train_ours(job: OurJob) -> Train:
    """Return our pre-training of so many seeds on all devices, compiled and warm."""
    study = job.settings.of_study(job.seeds)
    text = prepare_text(study, Console(quiet=True), False)
    planned = plan(study, text, jax.device_count())
    ensemble = ensemble_of(study, job.settings, text, planned)
    timed, cursor = TimedEnsemble(ensemble, study.seed_list), 0
    assert ensemble.feed is not None
    stream = ensemble.feed.stream(0)  # type: ignore[attr-defined]  # all seeds read the same rows

    def steps(number: int) -> Work:
        nonlocal cursor
        seconds = timed.train(number).seconds
        _, segments = stream.rows(cursor * planned.rows, number * planned.rows)
        cursor += number
        return Work(job.seeds * int((segments > 0).sum()), seconds)

    steps(1)
    of_step = steps(8).seconds / 8
    return lambda seconds: steps(max(1, round(seconds / of_step)))


def ensemble_of(study: Settings, settings: EncoderBench, text: Text, planned: StepPlan) -> training.Ensemble:
    """Return the study's pre-training ensemble, which records nothing: only training is measured."""
    return recording_nothing(build_ensemble(study, settings.shape, text, planned))


def row_of(entry: Entry, rates: Sequence[float]) -> dict[str, Any]:
    """Return what results.json has of one entry. processes, threads: of torch, whose processes train a model each."""
    cores = environment.cores()
    processes = 1 if entry.side == OURS else entry.models
    return {"side": entry.side, "models": entry.models, "processes": processes, "threads": cores // processes, **spread(rates)}


def ratio_of(entry: Entry, rates: Mapping[Entry, Sequence[float]]) -> dict[str, Any]:
    """Return our rate over that of an entry, with as many models, measurement by measurement."""
    pairs = zip(rates[Entry(OURS, entry.models)], rates[entry], strict=True)
    return {"over": entry.side, "models": entry.models, **spread([ours / theirs for ours, theirs in pairs])}


def models_words(models: int) -> str:
    """Say how many models are trained, and on what."""
    return f"one model on {environment.cores()} cores" if models == 1 else f"{models} models, one a core"


def row_line(row: Mapping[str, Any]) -> str:
    """Write what was measured of one entry."""
    return (
        f"{TOLD[row['side']]:>22}, {models_words(row['models'])}: {row['median']:9,.0f} tokens/s ({row['min']:,.0f} to "
        f"{row['max']:,.0f})"
    )


def ratio_line(ratio: Mapping[str, Any]) -> str:
    """Write how much faster ours is."""
    return (
        f"{models_words(ratio['models'])}: ours is {ratio['median']:.2f} x {TOLD[ratio['over']]} ({ratio['min']:.2f} to "
        f"{ratio['max']:.2f})"
    )
