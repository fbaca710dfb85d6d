"""The order of training: forks after their parents, every step trained once, and states kept until their last reader."""

from fractions import Fraction

import pytest

from tiejax.lab.comparison.segments import blocks_of, last_reader, parents_of, segments_of
from tiejax.lab.comparison.training import costs_of
from tiejax.lab.studies.causal_untying import plan

FORKS = [Fraction(1, 6), Fraction(1, 3), Fraction(2, 3)]
LENGTHS = [Fraction(1, 8), Fraction(1, 4), Fraction(1, 2)]


def test_segments_of_the_primary_arms():
    segments = segments_of(plan.arms_of(FORKS, ["wide"]))
    assert [segment.name for segment in segments] == [
        "tied.0", "untie-1-6", "tied.1-6", "untie-1-3", "tied.1-3", "untie-2-3", "tied.2-3",
        "never-equal", "never-independent", "tied-wide",
    ]  # fmt: skip


def test_segments_of_the_control():
    segments = segments_of(plan.arms_of(FORKS, cosine=True))
    control = [segment.name for segment in segments if segment.arm.cosine]
    assert control == ["tied-cosine.0", "untie-2-3-cosine", "tied-cosine.2-3", "never-equal-cosine"]


@pytest.mark.parametrize("total", [60, 300, 2800, 1_001])
def test_every_arm_trains_every_step_once(total):
    """From step 0 to the last, through its parent where it has one."""
    for last in segments_of(plan.arms_of(FORKS, plan.EQUAL, True, LENGTHS)):
        if not last.final:
            continue
        line, steps = last, []
        while line is not None:
            first, end = line.steps(total)
            steps = [*range(first, end), *steps]
            line = line.after
        assert steps == list(range(round(last.arm.horizon * total)))


def test_the_cost_is_that_of_the_specification():
    """10 seeds x (tied, never-equal, never-independent, wide; 1.83 for three forks), and 6 x 2.33 for the control."""
    main = segments_of(plan.arms_of(FORKS, ["wide"]))
    assert sum(costs_of(main, [0]).values()) == pytest.approx(4 + (5 + 4 + 2) / 6)


def test_without_forks_models_are_always_or_never_tied():
    assert [arm.name for arm in plan.arms_of([])] == ["tied", "never-independent"]


def test_shorter_runs_are_branches():
    """Those of tied and never tied models leave where the rate begins to fall, and the untied ones at 2/3 of their length."""
    arms = {arm.name: arm for arm in plan.arms_of(FORKS, lengths=LENGTHS)}
    forks = {name: (arm.parent, arm.fork, arm.horizon) for name, arm in arms.items() if name.endswith("@1/4")}
    assert forks == {
        "tied@1/4": ("tied", Fraction(1, 5), Fraction(1, 4)),
        "never-independent@1/4": ("never-independent", Fraction(1, 5), Fraction(1, 4)),
        "untie-2/3@1/4": ("tied", Fraction(1, 6), Fraction(1, 4)),
    }
    assert arms["never-independent@1/4"].rate_of == "untied"
    more, whole = (sum(costs_of(segments_of(plan.arms_of(FORKS, lengths=some)), [0]).values()) for some in (LENGTHS, ()))
    assert more - whole == pytest.approx((1 / 5 + 1 / 5 + 1 / 3) * 7 / 8)
    assert [plan.length_of(name) for name in ("tied", "tied@1/4")] == [1, Fraction(1, 4)]


def test_a_state_is_kept_until_its_last_reader():
    segments = segments_of(plan.arms_of(FORKS))
    assert parents_of(segments) == {"tied.0", "tied.1-6", "tied.1-3"}
    assert last_reader(segments, "tied.0") == "tied.1-6"
    assert last_reader(segments, "tied.1-3") == "tied.2-3"


def test_every_segment_follows_the_one_it_continues():
    seen = set()
    for segment in segments_of(plan.arms_of(FORKS, plan.EQUAL, True, LENGTHS)):
        assert segment.after is None or segment.after.name in seen
        seen.add(segment.name)


def test_blocks_do_not_cross_parts():
    assert blocks_of([[0, 1, 2], [3, 4]], 2) == [[0, 1], [2], [3, 4]]


def test_rates_belong_to_the_class_in_which_training_begins():
    rates = {arm.name: arm.rate_of for arm in plan.arms_of(FORKS, ["wide"])}
    assert rates == {
        "tied": "tied", "untie-1/6": "tied", "untie-1/3": "tied", "untie-2/3": "tied",
        "never-equal": "untied", "never-independent": "untied", "tied-wide": "tied",
    }  # fmt: skip


def test_exploratory_arms_follow_their_parents():
    """An arm that is tied again continues one that was untied, which then trains in two segments; by-use ends at its fork."""
    arms = [*plan.arms_of(FORKS), *plan.exploratory(FORKS)]
    segments = {segment.name: segment for segment in segments_of(arms)}
    assert segments["explore-retie"].after is segments["untie-1-3.1-3"]
    assert (segments["untie-1-3.2-3"].first, segments["untie-1-3.2-3"].last) == (Fraction(2, 3), 1)
    assert [name for name in segments if name.startswith("explore-by-use")] == ["explore-by-use.0"]
    assert segments["explore-split"].after is segments["explore-by-use.0"]
    with_more, primary = (sum(costs_of(segments_of(some), [0]).values()) for some in (arms, arms[:6]))
    assert with_more - primary == pytest.approx(4 / 3 + 1 + 4 / 3 + 1 + 1 / 3 + 1 + 2 * 5 / 6)


def test_arms_that_share_programs():
    """They differ only in how they start; all others differ in their models, optimizers or ties."""
    by_program: dict[plan.Arm, list[str]] = {}
    every_arm = [*plan.arms_of(FORKS[1:], plan.EQUAL, True, LENGTHS[2:]), *plan.exploratory(FORKS[1:])]
    for arm in every_arm:
        by_program.setdefault(arm.trained, []).append(arm.name.removeprefix(plan.EXPLORE))
    assert [names for names in by_program.values() if len(names) > 1] == [
        ["tied", "by-use", "retie"],
        ["untie-1/3", "untie-2/3", "never-equal", "never-independent", "zero", "zero-input", "split"],
        ["never-independent@1/2", "untie-2/3@1/2"],
        ["untie-2/3-cosine", "never-equal-cosine"],
        ["bias-late", "bias-never"],
    ]
