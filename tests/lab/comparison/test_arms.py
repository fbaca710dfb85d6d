"""Names, forks and learning rates of arms."""

from fractions import Fraction

import pytest

from tiejax.lab import tie_at, tied, untie_at, untied
from tiejax.lab.comparison.study import on_records


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
