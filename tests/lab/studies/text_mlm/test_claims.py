"""Tests of the text study's claims, final values and excluded seeds."""

import json

import numpy as np
import pytest
from scipy import stats
from text_metrics import BOTH, CHANGE, COST, DECAY, RECORDS, START, metrics_of

from tiejax.lab.studies.text_mlm.claims import analyse, claims, final, final_by_bucket
from tiejax.lab.studies.text_mlm.figures import plot_all
from tiejax.lab.studies.text_mlm.page import tables
from tiejax.system.json_values import plain


def rows_of(metrics):
    return {row["id"]: row for row in analyse(metrics, DECAY)[0]["claims"]}


def both_rows(*claims):
    return {f"{claim}/{over}" for claim in claims for over in ("seeds", "pairs")}


CONVERGE = [f"converge/{table}" for table in CHANGE]
CONFLICT = ["conflict-converge/input", "conflict-apart/output", "conflict-apart/tied"]
UNRELATED = [f"unrelated/{table}" for table in CHANGE]
TYING = {"tying/validation-loss", "tying/validation-accuracy"}


def test_claims_are_supported_on_metrics_that_follow_the_theory():
    rows = rows_of(metrics_of())
    assert set(rows) == both_rows(*CONVERGE, *CONFLICT, *UNRELATED) | TYING
    assert {row["verdict"] for row in rows.values()} == {"supported"}
    # Twins approach each other by less than their difference from unrelated words, which move apart.
    expected = {f"converge/{table}": change["holding"] for table, change in CHANGE.items()}
    expected["conflict-converge/input"] = CHANGE["input"]["conflict"]
    expected |= {
        f"conflict-apart/{table}": CHANGE[table]["conflict"] - CHANGE[table]["holding"] for table in ("output", "tied")
    }
    expected |= {f"unrelated/{table}": change["unrelated"] + DECAY for table, change in CHANGE.items()}
    numbers = {"converge": 30, "conflict-converge": 12, "conflict-apart": 12, "unrelated": 40}
    for claim, value in expected.items():
        assert rows[f"{claim}/seeds"]["n"] == 10
        assert rows[f"{claim}/pairs"]["n"] == numbers[claim.split("/")[0]]
        for over in ("seeds", "pairs"):
            assert rows[f"{claim}/{over}"]["estimate"] == pytest.approx(value, abs=0.08)
    assert rows["tying/validation-loss"]["estimate"] == pytest.approx(COST, abs=0.01)
    assert rows["tying/validation-accuracy"]["estimate"] == pytest.approx(-COST / 10, abs=0.001)
    assert {name for name, row in rows.items() if row["reported"]} == both_rows(*CONVERGE, *UNRELATED)
    assert "as it does for the conflict twins" in rows["tying/validation-loss"]["statement"]


def test_estimates_equal_a_loop_over_seeds_and_pairs():
    metrics = metrics_of(seeds=6)
    rows = rows_of(metrics)
    kind = {0: "twins", 1: "conflict", 2: "unrelated"}
    change = {"twins": [], "conflict": [], "unrelated": []}  # of the untied output table, [seed][pair]
    for seed in range(6):
        for values in change.values():
            values.append([])
        for pair, set_index in enumerate(metrics["pair_set"]):
            d = metrics["distance_output"][0, seed, :, pair]
            change[kind[set_index]][seed].append(np.log((d[-1] + d[-2]) / 2 / d[0]))
    twins, unrelated = (np.median(change[kind], axis=1) for kind in ("twins", "unrelated"))
    by_seed = [max(one, one - other) for one, other in zip(twins, unrelated, strict=True)]
    assert rows["converge/output/seeds"]["estimate"] == pytest.approx(np.median(by_seed), rel=1e-12)
    by_pair = [
        np.mean([change["conflict"][seed][pair] - change["twins"][seed][pair] for seed in range(6)]) for pair in range(12)
    ]
    assert rows["conflict-apart/output/pairs"]["estimate"] == pytest.approx(np.median(by_pair), rel=1e-12)


def test_claims_are_contradicted_on_metrics_with_the_opposite_effects():
    """Only unrelated pairs converge, and conflict twins come together in the tied table."""
    against = {"holding": 0.2, "conflict": -0.5, "unrelated": -1.0}
    rows = rows_of(metrics_of(change=dict.fromkeys(CHANGE, against)))
    verdicts = {name: row["verdict"] for name, row in rows.items() if name not in TYING}
    assert set(verdicts.values()) == {"contradicted"}
    assert rows["conflict-apart/tied/pairs"]["estimate"] == pytest.approx(-0.7, abs=0.06)


@pytest.mark.parametrize(("twins", "unrelated"), [(0.3, 0.8), (-0.5, -1.0)])
def test_convergence_needs_shrinking_distances_that_shrink_more_than_those_of_unrelated_words(twins, unrelated):
    change = {"holding": twins, "conflict": twins, "unrelated": unrelated}
    rows = rows_of(metrics_of(change=dict.fromkeys(CHANGE, change)))
    for claim in (*CONVERGE, "conflict-converge/input"):
        assert rows[f"{claim}/seeds"]["verdict"] == rows[f"{claim}/pairs"]["verdict"] == "contradicted"


def test_false_positive_rate_of_pair_claims():
    """Two kinds of pairs that differ only by noise: 5 % of 200 runs have p < .05."""
    rng, low = np.random.default_rng(0), 0
    metrics = metrics_of(seeds=1, sets=(("twins .5", 0.5, 50), ("twins .1", 0.1, 50)), unrelated=100)
    for _ in range(200):
        for name in ("distance_input", "distance_output"):
            metrics[name] = START * np.exp(rng.standard_normal((2, 1, 1, 200)) * (np.arange(RECORDS) > 0)[:, None] * 0.1)
        by_id = {claim.id: claim for claim in claims(metrics, DECAY)}
        low += stats.wilcoxon(by_id["conflict-apart/output/pairs"].differences).pvalue < 0.05
    assert stats.binomtest(low, 200, 0.05).pvalue > 1e-3


def test_claims_about_a_missing_set_are_left_out():
    metrics = metrics_of(sets=BOTH[:1])
    rows = rows_of(metrics)
    assert set(rows) == both_rows(*CONVERGE, *UNRELATED) | TYING
    assert "no planted set violates it" in rows["tying/validation-loss"]["statement"]
    rows = rows_of(metrics_of(sets=BOTH[1:]))
    assert set(rows) == both_rows(*CONFLICT, *UNRELATED) | TYING
    # Without twins for whom DH holds, conflict twins are compared with 0: their distance shrinks a little.
    assert rows["conflict-apart/output/pairs"]["estimate"] == pytest.approx(-0.2, abs=0.05)
    assert rows["conflict-apart/output/pairs"]["verdict"] == "contradicted"
    assert "c - c'" not in rows["conflict-apart/output/pairs"]["statistic"]


def test_sets_of_one_kind_are_pooled():
    sets = (("first", 0.5, 10), ("second", 0.5, 20), ("rare", 0.1, 5), ("rarer", 0.02, 7))
    found, _ = analyse(metrics_of(sets=sets), DECAY)
    numbers = {row["id"]: row["n"] for row in found["claims"]}
    assert numbers["converge/tied/pairs"] == 30
    assert numbers["conflict-apart/tied/pairs"] == 12
    assert [(entry["name"], entry["pairs"], entry["dh"]) for entry in found["sets"]] == [
        ("first", 10, "holds"), ("second", 20, "holds"), ("rare", 5, "fails"), ("rarer", 7, "fails"), ("unrelated", 40, None),
    ]  # fmt: skip


def test_one_seed_decides_only_claims_over_pairs():
    rows = rows_of(metrics_of(seeds=1))
    assert {row["verdict"] for name, row in rows.items() if name.endswith("/pairs")} == {"supported"}
    others = [row for name, row in rows.items() if not name.endswith("/pairs")]
    assert {(row["verdict"], row["n"], row["p"]) for row in others} == {("undecided", 1, None)}


def test_a_non_finite_seed_is_excluded_from_both_arms():
    metrics = metrics_of()
    metrics["finite"][1, 3, 8:] = False
    metrics["distance_input"][1, 3, 8:] = np.nan
    metrics["validation_loss"][1, 3] = np.nan
    found, runs = analyse(metrics, DECAY)
    remaining = [seed for seed in range(7, 17) if seed != 10]
    assert (found["seeds"], found["excluded_seeds"]) == (remaining, [10])
    assert found["non_finite"] == [{"arm": "tied", "seed": 10, "step": 800}]
    assert runs["seeds"].tolist() == remaining
    assert all(np.isfinite(runs[name]).all() for name in runs if name.startswith(("distance", "validation_loss")))
    assert {row["n"] for row in found["claims"] if row["id"].endswith("/seeds")} == {9}
    json.dumps(plain(found), allow_nan=False)


def test_no_claims_without_a_finite_seed():
    metrics = metrics_of()
    metrics["finite"][0, :, 5:] = False
    found, runs = analyse(metrics, DECAY)
    assert (found["seeds"], found["claims"], found["distance_ratio_by_pair"]) == ([], [], [])
    assert plot_all(runs, found) == []
    assert tables(found) == {}


def test_final_values_are_means_over_the_last_tenth_of_the_records():
    values = np.arange(2 * 3 * 25.0).reshape(2, 3, 25)
    np.testing.assert_allclose(final(values), values[..., [23, 24]].mean(-1))
    np.testing.assert_array_equal(final(values[..., :5]), values[..., 4])


def test_bucket_values_are_means_over_targets():
    """Records with 1 and 3 targets, and an empty bucket: means weighted by hand."""
    counts = np.zeros((1, 1, 20, 2), int)
    values = np.full((1, 1, 20, 2), np.nan)
    counts[0, 0, 18:, 0], values[0, 0, 18:, 0] = (1, 3), (2.0, 6.0)
    np.testing.assert_array_equal(final_by_bucket(values, counts), [[[5.0, np.nan]]])


def test_final_distances_and_other_final_values():
    found, _ = analyse(metrics_of(), DECAY)
    final = found["final"]
    for arm, table, row in (("untied", "input", "input"), ("untied", "output", "output"), ("tied", "output", "tied")):
        for name, kind in (("twins .5", "holding"), ("twins .1", "conflict"), ("unrelated", "unrelated")):
            ratio = final[arm]["distance_ratio"][table][name]
            assert len(ratio) == 10
            np.testing.assert_allclose(ratio, np.exp(CHANGE[row][kind]), rtol=0.12)
            np.testing.assert_allclose(final[arm]["distance_start"][table][name], START, rtol=0.1)
    np.testing.assert_allclose(final["tied"]["validation_loss"], 4 + COST, atol=0.0101)
    assert final["untied"]["validation_loss_by_bucket"]["1-100"] == [3.0] * 10
    assert np.isnan(final["untied"]["validation_loss_by_bucket"]["101-1000"]).all()
    assert final["untied"]["norm"] == {"input": [3.0] * 10, "output": [2.0] * 10}
    pairs = {row["pair"]: row for row in found["distance_ratio_by_pair"]}
    assert len(pairs) == 82
    assert pairs["word35"]["set"] == "twins .1"
    assert pairs["word35"]["tied"] == pytest.approx(np.exp(-0.3), rel=0.1)
