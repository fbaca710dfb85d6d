"""The arms of a comparison: models that are tied, untied, or tied for a part of their training."""

import dataclasses
from fractions import Fraction
from typing import Literal, NamedTuple

from tiejax.tying.policies import New, Policy

Class = Literal["tied", "untied"]
MOST_DENOMINATOR = 1000  # of the fraction of a run at which a tie ends or begins


class Change(NamedTuple):
    """What happens to the state of a parent when a child leaves it.

    Attributes:
        policy: the change of the optimizer's state when the tie ends (`tying.untie`).
        new: the table that counts as new: the output table (`target`) or the input table (`source`).
        rate: factor of the new table's learning rate from then on.
    """

    policy: Policy = "copy"
    new: New = "target"
    rate: float = 1.0


COPY = Change()


@dataclasses.dataclass(frozen=True)
class Arm:
    """A kind of model that is compared.

    Attributes:
        name: its name in results.
        tied: whether its ties are on as long as it trains without a fork.
        equal: whether the leaves of its ties start equal.
        fork: the fraction of the run at which it leaves its parent, and its ties end or begin; None for an arm that starts at
            step 0.
        parent: the name of the arm whose state it continues.
        change: what happens to that state.
        end: the fraction of the run at which it ends; its learning rate falls in the last part before it.
        compared: whether its final loss is compared; an arm that only serves as a parent has the learning rates of a whole run.
        by_use: whether it keeps optimizer states of each use, for children with policy `split`.
        rates: the class of arms whose learning rates it has, by default that in which it starts.
    """

    name: str
    tied: bool
    equal: bool = True
    fork: Fraction | None = None
    parent: str | None = None
    change: Change = COPY
    end: Fraction = Fraction(1)
    compared: bool = True
    by_use: bool = False
    rates: Class | None = None

    @property
    def horizon(self) -> Fraction:
        """The fraction of the run at which its learning rate ends."""
        return self.end if self.compared else Fraction(1)

    @property
    def trained(self) -> "Arm":
        """The arm with what its training steps depend on, and nothing of how it starts: arms that share it share programs."""
        change = COPY if self.change.rate == 1 else self.change._replace(policy=COPY.policy)
        alike = dataclasses.replace(self, name="", equal=True, fork=None, parent=None, by_use=False, rates=None)
        return dataclasses.replace(alike, change=change, end=self.horizon, compared=True)

    @property
    def rate_of(self) -> Class:
        """The class of arms whose learning rate it has: that of its parent, if it has one."""
        return self.rates or ("tied" if self.tied or self.parent else "untied")


tied = Arm("tied", True)
untied = Arm("untied", False, equal=False)


def untie_at(fraction: float | Fraction, policy: Policy = "copy", new: New = "target") -> Arm:
    """Return the arm that is tied until a fraction of the run, and untied from there on.

    Args:
        fraction: between 0 and 1; the learning rate of the default schedule begins to fall at .8.
        policy: how the optimizer state continues (`tiejax.untie`).
        new: the leaf of each tie that counts as new, for the policy.

    Raises:
        ValueError: The fraction is not between 0 and 1.
    """
    fork = _fork("untie_at", fraction)
    more = "" if (policy, new) == ("copy", "target") else f"-{policy}" + ("-source" if new == "source" else "")
    return Arm(f"untie-{fork}{more}", False, fork=fork, parent=tied.name, change=Change(policy, new))


def tie_at(fraction: float | Fraction) -> Arm:
    """Return the arm that is untied until a fraction of the run, and tied from there on, starting from the mean of both leaves.

    Args:
        fraction: between 0 and 1.

    Raises:
        ValueError: The fraction is not between 0 and 1.
    """
    fork = _fork("tie_at", fraction)
    return Arm(f"tie-{fork}", True, fork=fork, parent=untied.name, rates="untied")


def _fork(name: str, fraction: float | Fraction) -> Fraction:
    found = Fraction(fraction).limit_denominator(MOST_DENOMINATOR) if 0 < fraction < 1 else Fraction(0)
    if not 0 < found < 1:
        raise ValueError(f"{name}: expected a fraction of the run between 0 and 1, got {fraction}")
    return found
