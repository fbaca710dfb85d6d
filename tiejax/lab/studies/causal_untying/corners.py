"""The claim across runs with tables of several sizes: whether tying costs more where the tables are larger."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.comparison.claims import worst_if_diverged
from tiejax.lab.runs.gate import untested
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.claims import gaps, least_squares_slope
from tiejax.statistics.claims import Claim

STATEMENT = (
    "The final loss of always tied models less that of never tied ones, in bits a byte, grows with the logarithm of the size "
    "of the vocabulary over the width of the model."
)
ESTIMAND = "the slope of the validation loss at the end (tied - never-independent) over ln(V / d), by least squares"


def claims(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Claim]:
    """Return the claim about runs with at least two ratios V / d of vocabulary and width; none otherwise.

    It is exploratory if a run does not pass the gate, or if runs have different numbers of steps.

    Args:
        runs: settings and content of results.json of each; those with planted text or without bytes per token are left out.
    """
    runs = [(settings, results) for settings, results in runs if results.get("bytes_per_token")]
    ratios = [results["data"]["vocabulary"] / settings["width"] for settings, results in runs]
    if len(set(ratios)) < 2:
        return []
    gap_of = [gap_by_seed(results) for _, results in runs]
    seeds = sorted(set.intersection(*map(set, gap_of)))
    values = [np.array([gap[seed] for seed in seeds], float) for gap in gap_of]
    slope = least_squares_slope([math.log(ratio) for ratio in ratios], values)
    found = [Claim("corner", STATEMENT, ESTIMAND, slope, 1, unit="bits a byte")]
    alike = len({results["steps"] for _, results in runs}) == 1
    return found if alike and not any(results["gate"]["failed"] for _, results in runs) else untested(found)


def gap_by_seed(results: Mapping[str, Any]) -> dict[int, float]:
    """Return the final loss of the tied model less that of the never tied one of each seed, in bits a byte."""
    arms = (plan.TIED, plan.NEVER_INDEPENDENT)
    losses = worst_if_diverged({arm: np.array(results["arms"][arm]["loss"], float) for arm in arms})
    (gap,) = gaps(losses).values()
    return dict(zip(results["seeds"], (gap / math.log(2) / results["bytes_per_token"]).tolist(), strict=True))
