"""Tokens per second of language models with tied layers, compared with the transformers library's models in torch."""

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax

from experiments.bench.contender import Side, Train, Work, allocator, compare, environment_of_sides, installed
from experiments.bench.layers import TimedForm, distinct_layers, random_blocks
from experiments.bench.settings import DecoderBench
from experiments.bench.timing import over_words, range_words, ratio, spread, write_results
from tiejax import tying
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.layer_tying.jobs import groups_of
from tiejax.lab.studies.layer_tying.model import build

SideName = Literal["ours", "torch", "torch-each"]
OURS: SideName = "ours"
TORCH: SideName = "torch"  # one model on all cores
TORCH_EACH: SideName = "torch-each"  # a model on each core, as ours


LIBRARY = ("torch", "transformers"), "experiments.bench.torch_decoder:train_by_library"
SIDES: dict[SideName, Side] = {
    OURS: Side("ours", (), "experiments.bench.decoder:train_ours"),
    TORCH: Side("the library's model", *LIBRARY),
    TORCH_EACH: Side("the library's model on each core", *LIBRARY),
}


class Entry(NamedTuple):
    """A side and a model: `layers` layers, `distinct` of them distinct."""

    side: SideName
    layers: int
    distinct: int


class OurJob(NamedTuple):
    """The model that our process trains."""

    settings: DecoderBench
    layers: int
    distinct: int


def run(settings: DecoderBench, console: Console) -> None:
    """Measure all sides in turn, print a table with the ratios, write results.json."""
    sides, variables = installed(SIDES, console), environment_of_sides(device_a_core=True)
    rows: list[dict[str, Any]] = []
    for layers in settings.layers:
        forms = (layers, distinct_layers(settings.share, layers))
        entries = [Entry(side, layers, distinct) for distinct in forms for side in sides]
        jobs = {entry: [job_of(settings, entry)] * processes(entry) for entry in entries}
        rates = compare(settings, {entry: (SIDES[entry.side].train, jobs[entry], variables) for entry in entries})
        for entry in entries:
            rows.append(row_of(settings, entry, rates))
            console.say(row_line(rows[-1]))
    measured = {"rows": rows, "allocator": allocator()}
    console.result(f"results: {write_results('decoder', settings, measured)}")


def processes(entry: Entry) -> int:
    """Return the number of processes of an entry; ours trains its models in one."""
    return environment.cores() if entry.side == TORCH_EACH else 1


def job_of(settings: DecoderBench, entry: Entry) -> Any:
    """Return the job of each process of an entry."""
    if entry.side == OURS:
        return OurJob(settings, entry.layers, entry.distinct)
    study, owner = settings.study_settings(entry.layers, "compact"), owner_of(entry.layers, entry.distinct)
    return torch_job(study, settings.architecture, owner, study.learning_rate, environment.cores() // processes(entry))


def torch_job(study: Any, architecture: Literal["gpt2", "bert"], owner: tying.Owner, learning_rate: float, threads: int) -> Any:
    """Return the job of a torch process: a model as that of a study, in which layer i is layer owner[i]."""
    from experiments.bench.torch_decoder import Job

    return Job(
        architecture=architecture,
        owner=tuple(owner.tolist()),
        width=study.width,
        heads=study.heads,
        vocabulary=study.vocab_size,
        context=study.context,
        batch_size=study.batch_size,
        threads=threads,
        learning_rate=learning_rate,
        weight_decay=study.weight_decay,
        clip=study.clip,
    )


def owner_of(layers: int, distinct: int) -> tying.Owner:
    """Return the owner of each of `layers` layers when `distinct` of them are distinct."""
    return tying.independent(layers) if distinct == layers else tying.static_map("sequence", layers, distinct)


def train_ours(job: OurJob) -> Train:
    """Return our training, compiled and warmed up: a model on each CPU device, as in a run, or one on all accelerators."""
    settings, study = job.settings, job.settings.study_settings(job.layers, "compact")
    groups = groups_of(jax.devices(), 1, study.batch_size, jax.default_backend())
    batch, owner = random_blocks(settings), owner_of(job.layers, job.distinct)
    threads = concurrent.futures.ThreadPoolExecutor(len(groups))

    def start(devices: Sequence[jax.Device]) -> TimedForm:
        with jax.default_device(devices[0]):
            return TimedForm(build(study, settings.vocab_size, 0, devices), owner, "compact", batch)

    forms = list(threads.map(start, groups))

    def seconds_per_step(steps: int) -> float:
        """Train every model `steps` steps; return the seconds that a step of all models takes."""
        began = time.perf_counter()
        for done in [threads.submit(form.seconds_per_step, steps) for form in forms]:
            done.result()
        return (time.perf_counter() - began) / steps

    seconds_per_step(1)
    estimate = seconds_per_step(3)

    def train(seconds: float) -> Work:
        steps = max(1, round(seconds / estimate))
        return Work(steps * batch.tokens.size * len(forms), steps * seconds_per_step(steps))

    return train


def row_of(settings: DecoderBench, entry: Entry, rates: Mapping[Entry, Sequence[float]]) -> dict[str, Any]:
    """Return the row of an entry in results.json: milliseconds per batch and, for ours, the ratios of its rate to torch's."""
    tokens, measured = settings.batch_size * settings.context, rates[entry]

    def over(side: SideName) -> dict[str, float] | None:
        other = rates.get(entry._replace(side=side)) if entry.side == OURS else None
        return None if other is None else ratio(measured, other)

    ratios = {"over_torch": over(TORCH), "over_torch_each": over(TORCH_EACH)}
    return {**entry._asdict(), **spread([1000 * tokens / rate for rate in measured]), **ratios}


def row_line(row: Mapping[str, Any]) -> str:
    """Return the line of an entry for the terminal."""
    ties = "untied" if row["distinct"] == row["layers"] else f"{row['distinct']} distinct"
    ratios = "".join(
        f"  {over_words(over, name)}"
        for name, over in (("torch", row["over_torch"]), ("torch, a model on each core", row["over_torch_each"]))
        if over is not None
    )
    rate = f"{row['median']:8.1f} ms per batch {range_words(row, '.1f')}"
    return f"{row['layers']:>3} layers, {ties:<12} {row['side']:>10}  {rate}{ratios}"
