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

Class = Literal["tied", "untied"]


class Arm(NamedTuple):
    """A kind of model that is compared.

    Attributes:
        name: its name in results.
        tied: whether its tables are tied as long as it trains without a fork.
        equal: whether its tables start equal.
        untie: the fraction of the run at which it leaves its parent and is untied; None for an arm that starts at step 0.
        parent: the name of the arm whose state it continues.
        wide: whether it has the parameters of an untied model in a wider tied one.
        cosine: whether its learning rate falls along a cosine.
    """

    name: str
    tied: bool
    equal: bool = True
    untie: Fraction | None = None
    parent: str | None = None
    wide: bool = False
    cosine: bool = False

    @property
    def rate_of(self) -> Class:
        """The class of arms whose learning rate it has: that of its parent, if it has one."""
        return "tied" if self.tied or self.parent else "untied"


TIED, NEVER_EQUAL, NEVER_INDEPENDENT, WIDE = "tied", "never-equal", "never-independent", "tied-wide"
CONTROL_FORK = Fraction(2, 3)  # of the control with a cosine


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
        *(Arm(untied_at(fork), False, untie=fork, parent=TIED) for fork in forks),
        Arm(NEVER_EQUAL, False),
        Arm(NEVER_INDEPENDENT, False, equal=False),
    ]
    if wide:
        arms.append(Arm(WIDE, True, wide=True))
    if cosine:
        parent = _name(TIED, True)
        arms += [
            Arm(parent, True, cosine=True),
            Arm(untied_at(CONTROL_FORK, True), False, untie=CONTROL_FORK, parent=parent, cosine=True),
            Arm(_name(NEVER_EQUAL, True), False, cosine=True),
        ]
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
        within = "" if self.first == self.start and self.last == 1 else f".{_written(self.first)}"
        return f"{self.arm.name}{within}".replace("/", "-")

    @property
    def start(self) -> Fraction:
        """The fraction of the run at which its arm begins."""
        return self.arm.untie or Fraction(0)

    def steps(self, total: int) -> tuple[int, int]:
        """Return its first step and the step after its last, of a run of `total` steps."""
        return step_at(self.first, total), step_at(self.last, total)


def _written(fraction: Fraction) -> str:
    return str(fraction)


def step_at(fraction: Fraction, total: int) -> int:
    """Return the step of a run of `total` steps that is nearest to a fraction of it."""
    return round(fraction * total)


def segments_of(arms: Sequence[Arm]) -> list[Segment]:
    """Return the segments of all arms in training order: each child right after the segment at whose end it forks."""
    return [segment for arm in arms if arm.parent is None for segment in _with_children(arm, arms)]


def _with_children(arm: Arm, arms: Sequence[Arm]) -> Iterator[Segment]:
    children = [child for child in arms if child.parent == arm.name and child.untie is not None]
    forks = sorted({child.untie for child in children if child.untie is not None})
    after: Segment | None = None
    for first, last in zip([Fraction(0), *forks], [*forks, Fraction(1)], strict=True):
        after = Segment(arm, first, last, after)
        yield after
        yield from (Segment(child, last, Fraction(1), after) for child in children if child.untie == last)


def parents_of(segments: Sequence[Segment]) -> set[str]:
    """Return the names of the segments whose final state another segment continues."""
    return {segment.after.name for segment in segments if segment.after is not None}


def last_reader(segments: Sequence[Segment], name: str) -> str:
    """Return the name of the last segment in training order that continues the state of the segment `name`."""
    return [segment.name for segment in segments if segment.after is not None and segment.after.name == name][-1]


def blocks_of(parts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Split the seeds of each part of a run into blocks of at most `size`."""
    return [list(part[first : first + size]) for part in parts for first in range(0, len(part), size)]


def rounds(segments: Sequence[Segment], blocks: Sequence[Sequence[int]]) -> Fraction:
    """Return the cost of training all segments for all blocks, in whole runs of one block."""
    each = sum((segment.last - segment.first for segment in segments), Fraction(0))
    return each * len(blocks)
