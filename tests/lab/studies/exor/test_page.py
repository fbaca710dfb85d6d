"""The findings on EXor's pages, which depend on the task and the verdicts."""

import pytest

from tiejax.lab.studies.exor import dose_page, page


def row(name, verdict, estimate=0.113, n=32):
    return {"id": name, "estimate": estimate, "n": n, "verdict": verdict}


def results(zero, one, claims):
    solved = {"untied": [True] * 32, "tied": [True] * 20 + [False] * 12}
    return {"bits": 7, "zero": zero, "one": one, "claims": claims, "solved": solved}


def test_finding_where_dh_fails():
    claims = [
        row("input-semantic/zero", "supported"),
        row("input-semantic/one", "contradicted"),
        row("tied-conflict/untied-input", "supported"),
        row("tying-costs", "supported"),
    ]
    answer, counted = page.finding(results([0.1, 0.9], [0.5, 0.5], claims))
    assert answer == (
        "Where the distributional hypothesis fails, since the spellings of 0 are not equally likely, an untied input table "
        "brings them together (supported, 32 seeds), a tied table keeps them farther apart (supported), and tying costs 0.113 "
        "nats of cross-entropy (supported)."
    )
    assert counted.startswith(
        "Of 4 claims, 3 supported, 1 contradicted. 32 of 32 (100 %) untied and 20 of 32 (62 %) tied models solved"
    )


def test_finding_where_dh_holds():
    claims = [row("input-semantic/one", "supported"), row("tied-faster/input", "contradicted")]
    answer, _ = page.finding(results([1.0, 0.0], [0.5, 0.5], claims))
    assert answer.startswith(
        "Where the distributional hypothesis holds, since the spellings of 1 are equally likely, an untied"
    )
    assert answer.endswith("and a tied table brings them together later (contradicted).")


@pytest.mark.parametrize("solved", [None, {}])
def test_finding_without_pairs_and_risk_only_counts(solved):
    assert page.finding(results([1.0], [1.0], []) | {"solved": solved}) == ["No claim could be tested."]


def test_finding_of_doses_covers_growth_and_the_strongest_dose():
    claims = [
        row("dose-gap/untied", "supported"),
        row("dose-gap/tied", "contradicted"),
        row("dose-cost", "supported"),
        row("tying-costs/0.9", "supported", -0.2),
        row("tying-costs/0.05", "contradicted", -0.2),
    ]
    answer, _ = dose_page.finding({"claims": claims, "doses": [{"p": p} for p in (0.5, 0.9, 0.05)]})
    assert answer == (
        "As p moves away from .5, untied output tables keep the two spellings farther apart (supported, 32 seeds), tied output "
        "tables keep the two spellings closer together (contradicted), and tying costs more cross-entropy (supported). At p = "
        "0.05, tying saves 0.2 nats of cross-entropy (contradicted, 32 seeds)."
    )
