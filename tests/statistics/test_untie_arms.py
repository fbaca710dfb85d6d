"""The arms of an untie curve: step, policy and new table of each."""

from tiejax.statistics.untie_arms import Arms

STEPS = [0, 25, 50, 75, 100]


def test_arms_are_three_baselines_and_every_policy_at_every_step():
    arms = Arms.of([25, 0.5, 0.75, 0, 1.0], 100, ("copy", "zero"), ("output", "input"))
    assert arms.step.tolist() == [-1, 0, 100, 25, 50, 75, 25, 50, 75, 25, 50, 75]
    assert arms.policy.tolist() == [""] * 3 + ["copy"] * 3 + ["zero"] * 6
    assert arms.new.tolist() == [""] * 3 + ["output"] * 6 + ["input"] * 3
    curves = arms.curves()
    assert {name: arms.step[numbers].tolist() for name, numbers in curves.items()} == dict.fromkeys(
        ["copy", "zero, new output", "zero, new input"], STEPS
    )
    assert curves["zero, new input"].tolist() == [1, 9, 10, 11, 2]
    assert len(set(arms.names)) == 12
    assert arms.names[:3] == ["never-tied-independent", "never-tied-equal", "tied"]
