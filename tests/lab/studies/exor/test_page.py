"""The findings and tables on EXor's pages, which depend on the task, the outcomes and the verdicts."""

import re

import numpy as np
import pytest
from exor_runs import DH, MAIN, as_the_paper_says, run_metrics

from tiejax.lab.studies.exor import dose_page, page
from tiejax.lab.studies.exor.analysis import analyse
from tiejax.lab.studies.exor.claim_values import Setup
from tiejax.lab.studies.exor.dose_response import Responses
from tiejax.lab.studies.exor.dose_response import claims as dose_claims
from tiejax.lab.studies.exor.plateaus import Level
from tiejax.statistics.claims import assess
from tiejax.system.json_values import plain


def results(task=MAIN, zero=(0.1, 0.9), one=(0.5, 0.5), change=lambda metrics: None, exact=True):
    """Return the results of a synthetic run of 16 seeds in which untied models solve the task and tied ones do not."""
    metrics = run_metrics(seeds=16, task=task, exact=exact, distance=as_the_paper_says)
    if exact:
        metrics["exact_cross_entropy"][1] += 0.2 + 0.002 * np.arange(16)[:, None, None]
    change(metrics)
    body, _ = analyse(metrics, Setup(task, 0.5, 20_000), [Level("all", 0.55), Level("nothing", 0.77)])
    bayes = {"splits": {"train": {"cross_entropy": 0.5}}}
    return plain({"bits": 7, "zero": zero, "one": one, "steps": 50_000, "bayes": bayes, **body})


def test_finding_where_dh_fails_opens_with_decided_claims():
    answer, counted = page.finding(results())
    assert answer.startswith(
        "DH fails for the pair of spellings of 0, which are not equally likely. "
        "Untied input table: the zero pair is nearer than symbols of different meaning; "
        "the relative distance of the zero pair in the untied input table is 0.8"
    )
    assert "tying costs cross-entropy: the exact cross-entropy is 0.215 nats higher for tied [0." in answer
    assert "(16 seeds; supported)." in answer
    assert "the share of models that solve the task is 1 lower for tied [" in answer
    assert counted.endswith(
        "16 of 16 (100 %) untied and 0 of 16 (0 %) tied models solved the task: their exact cross-entropy came within .1 nat "
        "of that of the best possible predictor and stayed there for 20,000 steps."
    )


def test_finding_where_dh_holds_is_about_the_price_and_the_first_passage():
    answer, _ = page.finding(results(DH, (1.0, 0.0)))
    assert answer.startswith("DH fails for no pair of spellings")
    assert re.search(r"the one pair is nearer than 0.25 is [\d,]+ steps shorter for tied \[", answer)
    assert "The exact cross-entropy is 0.215 nats higher for tied than for untied [" in answer
    assert 'the claim "Where DH fails for no pair of spellings, tying costs less than 0.05 nat" is contradicted.' in answer


def test_finding_without_claims_only_counts():
    found = results() | {"claims": [], "solved": None}
    assert page.finding(found) == ["No claim could be tested."]


def table(found, start):
    (name,) = [name for name in page.tables(found) if name.startswith(f"Numbers: {start}")]
    return page.tables(found)[name]


def test_table_of_losses():
    found = results()
    assert table(found, "exact cross-entropy")[1][0][-1] == "16 of 16 (100 %)"


def test_tables_of_plateaus():
    def climb(metrics):
        metrics["exact_cross_entropy"][1, :4, 7:] = 0.55  # four tied members leave their plateau after step 30,000

    found = results(change=climb)
    assert table(found, "plateaus")[1] == [
        ["all", "-", "0.5500", "16", "4"],
        ["nothing", "-", "0.7700", "0", "12"],
        ["none", "-", "-", "0", "0"],
    ]


def test_diverged_members_are_named_and_left_out_of_medians_only():
    def diverge(metrics):
        metrics["finite"][0, 3, 40:] = False
        metrics["distance_input"][0, 3, 40:] = np.nan
        metrics["exact_cross_entropy"][0, 3, 4:] = np.nan

    found = results(change=diverge)
    (note,) = page.diverged_notes(found)
    assert note.startswith("Diverged: untied seed 3 (at step 20000). They stay in all comparisons")
    assert page.diverged_notes(results()) == []
    _, rows = table(found, "every seed")
    assert rows[3][:3] == ["3", "-", "0.7590"]
    _, medians = table(found, "median")
    losses = [0.55 + 0.001 * seed for seed in range(16) if seed != 3]
    assert medians[0][1].startswith(f"{np.median(losses):.4f}")
    assert table(found, "exact cross-entropy")[1][0][1] == f"{np.mean(losses):.4f}"


@pytest.mark.parametrize("missing", ["exact", "members"])
def test_tables_without_exact_risk_or_members(missing):
    found = results(exact=False) if missing == "exact" else results() | {"claims": []}
    names = list(page.tables(found))
    assert not any("plateaus" in name or "cross-entropy" in name.split(" (")[0] for name in names)
    assert bool(names) == (missing == "exact")


def test_finding_of_doses_covers_growth_and_the_strongest_dose():
    doses = np.array([0.5, 0.9, 0.05])
    bound = np.abs(np.log(doses / (1 - doses)))
    noise = 0.001 * np.sin(np.arange(48)).reshape(3, 16)
    gap = np.stack([bound[:, None] + 0.1 + noise, bound[:, None] - 0.1 + noise], 1)
    excess = np.stack([noise, 0.1 * bound[:, None] - noise], 1)
    solved = np.ones((3, 2, 16), bool)
    solved[2, 1] = False
    claims = assess(dose_claims(Responses(doses, bound, gap, excess, solved)))
    answer, counted = dose_page.finding({"claims": claims, "doses": [{"p": p} for p in (0.5, 0.9, 0.05)]})
    assert (
        "tying costs: the slope of the exact cross-entropy (tied - untied) over |ln(p/(1-p))| is 0.1 nats per nat [" in answer
    )
    assert "the exact cross-entropy at p = 0.05 is 0.294 nats higher for tied [" in answer
    assert "output distance" not in answer
    rows = {row["id"]: row for row in claims}
    assert rows["output-gap/tied/0.9"]["verdict"] == "exploratory"
    assert rows["output-gap/tied/0.9"]["estimate"] == pytest.approx(-0.1, abs=1e-3)
    assert counted.startswith("Of 4 ")
