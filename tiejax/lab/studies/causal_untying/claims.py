"""The claims of a run, fixed before it: final validation losses, in nats a token, of arms of the same seeds.

On plain text, two families, each tested together: `plain`, whether tying costs loss, whether untying late helps, how the
difference changes with the length of the run, and models of equal size; and `secondary`, the control with a cosine, and
whether rare and frequent tokens differ. A claim without its arms in a run is left out. Others are exploratory.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.comparison.claims import Losses, compared_losses, rows_by_family, worst_if_diverged
from tiejax.lab.runs.gate import untested
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.planted_claims import Planted, knows_markers
from tiejax.lab.studies.causal_untying.planted_claims import claims as planted_claims
from tiejax.statistics.arms import undefined_replaced
from tiejax.statistics.claims import Claim

MARGIN = 0.01  # nats
PLAIN, SECONDARY, PLANTED = "plain", "secondary", "planted"


class Compared(NamedTuple):
    """A comparison of two arms: `first` is claimed to have the lower final loss, or with sign 1 the higher one."""

    id: str
    first: str
    second: str
    statement: str
    sign: int = -1


# fmt: off
LATE, LATE_COSINE = plan.untied_at(plan.LATE), plan.untied_at(plan.LATE, cosine=True)
TIED_NEVER = Compared("tied/never", plan.TIED, plan.NEVER_INDEPENDENT,
                      "Always tied models end higher than never tied ones whose tables start independently.", 1)
LATE_TIED = Compared("late/tied", LATE, plan.TIED,
                     "Models that are untied at 2/3 of the run end lower than always tied ones.")
LATE_NEVER = Compared("late/never", LATE, plan.NEVER_INDEPENDENT,
                      "Models that are untied at 2/3 of the run end lower than never tied ones whose tables start "
                      "independently.")
LATE_EQUAL = Compared("late/never-equal", LATE, plan.NEVER_EQUAL,
                      "Models that are untied at 2/3 of the run end lower than never tied ones whose tables start equal.")
DEEP_NEVER = Compared("deep/never", plan.DEEP, plan.NEVER_INDEPENDENT,
                      "A deeper tied model ends lower than a never tied one with about as many parameters.")
WIDE_NEVER = Compared("wide/never", plan.WIDE, plan.NEVER_INDEPENDENT,
                      "A wider tied model ends lower than a never tied one with about as many parameters.")
COSINE = Compared("cosine/tied", LATE_COSINE, f"{plan.TIED}-cosine",
                  "With a cosine, models that are untied at 2/3 of the run end lower than always tied ones.")
# fmt: on

# The claim across runs with tables of several sizes: whether tying costs more where the tables are larger.
CORNER = (
    "The final loss of always tied models less that of never tied ones, in bits a byte, grows with the logarithm of the size "
    "of the vocabulary over the width of the model."
)
CORNER_ESTIMAND = "the slope of the validation loss at the end (tied - never-independent) over ln(V / d), by least squares"


def claims(losses: Losses, control: Losses) -> dict[str, list[Claim]]:
    """Return the claims of each family.

    losses: final losses of the arms. control: those of the arms with a cosine, of fewer seeds.
    """

    def compared(of: Losses, *pairs: Compared) -> list[Claim]:
        return [_differs(of, each) for each in pairs if {each.first, each.second} <= set(of)]

    worst = worst_if_diverged(losses)
    plain = compared(losses, TIED_NEVER, LATE_TIED, LATE_NEVER) + _slope_over_length(worst)
    plain += compared(losses, DEEP_NEVER, WIDE_NEVER)
    described = compared(losses, LATE_EQUAL) + _slope(worst)
    return {PLAIN: plain, SECONDARY: compared(control, COSINE) + untested(described)}


def _estimand(first: str, second: str) -> str:
    return f"the validation loss at the end ({first} - {second})"


def _differs(losses: Losses, each: Compared) -> Claim:
    about: dict[str, Any] = {"unit": "nats a token", "margin": MARGIN, **compared_losses(losses, each.first, each.second)}
    return Claim(each.id, each.statement, _estimand(each.first, each.second), sign=each.sign, **about)


def curve(losses: Losses) -> tuple[list[Fraction], list[str]]:
    """Return the fractions of the run for which models are tied, and their arms: from equal tables, never tied to always."""
    forks = sorted({fork for fork in map(_fork_of, losses) if fork is not None})
    untied = [plan.NEVER_EQUAL] if plan.NEVER_EQUAL in losses else []
    return [*[Fraction(0)] * len(untied), *forks, Fraction(1)], [*untied, *map(plan.untied_at, forks), plan.TIED]


def _fork_of(arm: str) -> Fraction | None:
    kind, _, written = arm.partition("untie-")
    return Fraction(written) if not kind and "cosine" not in written and "@" not in written else None


def slopes(losses: Losses) -> np.ndarray:
    """Return the least-squares slope of the final loss over the tied fraction of the run, `[seed]`."""
    fractions, arms = curve(losses)
    return least_squares_slope([float(fraction) for fraction in fractions], [losses[arm] for arm in arms])


def least_squares_slope(x: Sequence[float], values: Sequence[np.ndarray]) -> np.ndarray:
    """Return the slope over x of the least-squares line of every seed, `[seed]`; values: `[seed]` at each x."""
    from_mean = np.asarray(x) - np.mean(x)
    return np.asarray(from_mean @ np.stack(values) / np.square(from_mean).sum())


def _slope(losses: Losses) -> list[Claim]:
    if not {plan.NEVER_EQUAL, plan.TIED} <= set(losses):
        return []
    statement = (
        "Of models that start from equal tables, the final loss falls, by least squares, with the tied fraction of the run."
    )
    estimand = "the slope of the validation loss at the end over the tied fraction of the run, by least squares"
    return [Claim("slope/fraction", statement, estimand, slopes(losses), -1, unit="nats a token")]


def gaps(losses: Losses, first: str = plan.TIED, second: str = plan.NEVER_INDEPENDENT) -> dict[Fraction, np.ndarray]:
    """Return the final loss of an arm less that of another, `[seed]`, by the length of the run, ascending."""
    pairs = {plan.length_of(arm): arm for arm in losses if arm.partition("@")[0] == first}
    others = {length: plan.at_length(second, length) for length in sorted(pairs)}
    return {length: losses[pairs[length]] - losses[other] for length, other in others.items() if other in losses}


def _slope_over_length(losses: Losses) -> list[Claim]:
    found = gaps(losses)
    if len(found) < 2:
        return []
    slope = least_squares_slope([math.log(length) for length in found], [*found.values()])
    statement = (
        "The difference between always tied and never tied models shrinks with the length of the run: it falls, by least "
        "squares, with the logarithm of the number of steps."
    )
    estimand = "the slope of the validation loss at the end (tied - never-independent) over ln of the steps, by least squares"
    return [Claim("slope/length", statement, estimand, slope, -1, unit="nats a token")]


def interaction(losses: Mapping[str, np.ndarray]) -> list[Claim]:
    """Return the claim that untying late changes the loss of rare tokens more upwards; losses: arm -> `[seed, bucket]`.

    Buckets go from frequent to rare tokens; a bucket without a target in the held-out text leaves the claim out.
    """
    if not {LATE, plan.TIED} <= set(losses):
        return []
    change = losses[LATE] - losses[plan.TIED]
    found = undefined_replaced(change[:, -1] - change[:, 0], 1)
    if not np.isfinite(found["differences"]).all():
        return []
    statement = (
        "Untying at 2/3 of the run, instead of never, changes the loss of the rarest tokens more upwards, or less downwards, "
        "than that of the most frequent ones."
    )
    groups = "of the rarest tokens less that of the most frequent (the first and the last group)"
    estimand = f"{_estimand(LATE, plan.TIED)}, {groups}"
    return [Claim("frequency/late-tied", statement, estimand, sign=1, unit="nats a token", margin=MARGIN, **found)]


def rank_words(name: str) -> str:
    """Return the name of a group of tokens in words: a range of frequency ranks, or planted symbols."""
    return "planted symbols" if name == "planted" else f"frequency rank {name}"


def by_frequency(losses: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Claim]:
    """Return the exploratory differences between arms by token frequency; losses: arm -> `[seed, bucket]`."""
    rows = []
    for each in (LATE_TIED, LATE_NEVER, LATE_EQUAL):
        if not {each.first, each.second} <= set(losses):
            continue
        for number, name in enumerate(names):
            differences = losses[each.first][:, number] - losses[each.second][:, number]
            if np.isfinite(differences).all():
                estimand = f"{_estimand(each.first, each.second)}, tokens of {rank_words(name)}"
                statement = f"The same as {each.id} for tokens of {rank_words(name)}."
                rows.append(Claim(f"{each.id}/rank-{name}", statement, estimand, differences, -1, unit="nats a token"))
    return untested(rows)


def verdicts(
    losses: Losses,
    buckets: Mapping[str, np.ndarray],
    names: Sequence[str],
    looks: Sequence[int],
    planned: int,
    planted: Planted | None = None,
    tested: bool = True,
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all claims by family, as tested at every look (see `assess_in_looks`).

    On planted text its claims are the only family that is tested; comparisons of losses are exploratory.

    losses: final losses `[seed]`; arms with a cosine may have fewer seeds. buckets: the same by bucket, of these names. looks:
    numbers of seeds at which the claims are tested, of `planned` looks. tested: whether claims are tested, or all exploratory.
    """

    if planted is not None and plan.untied_at(plan.EARLY) in losses:  # the same at every look
        planted = planted._replace(learnt=knows_markers(planted))

    def at(seeds: int) -> dict[str, list[Claim]]:
        main = {arm: values[:seeds] for arm, values in losses.items() if not arm.endswith("-cosine")}
        control = {arm: values[:seeds] for arm, values in losses.items() if arm.endswith("-cosine")}
        families = claims(main, control)
        of_buckets = {arm: values[:seeds] for arm, values in buckets.items()}
        families[SECONDARY] += interaction(of_buckets)
        exploratory = by_frequency(of_buckets, names)
        if planted is None:
            return {PLAIN: families[PLAIN], SECONDARY: families[SECONDARY] + exploratory}
        return {PLANTED: planted_claims(planted.of_seeds(seeds)) + untested(families[PLAIN]) + exploratory}

    return rows_by_family(at, looks, planned, tested)


def claims_across(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Claim]:
    """Return the claim about runs, settings and results.json of each, with at least two ratios V / d; none otherwise.

    It is exploratory if a run does not pass the gate, or if runs have different numbers of steps. Runs with planted text or
    without bytes per token are left out.
    """
    runs = [(settings, results) for settings, results in runs if results.get("bytes_per_token")]
    ratios = [results["data"]["vocabulary"] / settings["width"] for settings, results in runs]
    if len(set(ratios)) < 2:
        return []
    gap_of = [gap_by_seed(results) for _, results in runs]
    seeds = sorted(set.intersection(*map(set, gap_of)))
    values = [np.array([gap[seed] for seed in seeds], float) for gap in gap_of]
    slope = least_squares_slope([math.log(ratio) for ratio in ratios], values)
    found = [Claim("corner", CORNER, CORNER_ESTIMAND, slope, 1, unit="bits a byte")]
    alike = len({results["steps"] for _, results in runs}) == 1
    return found if alike and not any(results["gate"]["failed"] for _, results in runs) else untested(found)


def gap_by_seed(results: Mapping[str, Any]) -> dict[int, float]:
    """Return the final loss of the tied model less that of the never tied one of each seed, in bits a byte."""
    arms = (plan.TIED, plan.NEVER_INDEPENDENT)
    losses = worst_if_diverged({arm: np.array(results["arms"][arm]["loss"], float) for arm in arms})
    (gap,) = gaps(losses).values()
    return dict(zip(results["seeds"], (gap / math.log(2) / results["bytes_per_token"]).tolist(), strict=True))
