"""Names, forks and learning rates of arms."""

from fractions import Fraction
from types import SimpleNamespace

import pytest

from tiejax.lab import tie_at, tied, untie_at, untied
from tiejax.lab.comparison.arms import Arm, Change
from tiejax.lab.comparison.segments import segments_of
from tiejax.lab.comparison.study import on_records
from tiejax.lab.comparison.training import Trainer, stage_of


def test_an_arm_that_changes_continues_the_other():
    late, back = untie_at(2 / 3), tie_at(0.25)
    assert (late.name, late.fork, late.parent, late.rate_of) == ("untie-2/3", Fraction(2, 3), "tied", "tied")
    assert (back.name, back.fork, back.parent, back.rate_of) == ("tie-1/4", Fraction(1, 4), "untied", "untied")
    assert (tied.rate_of, untied.rate_of, untied.equal) == ("tied", "untied", False)
    assert untie_at(0.5, "zero", "source").name == "untie-1/2-zero-source"


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, 1e-9])
def test_a_fork_is_within_the_run(fraction):
    with pytest.raises(ValueError, match="expected a fraction of the run between 0 and 1"):
        untie_at(fraction)


@pytest.mark.parametrize(("steps", "every", "expected"), [(2000, 50, 1350), (300, 100, 200), (7, 1, 5), (10, 10, 0)])
def test_forks_are_at_records(steps, every, expected):
    (moved,) = on_records([untie_at(2 / 3)], steps, every)
    assert moved.name == "untie-2/3"
    assert moved.fork * steps == (expected or 1)  # after at least one step


def test_arms_that_train_alike_share_programs():
    """Whatever they started from; other ties, another end and another rate of a table are other programs."""
    recipe = SimpleNamespace(ensemble=lambda *given: list(given), judge=lambda arm: [arm])
    trainer, half = Trainer(recipe, 60, None), Fraction(1, 2)
    changed = Arm("fast", False, fork=half, parent="tied", change=Change(rate=4.0))
    alike = [untied, untie_at(half), untie_at(half, "zero", "source"), Arm("part", False, end=half, compared=False)]
    other = [tied, Arm("short", False, end=half), changed]
    for kept in (trainer.judge, lambda arm: trainer.ensemble(arm, 30, 60)):
        assert len({id(kept(arm)) for arm in alike}) == 1
        assert len({id(kept(arm)) for arm in [untied, *other]}) == 4
    assert trainer.ensemble(tied, 0, 30) is not trainer.ensemble(tied, 30, 60)
    assert trainer.ensemble(tied, 0, 30)[1:] == [0, 30, 60]


def test_names_of_stages_of_many_seeds_are_short_and_differ():
    """A stage names a folder, of at most 255 bytes."""
    (segment, *_) = segments_of([tied, untied])
    many = [list(range(3000, 3100)), [*range(3000, 3098), 4000, 3099]]
    names = [stage_of(segment, seeds) for seeds in (*many, [0, 1])]
    assert len(set(names)) == 3
    assert max(map(len, names)) < 200
    assert names[2] == f"{segment.name}.seed-0-1"
