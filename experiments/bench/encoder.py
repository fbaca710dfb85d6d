"""Tokens per second in pre-training of an encoder, compared with the transformers Trainer and a plain torch loop.

All sides take turns, in two forms: one model on all cores; and one model per core, which for torch is one process per core.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.bench.contender import Side, Train, Work, allocator, compare, environment_of_sides, installed
from experiments.bench.settings import ENDLESS, EncoderBench
from experiments.bench.timing import TimedEnsemble, over_words, range_words, ratio, recording_nothing, spread, write_results
from tiejax import training
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.encoders import build_ensemble
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.text import Text, prepare_text
from tiejax.models.shapes import Shape
from tiejax.pretraining.step_plan import StepPlan, devices_of_member, plan_steps

OURS = "ours"
TORCH = "experiments.bench.torch_encoder"
TRAINER = Side("the library's trainer", ("torch", "transformers", "accelerate"), f"{TORCH}:train_by_library")
SIDES = {
    OURS: Side("ours", (), "experiments.bench.encoder:train_ours"),
    "trainer": TRAINER,
    "loop": Side("the plain torch loop", ("torch",), f"{TORCH}:train_by_loop"),
}


class Entry(NamedTuple):
    """A side and its form: `models` is 1 for one model on all cores, or the number of cores for one model on each."""

    side: str
    models: int


class OurJob(NamedTuple):
    """Our process's job: train one model for each of `seeds` seeds."""

    settings: EncoderBench
    seeds: int


def run(settings: EncoderBench, console: Console) -> None:
    """Measure all sides in turn, print a table and the ratios, write results.json. Raises BadInput for an unusable text."""
    study = settings.study_settings(1)
    text = prepare_text(study, console, False)
    planned = plan(study, text, devices=1)
    entries = [Entry(side, models) for models in sorted({1, environment.cores()}) for side in installed(SIDES, console)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder, "tokenizer.json")
        tokenizer.write_bytes(text.tokenizer_file)
        jobs = {entry: jobs_of(settings, entry, text, planned, tokenizer) for entry in entries}
        variables = environment_of_sides(device_a_core=True)
        rates = compare(settings, {entry: (SIDES[entry.side].train, jobs[entry], variables) for entry in entries})
    rows = [row_of(entry, rates[entry]) for entry in entries]
    ratios = [ratio_of(entry, rates) for entry in entries if entry.side != OURS]
    for line in (*map(row_line, rows), *map(ratio_line, ratios)):
        console.say(line)
    measured = {
        "rows": rows,
        "ratios": ratios,
        "tokens_per_step": planned.tokens,
        "sentences_per_step": sentences_of(text, planned),
        "allocator": allocator(),
    }
    console.result(f"results: {write_results('encoder', settings, measured)}")


def jobs_of(settings: EncoderBench, entry: Entry, text: Text, planned: StepPlan, tokenizer: Path) -> Sequence[Any]:
    """Return the jobs of an entry, one per process: our process trains all models, a torch process trains one."""
    if entry.side == OURS:
        return [OurJob(settings, entry.models)]
    study, threads = settings.study_settings(1), environment.cores() // entry.models
    job = torch_job(study, text, planned, tokenizer, settings.SHAPE, sentences_of(text, planned), threads)
    return [job._replace(warm_up=study.warm_up, clip=study.clip)] * entry.models


def torch_job(study: Any, text: Any, planned: StepPlan, tokenizer: Path, shape: Shape, sentences: int, threads: int) -> Any:
    """Return the job of a torch process: a model of this shape on the text of a study, with its rates."""
    from experiments.bench.torch_encoder import Job

    return Job(
        shape=shape,
        ids=text.train.ids,
        offsets=text.train.offsets,
        vocabulary=text.vocabulary,
        tokenizer=str(tokenizer),
        rows=planned.rows,
        row_length=study.max_length,
        sentences=sentences,
        threads=threads,
        learning_rate=study.learning_rate,
        weight_decay=study.weight_decay,
    )


def plan(study: Settings, text: Text, devices: int) -> StepPlan:
    """Return the plan of a step on `devices` devices, with the fewest devices per model that keep all of them busy."""
    lengths, mesh = np.diff(text.train.offsets), devices_of_member(len(study.seed_list), devices, devices)
    return plan_steps(lengths, study.batch_rows, study.max_length, True, mesh, ENDLESS)


def sentences_of(text: Text, planned: StepPlan) -> int:
    """Return the number of sentences that, on average, hold as many tokens as the packed rows of a step."""
    return max(1, round(planned.tokens / float(np.mean(np.diff(text.train.offsets)))))


def train_ours(job: OurJob) -> Train:
    """Return our pre-training of the job's seeds on all devices, compiled and warmed up."""
    study = job.settings.study_settings(job.seeds)
    text = prepare_text(study, Console(quiet=True), False)
    planned = plan(study, text, jax.device_count())
    ensemble = ensemble_of(study, job.settings, text, planned)
    timed, cursor = TimedEnsemble(ensemble, study.seed_list), 0
    assert isinstance(ensemble.source, training.Feed)
    stream = ensemble.source.stream(0)  # type: ignore[attr-defined]  # all seeds read the same rows

    def steps(number: int) -> Work:
        nonlocal cursor
        seconds = timed.train(number).seconds
        _, segments = stream.rows(cursor * planned.rows, number * planned.rows)
        cursor += number
        return Work(job.seeds * int((segments > 0).sum()), seconds)

    steps(1)
    seconds_per_step = steps(8).seconds / 8
    return lambda seconds: steps(max(1, round(seconds / seconds_per_step)))


def ensemble_of(study: Settings, settings: EncoderBench, text: Text, planned: StepPlan) -> training.Ensemble:
    """Return the study's pre-training ensemble without records, since only training is measured."""
    return recording_nothing(build_ensemble(study, settings.SHAPE, text, planned))


def row_of(entry: Entry, rates: Sequence[float]) -> dict[str, Any]:
    """Return the row of an entry in results.json. threads: per process."""
    cores = environment.cores()
    processes = 1 if entry.side == OURS else entry.models
    return {"side": entry.side, "models": entry.models, "processes": processes, "threads": cores // processes, **spread(rates)}


def ratio_of(entry: Entry, rates: Mapping[Entry, Sequence[float]]) -> dict[str, Any]:
    """Return the ratio of our rate to that of an entry with the same number of models, by measurement."""
    return {"over": entry.side, "models": entry.models, **ratio(rates[Entry(OURS, entry.models)], rates[entry])}


def models_words(models: int) -> str:
    """Describe the form of an entry."""
    return f"one model on {environment.cores()} cores" if models == 1 else f"{models} models, one per core"


def row_line(row: Mapping[str, Any]) -> str:
    """Return the line of an entry for the terminal."""
    rate = f"{row['median']:9,.0f} tokens/s {range_words(row)}"
    return f"{SIDES[row['side']].label:>22}, {models_words(row['models'])}: {rate}"


def ratio_line(row: Mapping[str, Any]) -> str:
    """Return the line of a ratio for the terminal."""
    return f"{models_words(row['models'])}: ours is {over_words(row, SIDES[row['over']].label)}"
