"""Tokens per second of language models with tied layers, beside the library's in torch, which take turns in one run."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax

from experiments.bench.contender import Contender, Train, Work, allocator, environment_of_sides, take_turns
from experiments.bench.layers import TimedForm, distinct_layers, random_blocks
from experiments.bench.settings import DecoderBench
from experiments.bench.timing import spread, write_results
from tiejax import tying
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.layer_tying.jobs import groups_of
from tiejax.lab.studies.layer_tying.model import build

Side: TypeAlias = Literal["ours", "torch"]
OURS: Side = "ours"
TORCH: Side = "torch"
MAKES: dict[Side, str] = {
    OURS: "experiments.bench.decoder:train_ours",
    TORCH: "experiments.bench.torch_decoder:train_by_library",
}


class Entry(NamedTuple):
    """One side, with so many layers, of which so many are distinct."""

    side: Side
    layers: int
    distinct: int


class OurJob(NamedTuple):
    """What our process trains."""

    settings: DecoderBench
    layers: int
    distinct: int


def run(settings: DecoderBench, console: Console) -> None:
    """Measure both sides in turn, print a table and the ratios, write results.json."""
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    sides: list[Side] = [OURS] if missing else [OURS, TORCH]
    if missing:
        console.say(f"{', '.join(missing)} not installed: ours is measured alone (pip install -e '.[parity]')")
    rows: list[dict[str, Any]] = []
    for layers in settings.layers:
        forms = (layers, distinct_layers(settings.share, layers))
        entries = [Entry(side, layers, distinct) for distinct in forms for side in sides]
        rates = measure(settings, entries)
        for entry in entries:
            rows.append(row_of(settings, entry, rates))
            console.say(row_line(rows[-1]))
    measured = {"rows": rows, "allocator": allocator()}
    console.result(f"results: {write_results('decoder', settings, measured)}")


def measure(settings: DecoderBench, entries: Sequence[Entry]) -> dict[Entry, list[float]]:
    """Return tokens per second of each entry, measured one after the other, entry after entry."""
    jobs = {entry: job_of(settings, entry) for entry in entries}
    contenders = {entry: Contender(MAKES[entry.side], [job], environment_of_sides(a_core=True)) for entry, job in jobs.items()}
    return take_turns(contenders, settings.repeats, settings.seconds)


def job_of(settings: DecoderBench, entry: Entry) -> Any:
    """Return what the process of an entry trains."""
    if entry.side == OURS:
        return OurJob(settings, entry.layers, entry.distinct)
    from experiments.bench.torch_decoder import Job

    study = settings.of_study(entry.layers, "compact")
    return Job(
        architecture=settings.architecture,
        owner=tuple(owner_of(entry.layers, entry.distinct).tolist()),
        width=study.width,
        heads=study.heads,
        vocabulary=settings.vocab_size,
        context=study.context,
        batch_size=study.batch_size,
        threads=environment.cores(),
        learning_rate=study.learning_rate,
        weight_decay=study.weight_decay,
        clip=study.clip,
    )


def owner_of(layers: int, distinct: int) -> tying.Owner:
    """Return the map of so many layers, of which so many are distinct."""
    return tying.independent(layers) if distinct == layers else tying.static_map("sequence", layers, distinct)


def train_ours(job: OurJob) -> Train:
    """Return our steps of one model on all devices together, compiled and warm."""
    settings, study = job.settings, job.settings.of_study(job.layers, "compact")
    devices = groups_of(jax.devices(), models=1, rows=study.batch_size)[0]
    batch = random_blocks(settings)
    form = TimedForm(build(study, settings.vocab_size, 0, devices), owner_of(job.layers, job.distinct), "compact", batch)
    form.seconds_per_step(1)
    of_step = form.seconds_per_step(3)

    def train(seconds: float) -> Work:
        steps = max(1, round(seconds / of_step))
        return Work(steps * batch.tokens.size, steps * form.seconds_per_step(steps))

    return train


def row_of(settings: DecoderBench, entry: Entry, rates: Mapping[Entry, Sequence[float]]) -> dict[str, Any]:
    """Return what results.json has of one entry: milliseconds a step and, of ours, how many times torch's rate it has."""
    tokens, found = settings.batch_size * settings.context, rates[entry]
    other = rates.get(entry._replace(side=TORCH)) if entry.side == OURS else None
    over = None if other is None else spread([ours / theirs for ours, theirs in zip(found, other, strict=True)])
    return {**entry._asdict(), **spread([1000 * tokens / rate for rate in found]), "over_torch": over}


def row_line(row: Mapping[str, Any]) -> str:
    """Write what was measured of one entry."""
    ties = "untied" if row["distinct"] == row["layers"] else f"{row['distinct']} distinct"
    over = row["over_torch"]
    return (
        f"{row['layers']:>3} layers, {ties:<12} {row['side']:>5}  {row['median']:8.1f} ms a step ({row['min']:.1f} to "
        f"{row['max']:.1f})"
    ) + ("" if over is None else f"  {over['median']:.2f} x torch ({over['min']:.2f} to {over['max']:.2f})")
