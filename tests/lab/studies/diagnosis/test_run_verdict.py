"""The verdict on a run: whether the distributional hypothesis fails, and whether the models have learnt the task."""

from tiejax.lab.studies.diagnosis.run_page import ACROSS, verdict


def rows(case, residual=0.1):
    return [
        {"set": "one pair", "cases": {"holds: same": 3}, "residual_rms": 0.1},
        {"set": "zero pair", "cases": {case: 2, "holds: same": 1}, "residual_rms": 0.1},
        {"set": ACROSS, "cases": {"holds: different": 3}, "residual_rms": residual},
    ]


def test_violating_pair_is_named_first():
    first, *more = verdict({"equivalence": {"untied": rows("fails: same meaning"), "tied": rows("fails: same meaning")}})
    assert first == (
        "In most members, the thresholds for a violation of the distributional hypothesis are passed for: zero pair. This "
        "describes these members; whether tying costs anything is not tested."
    )
    assert len(more) == 1
    assert more[0].startswith("zero pair: the symbols mean the same but are not used alike")
    assert more[0].endswith("untied (2 of 3), tied (2 of 3)")


def test_untrained_models_are_reported():
    lines = verdict({"equivalence": {"tied": rows("fails: same use", residual=4.0)}})
    assert lines[1].startswith(
        "In most members of tied the residual of a 0 and a 1 is above 2, which is taken as not having learnt"
    )
    assert lines[2].startswith("zero pair: the symbols are used alike")


def test_no_violation():
    (line,) = verdict({"equivalence": {"untied": rows("holds: same")}})
    assert line.startswith("In no set of pairs do most members pass the thresholds")
    assert "whether tying costs anything is not tested" in line
