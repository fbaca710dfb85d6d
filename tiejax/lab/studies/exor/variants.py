"""Claims across variants of EXor: the price of tying in each, and where DH fails less where it holds, paired by seed."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.studies.exor.claim_values import TIED, UNTIED
from tiejax.lab.studies.exor.claims import NATS
from tiejax.lab.studies.exor.task import EXor
from tiejax.statistics.arms import ARMS, replace_diverged
from tiejax.statistics.claims import Claim, Family

INTERACTIONS = (("no-dh", "dh"), ("main", "dh"))  # registered ones: (DH fails, DH holds)


def across_claims(runs_by_variant: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Return the claims about the price of tying in several variants, and about its differences between them: one family.

    `tying-costs/VARIANT` and `tying-free/VARIANT` are those of a single run (see `claims`). `interaction/FAILS-HOLDS` claims
    that tying costs more in a variant in which DH fails for a pair than in one in which it fails for none, by the seeds that
    both have; it is registered for no-dh and main against dh, and exploratory for other pairs of variants.

    Args:
        runs_by_variant: the body of results.json of a run of each variant; variants without exact risk are left out. The
            settings of the runs should differ in nothing but the variant.
    """
    costs = {name: found for name, body in runs_by_variant.items() if (found := costs_by_seed(body))}
    conflict = {name: _task(runs_by_variant[name]).violating is not None for name in costs}
    prices = [claim for name in costs for claim in _prices(name, _task(runs_by_variant[name]), costs[name])]
    pairs = itertools.product((name for name in costs if conflict[name]), (name for name in costs if not conflict[name]))
    return prices + [_interaction(fails, holds, costs) for fails, holds in pairs]


def costs_by_seed(body: Mapping[str, Any]) -> dict[int, float]:
    """Return the cost of tying of each seed: final exact cross-entropy on the training split, tied - untied.

    A diverged member, whose loss is None, has the worst loss of the run.

    Args:
        body: the body of results.json.
    """
    risks = [body["final"][arm]["exact_cross_entropy"] for arm in ARMS]
    if None in risks:
        return {}
    losses = np.array([risk["train"] for risk in risks], float)
    losses = replace_diverged(losses, np.isnan(losses), "high")
    return dict(zip(body["seeds"], (losses[TIED] - losses[UNTIED]).tolist(), strict=True))


def _task(body: Mapping[str, Any]) -> EXor:
    return EXor(body["bits"], tuple(body["zero"]), tuple(body["one"]))


def _prices(variant: str, task: EXor, costs: Mapping[int, float]) -> list[Claim]:
    differences, estimand = np.array(list(costs.values())), f"the exact cross-entropy in {variant} (tied - untied)"
    pairs = [bit for bit in ("zero", "one") if len(task.used[bit]) > 1]
    found = []
    if task.violating or len(pairs) > 1:
        words = f"Tying costs cross-entropy in {variant}, where DH " + (
            "fails for a pair." if task.violating else "holds for both pairs of spellings."
        )
        found.append(Claim(f"tying-costs/{variant}", words, estimand, differences, sign=1, unit="nats", margin=NATS))
    if pairs and not task.violating:
        words = f"Tying costs less than {NATS:g} nat in {variant}, where DH fails for no pair of spellings."
        found.append(
            Claim(f"tying-free/{variant}", words, estimand, differences, -1, goal="non-inferiority", unit="nats", margin=NATS)
        )
    return found


def _interaction(fails: str, holds: str, costs: Mapping[str, Mapping[int, float]]) -> Claim:
    family: Family = "registered" if (fails, holds) in INTERACTIONS else "exploratory"
    common = [seed for seed in costs[fails] if seed in costs[holds]]
    return Claim(
        f"interaction/{fails}-{holds}",
        f"Tying costs more cross-entropy in {fails} than in {holds}.",
        f"the cost of tying in exact cross-entropy ({fails} - {holds})",
        np.array([costs[fails][seed] - costs[holds][seed] for seed in common]),
        sign=1,
        family=family,
        unit="nats",
        margin=NATS,
    )
