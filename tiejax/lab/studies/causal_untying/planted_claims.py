"""The claims of a run on planted text, fixed before it: what becomes of each kind of pairs when tied models are untied.

One family. The distance of a pair counts relative to its distance at the step of untying, which the untied model shares with
the tied one of its seed; pairs of a kind are averaged within a seed.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tiejax.lab.comparison.segments import step_at
from tiejax.lab.studies.causal_untying import plan
from tiejax.statistics.arms import replace_diverged, undefined_replaced
from tiejax.statistics.claims import Claim
from tiejax.text.planted_pairs import CHOICES, CIPHER

CONFLICT = ("constant", "contextual")  # kinds of twins for which the distributional hypothesis fails
DISTANCE_MARGIN, EXCESS_MARGIN = 0.05, 0.01  # of the distance at the step of untying; nats a choice
LEARNT = 0.35  # nats: half of the excess, ln 2, of a model that does not know which marker began the sentence
TABLES = ("input", "output")
Arrays = Mapping[str, np.ndarray]


class Planted(NamedTuple):
    """What claims and figures of planted text are computed from.

    arrays: of all seeds, as `ARM/FIELD`. kinds: the kind of every pair, in the order of recorded distances. steps: of the run.
    learnt: whether models know what the markers do (see `knows_markers`), if that was found from other seeds.
    """

    arrays: Arrays
    kinds: Sequence[str]
    steps: int
    learnt: bool | None = None

    def of_seeds(self, seeds: int) -> "Planted":
        """Return the same of the first seeds."""
        return self._replace(
            arrays={name: values if name.endswith("step") else values[:seeds] for name, values in self.arrays.items()}
        )

    def relative(self, arm: str, table: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return recorded steps, and by kind the mean distance relative to that at the early untie, `[seed, record]`."""
        step, distance = self.arrays[f"{arm}/train_step"], self.arrays[f"{arm}/train_pair_{table}"]
        at_fork = distance[:, step == step_at(plan.EARLY, self.steps)]
        relative = distance / at_fork
        kinds = np.array(self.kinds)
        return step, {kind: relative[:, :, kinds == kind].mean(axis=2) for kind in dict.fromkeys(self.kinds)}

    def at_end(self, arm: str, table: str) -> dict[str, np.ndarray]:
        """Return by kind the mean distance at the end relative to that at the early untie, `[seed]`."""
        return {kind: values[:, -1] for kind, values in self.relative(arm, table)[1].items()}

    def excess(self, arm: str) -> dict[str, np.ndarray]:
        """Return by kind of choice the final loss less the least possible one, in nats a choice, `[seed]`."""
        total, number = self.arrays[f"{arm}/excess"].astype(float), self.arrays[f"{arm}/choices"].astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            return dict(zip(CHOICES, (total / number).T, strict=True))


def claims(planted: Planted) -> list[Claim]:
    """Return the claims whose arms are in the run."""
    early, late = plan.untied_at(plan.EARLY), plan.untied_at(plan.LATE)
    arms = {field.removesuffix("/nats") for field in planted.arrays if field.endswith("/nats")}
    found = []
    if {early, plan.TIED} <= arms:
        found += [_conflict(planted, early), _reverse(planted, early)]
    if {late, plan.TIED} <= arms:
        found.append(_spelling(planted, late))
    return found


def knows_markers(planted: Planted) -> bool:
    """Return whether models that are untied at 1/3 choose between a word and its cipher with an excess loss below .35 nats."""
    if planted.learnt is not None:
        return planted.learnt
    return bool(np.nanmean(planted.excess(plan.untied_at(plan.EARLY))[CIPHER]) < LEARNT)


def _conflict(planted: Planted, early: str) -> Claim:
    untied, tied = (planted.at_end(arm, "input") for arm in (early, plan.TIED))
    change = {kind: untied[kind] - tied[kind] for kind in (*CONFLICT, "holding")}
    of_conflict = np.mean([change[kind] for kind in CONFLICT], axis=0)
    return Claim(
        "input-distance/conflict",
        "Untying at 1/3 of the run, instead of never, lowers the final distance of conflict twins in the input table more than "
        "that of holding twins.",
        "the relative distance in the input table at the end (untied at 1/3 - tied), of conflict twins less holding ones",
        sign=-1,
        unit="of the distance at the untie",
        margin=DISTANCE_MARGIN,
        **undefined_replaced(of_conflict - change["holding"], -1),
    )


def _reverse(planted: Planted, early: str) -> Claim:
    """Return the claim about markers; exploratory if models have not learnt what they do."""
    relative = planted.at_end(early, "output")
    learnt = knows_markers(planted)
    untested = "" if learnt else (
        f" (not tested: the excess loss of the choice between a word and its cipher is not below {LEARNT:g} nats, so that "
        "these models do not know what the markers do)"
    )  # fmt: skip
    return Claim(
        "output-distance/reverse",
        "In models that are untied at 1/3 of the run, the relative distance in the output table is smaller at the end for the "
        f"markers of reverse pairs than for unrelated words{untested}.",
        "the relative distance in the output table at the end, of reverse pairs less unrelated ones (untied at 1/3)",
        sign=-1,
        family="registered" if learnt else "exploratory",
        unit="of the distance at the untie",
        margin=DISTANCE_MARGIN,
        one_arm=True,
        **undefined_replaced(relative["reverse"] - relative["unrelated"], -1),
    )


def _spelling(planted: Planted, late: str) -> Claim:
    both = np.stack([planted.excess(arm)["contextual"] for arm in (late, plan.TIED)])
    diverged = ~np.isfinite(both)
    both = replace_diverged(both, diverged, "high")
    return Claim(
        "excess/contextual",
        "Models that are untied at 2/3 of the run have a lower excess loss than always tied ones in the choice between a word "
        "and its contextual twin.",
        "the excess loss of the choice between a word and its contextual twin at the end (untied at 2/3 - tied)",
        both[0] - both[1],
        -1,
        unit="nats a choice",
        margin=EXCESS_MARGIN,
        replaced=diverged.any(axis=0),
    )
