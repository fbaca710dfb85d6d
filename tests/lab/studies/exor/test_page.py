"""The opening of EXor's pages: what they say follows the task and the verdicts."""

import pytest

from tiejax.lab.studies.exor import dose_page, page


def row(name, verdict, estimate=0.113, n=32):
    return {"id": name, "estimate": estimate, "n": n, "verdict": verdict}


def results(zero, one, claims):
    solved = {"untied": [True] * 32, "tied": [True] * 20 + [False] * 12}
    return {"bits": 7, "zero": zero, "one": one, "claims": claims, "solved": solved}


def test_where_dh_fails_the_page_says_for_whom_and_what_tying_costs():
    claims = [
        row("input-semantic/zero", "supported"),
        row("input-semantic/one", "contradicted"),
        row("tied-conflict/untied-input", "supported"),
        row("tying-costs", "supported"),
    ]
    answer, counted = page.finding(results([0.1, 0.9], [0.5, 0.5], claims))
    assert answer == (
        "Where the distributional hypothesis fails, since the spellings of 0 are not equally likely, an untied input table "
        "draws them together (supported, 32 seeds), a tied table holds them farther apart (supported), and tying costs 0.113 "
        "nats of cross-entropy (supported)."
    )
    assert counted.startswith(
        "Of 4 claims, 3 supported, 1 contradicted. 32 of 32 (100 %) untied and 20 of 32 (62 %) tied models solved"
    )


def test_where_dh_holds_the_page_asks_who_is_sooner():
    claims = [row("input-semantic/one", "supported"), row("tied-faster/input", "contradicted")]
    answer, _ = page.finding(results([1.0, 0.0], [0.5, 0.5], claims))
    assert answer.startswith(
        "Where the distributional hypothesis holds, since the spellings of 1 are equally likely, an untied"
    )
    assert answer.endswith("and a tied table draws them together later (contradicted).")


@pytest.mark.parametrize("solved", [None, {}])
def test_without_pairs_and_without_risk_the_page_counts_alone(solved):
    assert page.finding(results([1.0], [1.0], []) | {"solved": solved}) == ["No claim could be tested."]


def test_doses_answer_as_the_conflict_grows_and_at_its_strongest():
    claims = [
        row("dose-gap/untied", "supported"),
        row("dose-gap/tied", "contradicted"),
        row("dose-cost", "supported"),
        row("tying-costs/0.9", "supported", -0.2),
        row("tying-costs/0.05", "contradicted", -0.2),
    ]
    answer, _ = dose_page.finding({"claims": claims, "doses": [{"p": p} for p in (0.5, 0.9, 0.05)]})
    assert answer == (
        "As p moves away from .5, untied output tables hold the two spellings farther apart (supported, 32 seeds), tied output "
        "tables hold the two spellings nearer together (contradicted), and tying costs more cross-entropy (supported). At p = "
        "0.05, tying saves 0.2 nats of cross-entropy (contradicted, 32 seeds)."
    )
