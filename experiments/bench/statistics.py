"""Time to test a family of claims by sign flips, compared with the same in plain numpy."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.settings import StatisticsBench
from experiments.bench.timing import spread, write_results
from tiejax.lab.runs.console import Console
from tiejax.statistics.claims import SIGNIFICANCE, Claim, assess
from tiejax.statistics.sign_flips import FLIPS

FLIPS_AT_ONCE = 10_000
EFFECT = 0.05  # mean of the differences in standard deviations, so that p-values vary
NUMPY = "plain numpy, p and 95 % intervals"


class Time(NamedTuple):
    """Duration in seconds, and CPU seconds of all threads, which depend less on other work of the machine."""

    seconds: float
    cpu_s: float


def run(settings: StatisticsBench, console: Console) -> None:
    """Measure both in turn, print the times and the largest difference of their p-values, write results.json."""
    differences = np.random.default_rng(0).normal(EFFECT, 1, (settings.claims, settings.seeds))
    claims = [Claim(str(number), "It is positive.", "the mean", d, 1) for number, d in enumerate(differences)]
    first, rows = _timed(assess, claims)
    times: dict[str, list[Time]] = {"assess": [], NUMPY: []}
    for _ in range(settings.repeats):
        times["assess"].append(_timed(assess, claims)[0])
        elapsed, found = _timed(plain_numpy, differences)
        times[NUMPY].append(elapsed)
    largest = max(abs(row["p"] - p) for row, (p, _, _) in zip(rows, found, strict=True))
    console.say(f"{settings.claims} claims x {settings.seeds:,} seeds x {FLIPS - 1:,} flips")
    console.say(f"assess, first call, with compilation: {first.seconds:.2f} s, {first.cpu_s:.2f} CPU seconds")
    measured = {
        name: {field: spread([getattr(one, field) for one in each]) for field in Time._fields} for name, each in times.items()
    }
    for name, fields in measured.items():
        seconds, cpu = fields["seconds"], fields["cpu_s"]
        spent = f"{seconds['median']:.2f} s ({seconds['min']:.2f} to {seconds['max']:.2f})"
        console.say(f"{name}: {spent}, {cpu['median']:.2f} CPU seconds")
    console.say(f"largest difference of two p-values: {largest:.4f}")
    results = {"first": first._asdict(), "times": measured, "largest_difference_of_p": largest}
    console.result(f"results: {write_results('statistics', settings, results)}")


def _timed(function: Callable[[Any], Any], argument: Any) -> tuple[Time, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    found = function(argument)
    return Time(time.perf_counter() - began, time.process_time() - cpu), found


def plain_numpy(differences: np.ndarray) -> list[tuple[float, float, float]]:
    """Return p and the 95 % interval of every row of differences, from random flips that are independent of ours."""
    rng, (claims, seeds) = np.random.default_rng(1), differences.shape
    total = differences.sum(1)
    low, high = np.full((2, FLIPS, claims), [[[-np.inf]], [[np.inf]]])  # the identity stays so
    for start in range(1, FLIPS, FLIPS_AT_ONCE):
        changes = rng.integers(0, 2, (min(FLIPS_AT_ONCE, FLIPS - start), seeds)).astype(float)
        number = changes.sum(1, keepdims=True)
        sums = changes @ differences.T
        both = sums / number, (total - sums) / (seeds - number)
        low[start : start + len(changes)], high[start : start + len(changes)] = np.minimum(*both), np.maximum(*both)
    p = ((low <= 0) & (high >= 0)).mean(0)
    rejected = int(SIGNIFICANCE * FLIPS)
    ends = np.partition(low, rejected, 0)[rejected], np.partition(high, FLIPS - 1 - rejected, 0)[FLIPS - 1 - rejected]
    return list(zip(p.tolist(), ends[0].tolist(), ends[1].tolist(), strict=True))
