"""The models of a run and the order in which they train: arms, forks, segments of training and blocks of seeds.

An arm that unties continues from the always-tied model of its seed, its parent, instead of repeating the tied steps. A parent
therefore trains in *segments* that end at the steps where children leave it, and the state at each of these steps is stored
until the children have ended. A child is one segment, from its fork to the last step:

    tied        |---------|---------|-------------------|-----------------|      4 segments
    untie-1/6             |---------------------------------------------->
    untie-1/3                       |------------------------------------>
    untie-2/3                                           |---------------->

Children start from the stored arrays, so that they equal an uninterrupted run bit for bit. Seeds train in blocks, one model on
each device; each segment of each block is a stage of the run.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from tiejax.tying.policies import New, Policy

Class = Literal["tied", "untied"]


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


class Arm(NamedTuple):
    """A kind of model that is compared.

    Attributes:
        name: its name in results.
        tied: whether its tables are tied as long as it trains without a fork.
        equal: whether its tables start equal.
        fork: the fraction of the run at which it leaves its parent, and its tie ends or begins; None for an arm that starts at
            step 0.
        parent: the name of the arm whose state it continues.
        change: what happens to that state.
        end: the fraction of the run at which it ends: before 1, it only serves as a parent; after 1, the learning rate begins
            to fall later as well.
        wide: whether it has the parameters of an untied model in a wider tied one.
        cosine: whether its learning rate falls along a cosine.
        bias: whether its logits have a bias.
        factorised: whether its input table has half the width of the states, with a linear map between them.
        weights: the weights of the gradients of the input and of the output use of a tied table.
        by_use: whether it keeps optimizer states of each use, for children with policy `split`.
    """

    name: str
    tied: bool
    equal: bool = True
    fork: Fraction | None = None
    parent: str | None = None
    change: Change = Change()
    end: Fraction = Fraction(1)
    wide: bool = False
    cosine: bool = False
    bias: bool = False
    factorised: bool = False
    weights: tuple[float, float] = (1.0, 1.0)
    by_use: bool = False

    @property
    def horizon(self) -> Fraction:
        """The fraction of the run at which its learning rate ends."""
        return max(self.end, Fraction(1))

    @property
    def rate_of(self) -> Class:
        """The class of arms whose learning rate it has: that of its parent, if it has one."""
        return "tied" if self.tied or self.parent else "untied"


TIED, NEVER_EQUAL, NEVER_INDEPENDENT, WIDE = "tied", "never-equal", "never-independent", "tied-wide"
EARLY = Fraction(1, 3)  # the fork at which distances on planted text are compared
LATE = Fraction(2, 3)  # the fork of the control and of exploratory arms
LONG = Fraction(3, 2)  # the end of longer runs
EXPLORE = "explore-"  # begins the names of exploratory arms


def untied_at(fraction: Fraction, cosine: bool = False) -> str:
    """Return the name of the arm that unties at a fraction of the run."""
    return _name(f"untie-{fraction}", cosine)


def _name(name: str, cosine: bool) -> str:
    return f"{name}-cosine" if cosine else name


def arms_of(forks: Sequence[Fraction], wide: bool, cosine: bool) -> list[Arm]:
    """Return the arms of a run: parents before their children.

    forks: fractions at which tied models untie. wide: add the wider tied arm. cosine: add the control.
    """
    arms = [
        Arm(TIED, True),
        *(Arm(untied_at(fork), False, fork=fork, parent=TIED) for fork in forks),
        Arm(NEVER_EQUAL, False),
        Arm(NEVER_INDEPENDENT, False, equal=False),
    ]
    if wide:
        arms.append(Arm(WIDE, True, wide=True))
    if cosine:
        parent = _name(TIED, True)
        arms += [
            Arm(parent, True, cosine=True),
            Arm(untied_at(LATE, True), False, fork=LATE, parent=parent, cosine=True),
            Arm(_name(NEVER_EQUAL, True), False, cosine=True),
        ]
    return arms


def planted_arms(forks: Sequence[Fraction]) -> list[Arm]:
    """Return the arms of a run on text with planted symbols."""
    return [arm for arm in arms_of(forks, wide=False, cosine=False) if arm.name != NEVER_EQUAL]


def exploratory(forks: Sequence[Fraction]) -> list[Arm]:
    """Return the exploratory arms, which train for one block of seeds: variants of the untie at 2/3, and others.

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
        Arm(by_use, True, end=LATE, by_use=True),
        late("split", Change("split"), by_use),
        Arm(bias, True, bias=True),
        Arm(f"{EXPLORE}bias-late", False, fork=LATE, parent=bias, bias=True),
        Arm(f"{EXPLORE}bias-never", False, bias=True),
        Arm(f"{EXPLORE}output-owner", True, weights=(0.0, 1.0)),
        Arm(f"{EXPLORE}factorised", False, equal=False, factorised=True),
        Arm(f"{EXPLORE}long-tied", True, fork=LATE, parent=TIED, end=LONG),
    ]
    if EARLY in forks:
        early = untied_at(EARLY)
        arms.append(Arm(f"{EXPLORE}retie", True, fork=LATE, parent=early))
        arms.append(Arm(f"{EXPLORE}long-early", False, fork=LATE, parent=early, end=LONG))
    return arms


class Segment(NamedTuple):
    """A part of the training of an arm: the steps first, ..., last - 1, as fractions of the run.

    after: the segment of the same arm or of its parent whose final state it continues; None at step 0.
    """

    arm: Arm
    first: Fraction
    last: Fraction
    after: "Segment | None"

    @property
    def name(self) -> str:
        """The segment's name in a run directory."""
        within = "" if self.first == self.start and self.final else f".{self.first}"
        return f"{self.arm.name}{within}".replace("/", "-")

    @property
    def final(self) -> bool:
        """Whether its arm ends with it, and is compared."""
        return self.last == self.arm.end >= 1

    @property
    def start(self) -> Fraction:
        """The fraction of the run at which its arm begins."""
        return self.arm.fork or Fraction(0)

    def steps(self, total: int) -> tuple[int, int]:
        """Return its first step and the step after its last, of a run of `total` steps."""
        return step_at(self.first, total), step_at(self.last, total)


def step_at(fraction: Fraction, total: int) -> int:
    """Return the step of a run of `total` steps that is nearest to a fraction of it."""
    return round(fraction * total)


def segments_of(arms: Sequence[Arm]) -> list[Segment]:
    """Return the segments of all arms in training order: each child right after the segment at whose end it forks."""
    return [segment for arm in arms if arm.parent is None for segment in _with_children(arm, arms, None)]


def _with_children(arm: Arm, arms: Sequence[Arm], after: Segment | None) -> Iterator[Segment]:
    """Yield the segments of an arm that continues `after`, and those of its children."""
    children = [child for child in arms if child.parent == arm.name and child.fork is not None]
    forks = sorted({child.fork for child in children if child.fork is not None})
    first = arm.fork or Fraction(0)
    for last in [*forks, *([] if arm.end in forks else [arm.end])]:
        after = Segment(arm, first, last, after)
        yield after
        for child in children:
            if child.fork == last:
                yield from _with_children(child, arms, after)
        first = last


def parents_of(segments: Sequence[Segment]) -> set[str]:
    """Return the names of the segments whose final state another segment continues."""
    return {segment.after.name for segment in segments if segment.after is not None}


def last_reader(segments: Sequence[Segment], name: str) -> str:
    """Return the name of the last segment in training order that continues the state of the segment `name`."""
    return [segment.name for segment in segments if segment.after is not None and segment.after.name == name][-1]


def blocks_of(parts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Split the seeds of each part of a run into blocks of at most `size`."""
    return [list(part[first : first + size]) for part in parts for first in range(0, len(part), size)]
