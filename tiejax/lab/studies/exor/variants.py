"""Claims across variants and arms of EXor about the price of tying, paired by seed: where DH fails less where it holds, and
what the price is made of, from arms that change one setting.

The price of tying is the final exact cross-entropy of the tied model minus that of the untied model of the same seed. The
claims about arms and their predictions were registered in docs/results/exor_price_details.md before the first run.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.lab.studies.exor.claim_values import TIED, UNTIED
from tiejax.lab.studies.exor.claims import DISTANCE, NATS
from tiejax.lab.studies.exor.settings import run_name
from tiejax.lab.studies.exor.task import EXor
from tiejax.statistics.arms import ARMS, replace_diverged, undefined_replaced
from tiejax.statistics.claims import Claim, Family, Goal

Bodies = Mapping[str, Mapping[str, Any]]


class Costs(NamedTuple):
    """The fields of a claim about the cost of tying, `[seed]`: tied - untied, and in which seeds a model diverged."""

    differences: np.ndarray
    replaced: np.ndarray

    def less(self, other: "Costs") -> "Costs":
        """Return the costs less those of other runs of the same seeds."""
        return Costs(self.differences - other.differences, self.replaced | other.replaced)


# The registered claims about changes of the price, by variant and arm: in words, and the sign.
CHANGES = {
    ("half", "asked"): (
        f"In half, a softmax over the symbols that are asked for changes the price of tying by less than {NATS:g} nat.",
        0,
    ),
    ("main", "bias"): ("In main, a bias of the logits lowers the price of tying.", -1),
    ("main", "fast-tables"): ("In main, twice the learning rate of the tables lowers the price of tying.", -1),
}
# Registered ones: (DH fails, DH holds). main and half have the same symbols, as no-dh and dh do. main and dh also differ in
# their symbols, and half costs more than dh although no pair of spellings violates DH in either.
INTERACTIONS = (("main", "half"), ("no-dh", "dh"))


def claims_of_all(bodies: Bodies, variants: Sequence[str], arms: Sequence[str]) -> list[Claim]:
    """Return the claims across variants and those about arms, one family; bodies: see `arm_claims`."""
    assert len({tuple(body["seeds"]) for body in bodies.values()}) == 1  # differences are paired by their places
    published = {name: bodies[name] for name in variants if name in bodies}
    return [*across_claims(published), *arm_claims(bodies, variants, arms)]


def of_first(body: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Return the body of results.json with the final values of the first `seeds` seeds only, as claims take them."""
    final = jax.tree.map(lambda values: values[:seeds], body["final"], is_leaf=lambda values: isinstance(values, list))
    return {**body, "seeds": body["seeds"][:seeds], "final": final}


def across_claims(runs_by_variant: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Return the claims about the price of tying in several variants, and about its differences between them: one family.

    `tying-costs/VARIANT` and `tying-free/VARIANT` are those of a single run (see `claims`). `interaction/FAILS-HOLDS` claims
    that tying costs more in a variant in which DH fails for a pair than in one in which it fails for none. runs_by_variant: the
    body of results.json of a run of each variant, all of the same seeds; those without exact risk are left out.
    """
    costs = {name: found for name, body in runs_by_variant.items() if len((found := costs_of(body)).differences)}
    conflict = {name: _task(runs_by_variant[name]).violating is not None for name in costs}
    prices = [claim for name in costs for claim in _prices(name, _task(runs_by_variant[name]), costs[name])]
    pairs = itertools.product((name for name in costs if conflict[name]), (name for name in costs if not conflict[name]))
    return prices + [_interaction(fails, holds, costs) for fails, holds in pairs] + _both_interactions(costs)


def costs_of(body: Mapping[str, Any]) -> Costs:
    """Return the cost of tying, `[seed]`: final exact cross-entropy on the training split, tied - untied.

    A diverged member, whose loss is None, has the worst loss of the run. Empty without exact risk. body: of results.json.
    """
    risks = [body["final"][arm]["exact_cross_entropy"] for arm in ARMS]
    if None in risks:
        return Costs(np.array([]), np.array([], bool))
    losses = np.array([risk["train"] for risk in risks], float)
    worst = replace_diverged(losses, np.isnan(losses), "high")
    return Costs(worst[TIED] - worst[UNTIED], np.isnan(losses).any(axis=0))


def _task(body: Mapping[str, Any]) -> EXor:
    return EXor(body["bits"], tuple(body["zero"]), tuple(body["one"]))


def _prices(variant: str, task: EXor, costs: Costs) -> list[Claim]:
    pairs = [bit for bit in ("zero", "one") if len(task.used[bit]) > 1]
    found = []
    if task.violating or len(pairs) > 1:
        where = "fails for a pair." if task.violating else "holds for both pairs of spellings."
        words = f"Tying costs cross-entropy in {variant}, where DH {where}"
        found.append(_price(f"tying-costs/{variant}", words, variant, costs, margin=NATS))
    if pairs and not task.violating:
        words = f"Tying costs less than {NATS:g} nat in {variant}, where DH fails for no pair of spellings."
        found.append(_price(f"tying-free/{variant}", words, variant, costs, sign=-1, goal="non-inferiority", margin=NATS))
    return found


def _price(name: str, words: str, run: str, costs: Costs, sign: int = 1, **fields: Any) -> Claim:
    estimand = f"the exact cross-entropy in {run} (tied - untied)"
    return Claim(name, words, estimand, sign=sign, unit="nats", **costs._asdict(), **fields)


def _interaction(fails: str, holds: str, costs: Mapping[str, Costs]) -> Claim:
    return Claim(
        f"interaction/{fails}-{holds}",
        f"Tying costs more cross-entropy in {fails} than in {holds}.",
        f"the cost of tying in exact cross-entropy ({fails} - {holds})",
        sign=1,
        family="registered" if (fails, holds) in INTERACTIONS else "exploratory",
        unit="nats",
        margin=NATS,
        **costs[fails].less(costs[holds])._asdict(),
    )


def _both_interactions(costs: Mapping[str, Costs]) -> list[Claim]:
    """Return the exploratory mean of the registered interactions, if both can be computed."""
    if not {name for pair in INTERACTIONS for name in pair} <= set(costs):
        return []
    each = [costs[fails].less(costs[holds]).differences for fails, holds in INTERACTIONS]
    words = "Tying costs more cross-entropy where DH fails for a pair of spellings, on average over both pairs of variants."
    estimand = "the cost of tying in exact cross-entropy, mean of main - half and no-dh - dh"
    return [
        Claim("interaction/mean", words, estimand, np.mean(each, axis=0), 1, family="exploratory", unit="nats", margin=NATS)
    ]


def arm_claims(bodies: Bodies, variants: Sequence[str], arms: Sequence[str]) -> list[Claim]:
    """Return the claims about the price of tying in each arm of each variant, against the published arm, paired by seed.

    bodies: the body of results.json of each run, by `run_name`.
    """
    costs, found = {name: costs_of(body) for name, body in bodies.items()}, list[Claim]()
    for variant, arm in itertools.product(variants, arms):
        if arm != "published":
            name = run_name(variant, arm)
            words = f"Tying costs cross-entropy in {name}."
            found.append(_price(f"tying-costs/{name}", words, name, costs[name], family="exploratory"))
            if "published" in arms:
                found.append(_change(variant, arm, costs[name].less(costs[variant])))
    if "published" in arms and "main" in variants and "bias" in arms:
        found.append(_distance(bodies))
    # Without exact risk there are no prices.
    return [claim for claim in found if len(claim.differences)]


def _change(variant: str, arm: str, change: Costs) -> Claim:
    """Return the claim about the price of an arm, less that of the published arm."""
    estimand = f"the price of tying in {variant} ({arm} - published)"
    words, sign = CHANGES.get((variant, arm), (f"{arm} changes the price of tying in {variant}.", -1))
    family: Family = "registered" if (variant, arm) in CHANGES else "exploratory"
    goal: Goal = "difference" if sign else "equivalence"
    name = f"price/{variant}-{arm}"
    about: dict[str, Any] = {"goal": goal, "family": family, "unit": "nats", "margin": NATS}
    return Claim(name, words, estimand, sign=sign, **about, **change._asdict())


def _distance(bodies: Bodies) -> Claim:
    """Return the claim that a bias brings the conflict pair of main closer together in the tied table."""

    def of_run(name: str) -> np.ndarray:
        """Return the relative distances of the zero pair in the tied table, `[seed]`; NaN for diverged models."""
        return np.array(bodies[name]["final"]["tied"]["relative_distance"]["input"]["zero"], float)

    return Claim(
        "distance/main-bias",
        "In main, a bias of the logits brings the zero pair closer together in the tied table.",
        "the relative distance of the zero pair in the tied table of main (bias - published)",
        sign=-1,
        margin=DISTANCE,
        **undefined_replaced(of_run("main-bias") - of_run("main"), -1),
    )
