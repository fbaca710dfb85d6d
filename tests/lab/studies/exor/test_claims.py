"""The claims about EXor on synthetic runs: which of them apply, and their verdicts."""

import numpy as np
import pytest
from exor_runs import DH, MAIN, NO_DH, as_the_paper_says, run_metrics

from tiejax.lab.studies.exor.analysis import analyse

REVERSE = {"output-reverse/output", "output-reverse/input", "output-reverse/tied"}
FASTER = {"tied-faster/input", "tied-faster/output"}
# Where the spellings of a bit are not equally likely:
CONFLICT = {"tied-conflict/untied-input", "tied-unstable/input", "tied-unstable/output", "tying-costs"}
CONFLICT |= {"output-gap/untied", "output-gap/tied"}
BOTH_PAIRS = {"input-semantic/zero", "output-conditional", "tied-conflict/one-pair"}
ALWAYS = {"input-semantic/one", "solved"} | REVERSE
EXPECTED = {
    "main": ALWAYS | BOTH_PAIRS | FASTER | CONFLICT,
    "dh": ALWAYS | FASTER,
    "no-dh": ALWAYS | CONFLICT,
}


@pytest.mark.parametrize(("name", "symbols"), [("main", MAIN), ("dh", DH), ("no-dh", NO_DH)])
def test_applicable_claims_of_each_variant(name, symbols):
    found, _ = analyse(run_metrics(symbols=symbols, distance=as_the_paper_says), symbols, 0.5, 20_000)
    assert {row["id"] for row in found["claims"]} == EXPECTED[name]


def test_run_that_behaves_as_claimed_supports_the_claims():
    metrics = run_metrics(seeds=16, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][1] += 0.2 + 0.002 * np.arange(16)[:, None, None]
    found, _ = analyse(metrics, MAIN, 0.5, 20_000)
    verdicts = {row["id"]: row["verdict"] for row in found["claims"]}
    # All untied and no tied members solved the task: without variance, McNemar's test does not decide `solved`.
    undecided = {name for name, verdict in verdicts.items() if verdict != "supported"}
    assert undecided == {"solved", "output-gap/tied"}
    assert found["solved"] == {"untied": [True] * 16, "tied": [False] * 16}


def test_opposite_run_contradicts_the_claims():
    def opposite(table, arm, seed, steps, pair):
        return as_the_paper_says(table, arm, seed, steps, {(0, 1): (2, 3), (2, 3): (0, 1)}.get(pair, pair))

    found, _ = analyse(run_metrics(seeds=16, distance=opposite), MAIN, 0.5, 20_000)
    verdicts = {row["id"]: row["verdict"] for row in found["claims"]}
    assert verdicts["output-conditional"] == "contradicted"
    assert verdicts["tied-conflict/one-pair"] == "contradicted"


def test_non_finite_members_are_excluded_and_named():
    metrics = run_metrics(distance=as_the_paper_says)
    metrics["finite"][1, 3, 40:] = False
    metrics["distance_input"][1, 3, 40:] = np.nan
    metrics["exact_cross_entropy"][1, 3, 5:] = np.nan
    found, runs = analyse(metrics, MAIN, 0.5, 20_000)
    assert found["excluded_seeds"] == [3]
    assert found["seeds"] == [0, 1, 2, 4, 5, 6, 7]
    assert all(row["n"] <= 7 for row in found["claims"])
    assert np.isfinite(runs.distance["input"]["zero"]).all()
    everyone, _ = analyse(run_metrics(distance=as_the_paper_says), MAIN, 0.5, 20_000)
    del everyone["final"]["tied"]["distance"]["input"]["zero"][3]
    assert found["final"]["tied"]["distance"]["input"]["zero"] == everyone["final"]["tied"]["distance"]["input"]["zero"]


def test_values_without_exact_risk_are_null():
    found, _ = analyse(run_metrics(exact=False, distance=as_the_paper_says), MAIN, 0.5, 20_000)
    assert found["solved"] is None
    assert found["final"]["untied"]["exact_cross_entropy"] is None
    assert not {"solved", "tying-costs"} & {row["id"] for row in found["claims"]}


def test_claims_among_solved_pairs():
    metrics = run_metrics(seeds=10, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][0, :3] = 1.2  # untied members of seeds 0 to 2 sit on a plateau
    metrics["exact_cross_entropy"][1, 9] = 1.05
    found, _ = analyse(metrics, MAIN, 0.5, 20_000)
    assert found["solved_pairs"] == [3, 4, 5, 6, 7, 8]
    rows = {row["id"]: row for row in found["claims_solved_pairs"]}
    assert rows["output-conditional"]["n"] == 6
    assert "solved" not in rows
    counts = {row["id"]: row["n"] for row in found["claims"]}
    assert (counts["output-gap/untied"], counts["output-gap/tied"]) == (7, 9)
