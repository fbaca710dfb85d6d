"""Claims about what the price of tying is made of: the price in arms that change one setting, against the published one.

The price of tying is the final exact cross-entropy of the tied model minus that of the untied model of the same seed. The
claims and their predictions were registered in docs/results/exor_price.md before the first run.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.studies.exor.claims import DISTANCE, NATS
from tiejax.lab.studies.exor.price_arms import run_name
from tiejax.lab.studies.exor.variants import costs_by_seed
from tiejax.statistics.arms import replace_undefined
from tiejax.statistics.claims import Claim

Bodies = Mapping[str, Mapping[str, Any]]
HALF_ASKED, MAIN_BIAS = ("half", "asked"), ("main", "bias")


def arm_claims(bodies: Bodies, variants: Sequence[str], arms: Sequence[str]) -> list[Claim]:
    """Return the claims about the price of tying in each arm of each variant, against the published arm, paired by seed.

    Registered are those of docs/results/exor_price.md; the change of the price in every other arm is exploratory.

    Args:
        bodies: the body of results.json of each run, by `run_name`.
        variants, arms: the variants and arms that were run.
    """
    found = []
    for variant, arm in itertools.product(variants, arms):
        if arm != "published":
            found.append(_price(bodies, variant, arm))
            found.append(_change(bodies, variant, arm) if "published" in arms else None)
    if "published" in arms and MAIN_BIAS[0] in variants and MAIN_BIAS[1] in arms:
        found.append(_distance(bodies))
    return [claim for claim in found if claim is not None]


def _price(bodies: Bodies, variant: str, arm: str) -> Claim | None:
    """Return the price of tying in an arm, which is exploratory; None without exact risk."""
    name = run_name(variant, arm)
    costs = np.array(list(costs_by_seed(bodies[name]).values()))
    estimand = f"the exact cross-entropy in {name} (tied - untied)"
    claim = Claim(
        f"tying-costs/{name}", f"Tying costs cross-entropy in {name}.", estimand, costs, 1, family="exploratory", unit="nats"
    )
    return claim if len(costs) else None


def _change(bodies: Bodies, variant: str, arm: str) -> Claim | None:
    """Return the claim about the price of an arm, less that of the published arm; None without exact risk."""
    before, after = (costs_by_seed(bodies[run_name(variant, one)]) for one in ("published", arm))
    seeds = [seed for seed in before if seed in after]
    if not seeds:
        return None
    differences = np.array([after[seed] - before[seed] for seed in seeds])
    estimand = f"the price of tying in {variant} ({arm} - published)"
    name, words = f"price/{variant}-{arm}", f"{arm} changes the price of tying in {variant}"
    if (variant, arm) == HALF_ASKED:
        words = f"In half, a softmax over the symbols that are asked for changes the price of tying by less than {NATS:g} nat."
        return Claim(name, words, estimand, differences, 0, goal="equivalence", unit="nats", margin=NATS)
    if (variant, arm) == MAIN_BIAS:
        words = "In main, a bias of the logits lowers the price of tying."
        return Claim(name, words, estimand, differences, -1, unit="nats", margin=NATS)
    return Claim(name, f"{words}.", estimand, differences, -1, family="exploratory", unit="nats", margin=NATS)


def _distance(bodies: Bodies) -> Claim | None:
    """Return the claim that a bias brings the conflict pair of main closer together in the tied table."""
    before, after = (_tied_distance(bodies[run_name("main", arm)]) for arm in ("published", "bias"))
    seeds = [seed for seed in before if seed in after]
    if not seeds:
        return None
    differences = np.array([after[seed] - before[seed] for seed in seeds])
    return Claim(
        "distance/main-bias",
        "In main, a bias of the logits brings the zero pair closer together in the tied table.",
        "the relative distance of the zero pair in the tied table of main (bias - published)",
        replace_undefined(differences, -1),
        sign=-1,
        margin=DISTANCE,
    )


def _tied_distance(body: Mapping[str, Any]) -> dict[int, float]:
    """Return the relative distance of the zero pair in the tied table by seed; NaN for diverged models."""
    values = np.array(body["final"]["tied"]["relative_distance"]["input"]["zero"], float)
    return dict(zip(body["seeds"], values.tolist(), strict=True))
