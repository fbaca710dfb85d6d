"""Training throughput of EXor, recording included, compared with a torch loop and the limit set by arithmetic."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.bench.arithmetic import device_rates, exor_floor, exor_work
from experiments.bench.settings import RECORD_EVERY, Engine, ExorBench
from experiments.bench.timing import TimedEnsemble, range_words, spread, write_results
from tiejax.lab.reporting import figures
from tiejax.lab.reporting.words import number
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.exor.ensemble import build_ensemble

SEEDS_RECORDED = 32  # ensemble size at which the share of recording is measured
ENGINE_COLOURS = {"fast": figures.ORANGE, "plain": figures.BLUE}


def run(settings: ExorBench, console: Console) -> None:
    """Measure everything, print one table, write results.json and one figure."""
    torch_rate = measure_torch(settings, console)
    limit = Limit.of(settings) if settings.model == "transformer" else None
    rows = []
    for engine in settings.measured_engines:
        for seeds in settings.seeds:
            row = measure_ensemble(settings, engine, seeds)
            row["over_torch"] = row["median"] / torch_rate["median"] if torch_rate else None
            row["of_floor"] = row["median"] / limit.floor if limit else None
            rows.append(row)
            console.say(row_line(row))
    # By default there is a record every 500 steps, which take minutes at medium size.
    share = recording_share(settings, settings.measured_engines[0], SEEDS_RECORDED) if settings.size == "small" else None
    if share is not None:
        console.say(
            f"recording at the default schedule takes {share['median']:.1%} of the time {range_words(share, '.1%')}; "
            f"{SEEDS_RECORDED} seeds, {settings.measured_engines[0]}"
        )
    measured: dict[str, Any] = {"torch": torch_rate, "rows": rows, "recording_share": share}
    if limit is None:
        console.result(f"results: {write_results('exor', settings, measured)}")
        return
    console.say(floor_line(limit.work, limit.rates, limit.floors))
    measured |= {"work_per_model_step": limit.work, "device_rates": limit.rates, "floor": limit.floors}
    file = write_results("exor", settings, measured)
    figure = figures.save(plot_throughput(rows, torch_rate, limit.floor), Path(settings.out), "throughput")
    console.result(f"results: {file}, figure: {figure}")


class Limit(NamedTuple):
    """The unavoidable work of a model-step, the peak rates of this machine, and the model-steps per second that they allow."""

    work: dict[str, float]
    rates: dict[str, float]
    floors: dict[str, float]

    @classmethod
    def of(cls, settings: ExorBench) -> "Limit":
        """Count the work for the transformer of these settings, and measure the rates."""
        work, rates = exor_work(settings.study_settings("fast", 1)), device_rates()
        return cls(work, rates, exor_floor(work, rates))

    @property
    def floor(self) -> float:
        """The lower of the two limits, in model-steps per second."""
        return min(self.floors.values())


def measure_torch(settings: ExorBench, console: Console) -> dict[str, float] | None:
    """Return steps per second of one model in torch, or None for other architectures or if torch is not installed."""
    if settings.model != "transformer":
        return None
    if not importlib.util.find_spec("torch"):
        console.say("torch is not installed: the torch loop is left out")
        return None
    from experiments.bench.torch_loop import torch_loop

    loop = torch_loop(settings.study_settings("plain", 1))
    rate = spread([loop(2 * settings.seconds) for _ in range(settings.repeats)])
    console.say(f"torch, one model: {rate['median']:,.0f} steps per second")
    return rate


def timed_ensemble(settings: ExorBench, engine: Engine, seeds: int, recording: bool = True) -> TimedEnsemble:
    """Return an ensemble, compiled and warmed up. recording: whether to record, at EXor's default interval."""
    study = settings.study_settings(engine, seeds, recording)
    ensemble = TimedEnsemble(build_ensemble(study), study.seed_list)
    ensemble.train(20)
    return ensemble


def steps_for(ensemble: TimedEnsemble, seconds: float) -> int:
    """Return about how many steps take `seconds` seconds, as a whole number of record periods if that is at least one."""
    steps = max(20, round(ensemble.steps_in(seconds, 100)))
    return steps if steps <= RECORD_EVERY else round(steps / RECORD_EVERY) * RECORD_EVERY


def measure_ensemble(settings: ExorBench, engine: Engine, seeds: int) -> dict[str, Any]:
    """Return the row of an ensemble in results.json: model-steps per second (recording included if small) and compile time."""
    ensemble, models = timed_ensemble(settings, engine, seeds, recording=settings.size == "small"), 2 * seeds
    steps = steps_for(ensemble, settings.seconds)
    rates = [models * steps / ensemble.train(steps).seconds for _ in range(settings.repeats)]
    return {"engine": engine, "seeds": seeds, "models": models, "compile_s": ensemble.compile_s, **spread(rates)}


def recording_share(settings: ExorBench, engine: Engine, seeds: int) -> dict[str, float]:
    """Return the share of time that recording takes, from alternating measurements with and without it."""
    recorded, bare = (timed_ensemble(settings, engine, seeds, recording) for recording in (True, False))
    steps = max(RECORD_EVERY, steps_for(recorded, settings.seconds))
    return spread([1 - bare.train(steps).seconds / recorded.train(steps).seconds for _ in range(2 * settings.repeats)])


def row_line(row: Mapping[str, Any]) -> str:
    """Return the line of an ensemble for the terminal."""
    compared = "" if row["of_floor"] is None else f"  {number(row['over_torch'])} x torch  {row['of_floor']:.1%} of the floor"
    return (
        f"{row['engine']:>5}  {row['seeds']:4} seeds  {row['models']:4} models  {row['median']:9,.0f} model-steps/s  "
        f"{range_words(row)}  compiled in {row['compile_s']:.1f} s{compared}"
    )


def floor_line(work: Mapping[str, float], rates: Mapping[str, float], floors: Mapping[str, float]) -> str:
    """Return the line about the unavoidable work of a model-step and the throughput that it would allow."""
    return (
        f"floor: {work['flops']:,.0f} flops, {work['exponentials']:,.0f} exponentials and {work['bytes']:,.0f} bytes "
        f"per model-step, at {rates['flops']:.3g} flops, {rates['exponentials']:.3g} exponentials and "
        f"{rates['bytes']:.3g} bytes per second: {floors['arithmetic']:,.0f} model-steps/s if limited by arithmetic, "
        f"{floors['memory']:,.0f} if limited by memory"
    )


def plot_throughput(rows: Sequence[Mapping[str, Any]], torch_rate: Mapping[str, float] | None, floor: float) -> Figure:
    """Plot throughput over the number of models, log-log, with its range. rows: those of results.json."""
    figure, grid = figures.new_figure(1, 1, 6.0, 4.0)
    axes = grid[0, 0]
    for engine, colour in ENGINE_COLOURS.items():
        measured = [row for row in rows if row["engine"] == engine]
        if measured:
            median = np.array([row["median"] for row in measured])
            bars = np.abs([[row["median"] - row["min"], row["max"] - row["median"]] for row in measured]).T
            models = [row["models"] for row in measured]
            axes.errorbar(models, median, yerr=bars, color=colour, marker="o", capsize=3, label=engine)
    if torch_rate:
        axes.axhline(torch_rate["median"], color=figures.GREEN, label="torch, one model")
    axes.axhline(floor, color="black", linestyle="--", linewidth=1, label="floor of the fast engine")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("models in one ensemble")
    axes.set_ylabel("model-steps per second")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.12))
    return figure
