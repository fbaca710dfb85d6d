"""The claims of a comparison, fixed before it: differences of final losses between arms, paired by seed."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.comparison.arms import Arm
from tiejax.lab.runs.gate import untested
from tiejax.statistics.arms import replace_diverged
from tiejax.statistics.claims import Claim, assess_in_looks

MAIN, OWN = "main", "own"
Losses = Mapping[str, np.ndarray]  # arm -> final loss, [seed]
OwnClaims = Callable[[Losses], Sequence[Claim]]


def compared(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Return the pairs of arms that are compared, each with the one that is claimed to end lower first."""
    arms = [arm for arm in arms if arm.compared]
    names = {arm.name for arm in arms}
    ends = [name for name in ("tied", "untied") if name in names]
    changing = [arm.name for arm in arms if arm.fork is not None]
    others = [arm.name for arm in arms if arm.fork is None and arm.name not in ends]
    pairs = [("tied", "untied")] if len(ends) == 2 else []
    return pairs + [(name, end) for name in (*changing, *others) for end in ends]


def worst_if_diverged(losses: Losses) -> dict[str, np.ndarray]:
    """Return final losses with those of models that diverged replaced by the highest loss of any other model."""
    values = np.stack(list(losses.values()))
    return dict(zip(losses, replace_diverged(values, ~np.isfinite(values), "high"), strict=True))


def compared_losses(losses: Losses, first: str, second: str) -> dict[str, np.ndarray]:
    """Return the fields of a claim about two arms: `differences`, first - second, and which are `replaced` (diverged)."""
    worst = worst_if_diverged(losses)
    return {
        "differences": worst[first] - worst[second],
        "replaced": ~(np.isfinite(losses[first]) & np.isfinite(losses[second])),
    }


def claims(
    losses: Losses, arms: Sequence[Arm], margin: float | None, unit: str, own: OwnClaims | None
) -> dict[str, list[Claim]]:
    """Return the claims of each family: differences, and one's own."""
    families: dict[str, list[Claim]] = {MAIN: [], OWN: []}
    for first, second in compared(arms):
        about: dict[str, Any] = {"unit": unit, "margin": margin, **compared_losses(losses, first, second)}
        estimand = f"the held-out loss at the end ({first} - {second})"
        statement = f"{first} models end with a lower held-out loss than {second} ones."
        families[MAIN].append(Claim(f"{first}/{second}", statement[0].upper() + statement[1:], estimand, sign=-1, **about))
    if own is not None:
        some = ~np.all([np.isfinite(of_arm) for of_arm in losses.values()], axis=0)
        families[OWN] += [
            dataclasses.replace(claim, replaced=some)
            if claim.replaced is None and len(claim.differences) == len(some)
            else claim
            for claim in own(worst_if_diverged(losses))
        ]
    return {name: found for name, found in families.items() if found}


def rows_by_family(
    claims_of: Callable[[int], Mapping[str, Sequence[Claim]]], looks: Sequence[int], planned: int, tested: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all claims by family, each tested together, as tested at every look (see `assess_in_looks`).

    claims_of: number of seeds -> the claims of each family. tested: whether claims are tested, or all exploratory.
    """

    def of_family(seeds: int, family: str) -> Sequence[Claim]:
        found = claims_of(seeds)[family]
        return found if tested else untested(found)

    return {
        family: assess_in_looks(functools.partial(of_family, family=family), looks, planned) for family in claims_of(looks[0])
    }
