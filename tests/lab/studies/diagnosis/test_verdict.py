"""What a run's diagnosis says first: whether the distributional hypothesis fails, and whether the models have learnt at all."""

from tiejax.lab.studies.diagnosis import verdict


def rows(case, residual=0.1):
    return [
        {"set": "one pair", "cases": {"holds: same": 3}, "residual_rms": 0.1},
        {"set": "zero pair", "cases": {case: 2, "holds: same": 1}, "residual_rms": 0.1},
        {"set": verdict.ACROSS, "cases": {"holds: different": 3}, "residual_rms": residual},
    ]


def test_a_pair_that_parts_is_named_first():
    first, *more = verdict.of_run({"equivalence": {"untied": rows("fails: same meaning"), "tied": rows("fails: same meaning")}})
    assert first == "The distributional hypothesis, which tying assumes, fails for most members: zero pair."
    assert len(more) == 1
    assert more[0].startswith("zero pair: mean the same and are not used alike")
    assert more[0].endswith("untied (2 of 3), tied (2 of 3)")


def test_models_that_have_not_learnt_are_a_warning():
    lines = verdict.of_run({"equivalence": {"tied": rows("fails: same use", residual=4.0)}})
    assert "have not learnt" in lines[1]
    assert lines[2].startswith("zero pair: are used alike")


def test_nothing_speaks_against_tying():
    (line,) = verdict.of_run({"equivalence": {"untied": rows("holds: same")}})
    assert "none speaks against tying" in line
