"""Tied and untied models of EXor, each at its own best learning rate: runs that choose it, and the reported runs.

    OUT/NAME/tuning-RATE        both kinds of models at one rate, on seeds that are not reported
    OUT/NAME/rate-RATE          both at the best rate of one of them, on the reported seeds

Each is an ordinary run. The reported results of a kind of models are those of the run at its best rate.
"""

import dataclasses
import functools
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.lab.runs.rates import Tried, choose_rates
from tiejax.lab.studies.exor.settings import Settings
from tiejax.statistics.arms import ARMS

Results = Mapping[str, Any]


def choose(own: Settings, trained: Callable[[Settings], Results]) -> dict[str, Tried]:
    """Return the learning rates that were tried for untied and for tied models of a variant and an arm (see `choose_rates`).

    The loss is the final exact cross-entropy of the training split, infinite for models that diverged. trained: settings of a
    run -> its results; trains it if it has not finished.
    """
    assert own.rates is not None

    @functools.cache
    def losses(rate: float) -> dict[str, np.ndarray]:
        body = trained(dataclasses.replace(_at(own, rate, f"tuning-{float(rate)!r}"), seeds=own.tuning_seeds))
        final = {arm: np.array(body["final"][arm]["exact_cross_entropy"]["train"], float) for arm in ARMS}
        return {arm: np.where(np.isfinite(values), values, np.inf) for arm, values in final.items()}

    return {
        arm: choose_rates(own.rates, lambda pairs, arm=arm: np.stack([losses(rate)[arm] for rate, _ in pairs]))  # type: ignore[misc]
        for arm in ARMS
    }


def reported(own: Settings, tried: Mapping[str, Tried]) -> dict[str, Settings]:
    """Return the settings of the reported run of each kind of models, at its best rate."""
    return {arm: _at(own, each.rate, f"rate-{float(each.rate)!r}") for arm, each in tried.items()}


def begun(own: Settings) -> list[Settings]:
    """Return the settings of the runs of a variant and an arm that have begun, at any rate."""
    kinds = {"tuning": own.tuning_seeds, "rate": own.seeds}
    found = [(kind, folder) for kind in kinds for folder in sorted(Path(own.out or "").glob(f"{kind}-*"))]
    return [
        dataclasses.replace(_at(own, float(folder.name.partition("-")[2]), folder.name), seeds=kinds[kind])
        for kind, folder in found
    ]


def seeds_left(own: Settings, outs: Container[str | None], best: Mapping[str, Tried] | None) -> int:
    """Return how many seeds are still to be trained for a variant and an arm, besides the run directories `outs`.

    best: as `choose` returns them; None before they are known, when two that differ are expected among those of the settings.
    """
    assert own.rates is not None
    if best is None:
        tuning = sum(_at(own, rate, f"tuning-{float(rate)!r}").out not in outs for rate in own.rates)
        return tuning * own.rate_seeds + 2 * own.number_of_seeds
    return len({run.out for run in reported(own, best).values() if run.out not in outs}) * own.number_of_seeds


def _at(own: Settings, rate: float, folder: str) -> Settings:
    return dataclasses.replace(own, learning_rate=rate, rates=None, out=f"{own.out}/{folder}")


def joined(bodies: Mapping[str, Results]) -> dict[str, Any]:
    """Return the results of each kind of models as those of one run; bodies: kind -> the results of the run at its best rate.

    Claims within a run, of both kinds at one rate, are left out.
    """
    first, *others = (bodies[arm] for arm in ARMS)
    of_arms = {
        name: {arm: body[name][arm] for arm, body in bodies.items()}
        for name in ("final", "solved", "solve_time")
        if first[name]
    }
    non_finite = [row for arm, body in bodies.items() for row in body["non_finite"] if row["arm"] == arm]
    timings = [first["timing"], *(other["timing"] for other in others if other is not first)]
    seconds = {name: sum(timing[name] for timing in timings) for name in ("compile_s", "train_s")}
    return {
        **first,
        **of_arms,
        "non_finite": non_finite,
        "excluded_seeds": sorted({row["seed"] for row in non_finite}),
        "claims": [],
        "timing": first["timing"] | seconds,
    }
