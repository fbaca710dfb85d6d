"""Claims across variants: prices, and interactions paired by seed."""

import numpy as np
import pytest

from tiejax.lab.runs.parts import Looks
from tiejax.lab.studies.exor.variants import across_claims, costs_of, of_first
from tiejax.lab.studies.exor.variants_run import summarise
from tiejax.statistics.claims import assess

SPELLINGS = {
    "main": ([0.1, 0.9], [0.5, 0.5]),
    "dh": ([1.0, 0.0], [0.5, 0.5]),
    "no-dh": ([1.0, 0.0], [0.1, 0.9]),
    "half": ([0.5, 0.5], [0.5, 0.5]),
}


def body(variant, seeds, untied, tied):
    zero, one = SPELLINGS[variant]
    final = {name: {"exact_cross_entropy": {"train": losses}} for name, losses in (("untied", untied), ("tied", tied))}
    return {"bits": 7, "zero": zero, "one": one, "seeds": seeds, "final": final}


def flat(variant, cost, seeds=range(12)):
    """Return a run whose tied models lose `cost` more, with a little noise that is not the same in any two variants."""
    noise = 0.001 * np.sin(np.array([*seeds]) * (3 + len(variant)))
    return body(variant, [*seeds], [0.5] * len(seeds), (0.5 + cost + noise).tolist())


def test_prices_and_interactions_of_the_published_variants():
    runs = {"main": flat("main", 0.2), "half": flat("half", 0.05), "dh": flat("dh", -0.1), "no-dh": flat("no-dh", 0.1)}
    claims = [claim for claim in across_claims(runs) if claim.family == "registered" and claim.id != "tying-free/half"]
    expected = {"tying-costs/main": 0.2, "tying-costs/half": 0.05, "tying-free/dh": -0.1, "tying-costs/no-dh": 0.1}
    expected |= {"interaction/main-half": 0.15, "interaction/no-dh-dh": 0.2}
    assert {claim.id: round(float(claim.differences.mean()), 2) for claim in claims} == expected
    rows = {row["id"]: row for row in assess(claims)}
    assert {row["verdict"] for row in rows.values()} == {"supported"}
    assert rows["tying-free/dh"]["goal"] == "non-inferiority"


def test_opposite_prices_contradict_the_claims():
    rows = assess(across_claims({"no-dh": flat("no-dh", -0.2), "dh": flat("dh", 0.3)}))
    assert {row["id"]: row["verdict"] for row in rows} == dict.fromkeys(
        ("tying-costs/no-dh", "tying-free/dh", "interaction/no-dh-dh"), "contradicted"
    )


def test_variants_that_differ_in_more_than_dh_have_exploratory_interactions():
    runs = {"main": flat("main", 0.2), "half": flat("half", 0.1), "dh": flat("dh", 0.0)}
    families = {claim.id: claim.family for claim in across_claims(runs)}
    assert set(families) == {
        "tying-costs/main", "tying-costs/half", "tying-free/half", "tying-free/dh", "interaction/main-half",
        "interaction/main-dh",
    }  # fmt: skip
    assert [name for name, family in families.items() if family == "exploratory"] == ["interaction/main-dh"]


def test_diverged_members_have_the_worst_loss_and_runs_without_exact_risk_are_left_out():
    run = body("main", [0, 1, 2], [0.5, None, 0.6], [0.7, 0.5, None])
    differences, replaced = costs_of(run)
    assert differences == pytest.approx([0.2, 0.5 - 0.7, 0.7 - 0.6])
    assert replaced.tolist() == [False, True, True]
    without = body("dh", [0, 1], [0.5, 0.5], [0.5, 0.5])
    for arm in without["final"].values():
        arm["exact_cross_entropy"] = None
    assert [claim.id for claim in across_claims({"main": run, "dh": without})] == ["tying-costs/main"]


def test_claims_are_tested_again_with_appended_seeds_at_a_share_of_the_level():
    """Of 24 seeds the first 12 show a price, and the others the opposite: the verdict of the first look stays."""
    costs = np.r_[np.full(12, 0.2), np.full(12, -0.2)] + 0.01 * np.sin(np.arange(24))
    run = body("dh", [*range(24)], [0.5] * 24, (0.5 + costs).tolist())
    run |= dict.fromkeys(("model", "steps", "solving_window", "solved", "solve_time")) | {
        "excluded_seeds": [], "non_finite": [], "bayes": {"splits": {"train": {"cross_entropy": 0.3}}}, "claims": [],
        "timing": {"train_s": 1.0, "compile_s": 1.0, "model_steps_per_s": 1.0},
    }  # fmt: skip
    found = summarise({"dh": run}, ["dh"], ["published"], Looks([12, 24], [12, 24], appended=True))
    (row,) = found["claims"]
    assert (row["id"], row["n"], row["look"], row["verdict"]) == ("tying-free/dh", 24, 12, "contradicted")
    assert row["estimate"] == pytest.approx(costs.mean())
    assert row["adjusted_level"] == 0.975
    assert found["looks"] == {"planned": [12, 24], "done": [12, 24], "appended": True}
    (first,) = assess(across_claims({"dh": of_first(run, 12)}), 2)
    assert row["p_adjusted"] == first["p_adjusted"]
    (at_once,) = summarise({"dh": run}, ["dh"], ["published"], Looks([], []))["claims"]
    assert (at_once["verdict"], at_once["adjusted_level"]) == ("undecided", 0.95)
