"""The arms of a run: models that are tied, untied at a fraction of the run, or never tied, and exploratory variants."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from tiejax.lab.comparison import arms
from tiejax.lab.comparison.arms import Change


@dataclasses.dataclass(frozen=True)
class Arm(arms.Arm):
    """A kind of model that is compared.

    Attributes:
        wide: whether it has the parameters of an untied model in a wider tied one.
        deep: likewise in a deeper tied one.
        cosine: whether its learning rate falls along a cosine.
        bias: whether its logits have a bias.
        factorised: whether its input table has half the width of the states, with a linear map between them.
        weights: the weights of the gradients of the input and of the output use of a tied table.
    """

    wide: bool = False
    deep: bool = False
    cosine: bool = False
    bias: bool = False
    factorised: bool = False
    weights: tuple[float, float] = (1.0, 1.0)


CLASSES: tuple[arms.Class, ...] = ("tied", "untied")  # of arms with learning rates of their own
TIED, NEVER_EQUAL, NEVER_INDEPENDENT = "tied", "never-equal", "never-independent"
WIDE, DEEP, FACTORISED = "tied-wide", "tied-deep", "factorised"
EQUAL = ("wide", "deep", "factorised")  # settings that add an arm with about the parameters of the untied models
EARLY = Fraction(1, 3)  # the fork at which distances on planted text are compared
LATE = Fraction(2, 3)  # the fork of the control and of exploratory arms
LONG = Fraction(3, 2)  # the end of longer runs
DECAY = Fraction(1, 5)  # the share of a run, at its end, in which the learning rate falls
EXPLORE = "explore-"  # begins the names of exploratory arms


def untied_at(fraction: Fraction, cosine: bool = False) -> str:
    """Return the name of the arm that unties at a fraction of the run."""
    return f"untie-{fraction}-cosine" if cosine else f"untie-{fraction}"


def at_length(name: str, length: Fraction) -> str:
    """Return the name of an arm that ends at a fraction of the run, as `name` does at its end."""
    return name if length == 1 else f"{name}@{length}"


def length_of(name: str) -> Fraction:
    """Return the fraction of the run at which the arm of a name ends."""
    return Fraction(name.partition("@")[2] or 1)


def shorter_arms(length: Fraction, late: bool) -> list[Arm]:
    """Return the arms that end at a fraction of the run, each a branch of one that goes on at the constant learning rate.

    late: with the one that unties at 2/3 of it.
    """
    falls = (1 - DECAY) * length
    arms = [
        Arm(at_length(TIED, length), True, fork=falls, parent=TIED, end=length),
        Arm(at_length(NEVER_INDEPENDENT, length), False, False, falls, NEVER_INDEPENDENT, end=length, rates="untied"),
    ]
    if late:
        arms.append(Arm(at_length(untied_at(LATE), length), False, fork=LATE * length, parent=TIED, end=length))
    return arms


def arms_of(
    forks: Sequence[Fraction], equal: Sequence[str] = (), cosine: bool = False, lengths: Sequence[Fraction] = ()
) -> list[Arm]:
    """Return the arms of a run: parents before their children.

    forks: fractions at which tied models untie. equal: arms with equal parameters, of `EQUAL`. cosine: add the control.
    lengths: fractions of the run at which branches end.
    """
    arms = [
        Arm(TIED, True),
        *(Arm(untied_at(fork), False, fork=fork, parent=TIED) for fork in forks),
        *([Arm(NEVER_EQUAL, False)] if forks else []),
        Arm(NEVER_INDEPENDENT, False, equal=False),
    ]
    by_name = {
        "wide": Arm(WIDE, True, wide=True),
        "deep": Arm(DEEP, True, deep=True),
        "factorised": Arm(FACTORISED, False, equal=False, factorised=True),
    }
    arms += [arm for name, arm in by_name.items() if name in equal]
    arms += [arm for length in lengths for arm in shorter_arms(length, LATE in forks)]
    if cosine:
        parent = f"{TIED}-cosine"
        arms += [
            Arm(parent, True, cosine=True),
            Arm(untied_at(LATE, True), False, fork=LATE, parent=parent, cosine=True),
            Arm(f"{NEVER_EQUAL}-cosine", False, cosine=True),
        ]
    return arms


def exploratory(forks: Sequence[Fraction]) -> list[Arm]:
    """Return the exploratory arms, which train for one block of seeds: variants of untying at 2/3, and others.

    forks: those of the primary arms, of which one at 1/3 is tied again, and one at 2/3 is the comparison.
    """

    def late(name: str, change: Change, parent: str = TIED) -> Arm:
        return Arm(f"{EXPLORE}{name}", False, fork=LATE, parent=parent, change=change)

    by_use, bias = f"{EXPLORE}by-use", f"{EXPLORE}bias-tied"
    arms = [
        late("zero", Change("zero")),
        late("zero-input", Change("zero", "source")),
        late("slow", Change(rate=0.25)),
        late("fast", Change(rate=4.0)),
        Arm(by_use, True, end=LATE, compared=False, by_use=True),
        late("split", Change("split"), by_use),
        Arm(bias, True, bias=True),
        Arm(f"{EXPLORE}bias-late", False, fork=LATE, parent=bias, bias=True),
        Arm(f"{EXPLORE}bias-never", False, bias=True),
        Arm(f"{EXPLORE}output-owner", True, weights=(0.0, 1.0)),
        Arm(f"{EXPLORE}long-tied", True, fork=LATE, parent=TIED, end=LONG),
    ]
    if EARLY in forks:
        early = untied_at(EARLY)
        arms.append(Arm(f"{EXPLORE}retie", True, fork=LATE, parent=early))
        arms.append(Arm(f"{EXPLORE}long-early", False, fork=LATE, parent=early, end=LONG))
    return arms
