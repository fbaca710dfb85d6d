"""The order in which the models of a comparison train: forks, segments of training and blocks of seeds.

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
from typing import NamedTuple

from tiejax.lab.comparison.arms import Arm


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
    def words(self) -> str:
        """What the segment is called on the console."""
        return self.arm.name if self.first == self.start else f"{self.arm.name} from {self.first} of the steps"

    @property
    def final(self) -> bool:
        """Whether its arm ends with it, and is compared."""
        return self.arm.compared and self.last == self.arm.end

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
