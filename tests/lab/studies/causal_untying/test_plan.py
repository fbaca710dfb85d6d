"""The order of training: forks after their parents, every step trained once, and states kept until their last reader."""

from fractions import Fraction

import pytest

from tiejax.lab.comparison.segments import blocks_of, last_reader, parents_of, segments_of
from tiejax.lab.comparison.training import costs_of
from tiejax.lab.studies.causal_untying import plan

FORKS = [Fraction(1, 6), Fraction(1, 3), Fraction(2, 3)]


def test_segments_of_the_primary_arms():
    segments = segments_of(plan.arms_of(FORKS, wide=True, cosine=False))
    assert [segment.name for segment in segments] == [
        "tied.0", "untie-1-6", "tied.1-6", "untie-1-3", "tied.1-3", "untie-2-3", "tied.2-3",
        "never-equal", "never-independent", "tied-wide",
    ]  # fmt: skip


def test_segments_of_the_control():
    segments = segments_of(plan.arms_of(FORKS, wide=False, cosine=True))
    control = [segment.name for segment in segments if segment.arm.cosine]
    assert control == ["tied-cosine.0", "untie-2-3-cosine", "tied-cosine.2-3", "never-equal-cosine"]


@pytest.mark.parametrize("total", [60, 300, 2800, 1_001])
def test_every_arm_trains_every_step_once(total):
    """From step 0 to the last, through its parent where it has one."""
    for last in segments_of(plan.arms_of(FORKS, wide=True, cosine=True)):
        if last.last != 1:
            continue
        line, steps = last, []
        while line is not None:
            first, end = line.steps(total)
            steps = [*range(first, end), *steps]
            line = line.after
        assert steps == list(range(total))


def test_the_cost_is_that_of_the_specification():
    """10 seeds x (tied, never-equal, never-independent, wide; 1.83 for three forks), and 6 x 2.33 for the control."""
    main = segments_of(plan.arms_of(FORKS, wide=True, cosine=False))
    assert sum(costs_of(main, [0]).values()) == pytest.approx(4 + (5 + 4 + 2) / 6)


def test_a_state_is_kept_until_its_last_reader():
    segments = segments_of(plan.arms_of(FORKS, wide=False, cosine=False))
    assert parents_of(segments) == {"tied.0", "tied.1-6", "tied.1-3"}
    assert last_reader(segments, "tied.0") == "tied.1-6"
    assert last_reader(segments, "tied.1-3") == "tied.2-3"


def test_every_segment_follows_the_one_it_continues():
    seen = set()
    for segment in segments_of(plan.arms_of(FORKS, wide=True, cosine=True)):
        assert segment.after is None or segment.after.name in seen
        seen.add(segment.name)


def test_blocks_do_not_cross_parts():
    assert blocks_of([[0, 1, 2], [3, 4]], 2) == [[0, 1], [2], [3, 4]]


def test_rates_belong_to_the_class_in_which_training_begins():
    rates = {arm.name: arm.rate_of for arm in plan.arms_of(FORKS, wide=True, cosine=False)}
    assert rates == {
        "tied": "tied", "untie-1/6": "tied", "untie-1/3": "tied", "untie-2/3": "tied",
        "never-equal": "untied", "never-independent": "untied", "tied-wide": "tied",
    }  # fmt: skip


def test_exploratory_arms_follow_their_parents():
    """An arm that is tied again continues one that was untied, which then trains in two segments; by-use ends at its fork."""
    arms = [*plan.arms_of(FORKS, wide=False, cosine=False), *plan.exploratory(FORKS)]
    segments = {segment.name: segment for segment in segments_of(arms)}
    assert segments["explore-retie"].after is segments["untie-1-3.1-3"]
    assert (segments["untie-1-3.2-3"].first, segments["untie-1-3.2-3"].last) == (Fraction(2, 3), 1)
    assert [name for name in segments if name.startswith("explore-by-use")] == ["explore-by-use.0"]
    assert segments["explore-split"].after is segments["explore-by-use.0"]
    with_more, primary = (sum(costs_of(segments_of(some), [0]).values()) for some in (arms, arms[:6]))
    assert with_more - primary == pytest.approx(4 / 3 + 1 + 4 / 3 + 1 + 1 + 1 / 3 + 1 + 2 * 5 / 6)
