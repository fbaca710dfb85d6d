"""Tests of the text study's claims, final values and excluded seeds."""

import json

import numpy as np
import pytest
from scipy import stats
from text_metrics import BOTH, CHANGE, COST, DECAY, GATE, RECORDS, START, metrics_of

from tiejax.lab.runs.gate import Gate
from tiejax.lab.studies.text_mlm.claims import analyse, claims, final, final_by_bucket
from tiejax.lab.studies.text_mlm.figures import plot_all
from tiejax.lab.studies.text_mlm.page import tables
from tiejax.statistics.claims import assess
from tiejax.system.json_values import plain


def rows_of(metrics):
    return {row["id"]: row for row in analyse(metrics, DECAY, GATE)[0]["claims"]}


CONVERGE = [f"converge/{table}" for table in CHANGE]
CONFLICT = ["conflict-converge/input", "conflict-apart/output", "conflict-apart/tied"]
UNRELATED = [f"unrelated/{table}" for table in CHANGE]
DECAYED = [f"decay/{table}" for table in CHANGE]
EXPLORATORY = {*DECAYED, "tying/validation-accuracy"}
EQUAL_TABLES = [f"equal-tables/{name}" for name in ("start", "tie", "most")]


def test_claims_are_supported_on_metrics_that_follow_the_theory():
    rows = rows_of(metrics_of())
    assert set(rows) == {*CONVERGE, *CONFLICT, *UNRELATED, "tying/validation-loss"} | EXPLORATORY
    assert {row["verdict"] for name, row in rows.items() if name not in EXPLORATORY} == {"supported"}
    assert {(row["n"], row["unit"]) for name, row in rows.items() if not name.startswith("tying")} == {(10, "")}
    distance = {table: {kind: np.exp(value) for kind, value in change.items()} for table, change in CHANGE.items()}
    expected = {f"converge/{table}": of["holding"] - of["unrelated"] for table, of in distance.items()}
    expected |= {f"unrelated/{table}": of["unrelated"] - 1 for table, of in distance.items()}
    expected |= {f"decay/{table}": of["unrelated"] - np.exp(-DECAY) for table, of in distance.items()}
    expected["conflict-converge/input"] = distance["input"]["conflict"] - distance["input"]["unrelated"]
    expected |= {
        f"conflict-apart/{table}": distance[table]["conflict"] - distance[table]["holding"] for table in ("output", "tied")
    }
    for claim, value in expected.items():
        assert rows[claim]["estimate"] == pytest.approx(value, abs=0.08), claim
    assert rows["tying/validation-loss"]["estimate"] == pytest.approx(COST, abs=0.01)
    assert rows["tying/validation-accuracy"]["estimate"] == pytest.approx(-COST / 10, abs=0.001)
    assert {name for name, row in rows.items() if row["reported"]} == {*CONVERGE, *UNRELATED}


@pytest.mark.slow
def test_differences_equal_a_loop_over_seeds_and_pairs():
    metrics = metrics_of(seeds=6)
    rows, kinds = rows_of(metrics), {0: "twins", 1: "conflict", 2: "unrelated"}
    arms = {"input": ("distance_input", 0), "output": ("distance_output", 0), "tied": ("distance_input", 1)}
    for table, (name, arm) in arms.items():
        for seed in range(6):
            ratios = {"twins": [], "conflict": [], "unrelated": []}
            for pair, set_index in enumerate(metrics["pair_set"]):
                d = metrics[name][arm, seed, :, pair]
                ratios[kinds[set_index]].append((d[-1] + d[-2]) / 2 / d[0])
            twins, conflict, unrelated = (sum(values) / len(values) for values in ratios.values())
            expected = {
                "converge": twins - unrelated,
                "unrelated": unrelated - 1,
                "decay": unrelated - np.exp(-DECAY),
                "conflict-converge": conflict - unrelated,
                "conflict-apart": conflict - twins,
            }
            for claim, value in expected.items():
                if row := rows.get(f"{claim}/{table}"):
                    assert row["differences"][seed] == pytest.approx(value, rel=1e-9), row["id"]
    loss = metrics["validation_loss"][:, :, -1]
    np.testing.assert_allclose(rows["tying/validation-loss"]["differences"], loss[1] - loss[0])


def test_claims_are_contradicted_on_metrics_with_the_opposite_effects():
    """Only unrelated pairs converge, and conflict twins come together in the tied table."""
    against = {"holding": 0.2, "conflict": -0.5, "unrelated": -1.0}
    rows = rows_of(metrics_of(change=dict.fromkeys(CHANGE, against)))
    assert {rows[name]["verdict"] for name in (*CONVERGE, *CONFLICT, *UNRELATED)} == {"contradicted"}
    assert rows["conflict-apart/tied"]["estimate"] == pytest.approx(np.exp(-0.5) - np.exp(0.2), abs=0.06)


def test_twins_that_approach_no_more_than_unrelated_words_do_not_support_their_convergence():
    change = {"holding": -0.5, "conflict": -0.5, "unrelated": -1.0}
    rows = rows_of(metrics_of(change=dict.fromkeys(CHANGE, change)))
    assert {rows[name]["verdict"] for name in (*CONVERGE, "conflict-converge/input")} == {"contradicted"}


@pytest.mark.parametrize(("fall", "verdict"), [(0.02, "supported"), (0.1, "contradicted")])
def test_unrelated_words_may_approach_by_less_than_the_margin(fall, verdict):
    """Their distance falls by 2 % or 10 %, less and more than 5 %, without noise between seeds."""
    metrics = metrics_of()
    unrelated = metrics["pair_set"] == 2
    for name in ("distance_input", "distance_output"):
        metrics[name][..., unrelated] = START
        metrics[name][:, :, 1:, unrelated] = START * (1 - fall)
    rows = rows_of(metrics)
    assert {rows[name]["verdict"] for name in UNRELATED} == {verdict}
    assert {rows[name]["goal"] for name in UNRELATED} == {"non-inferiority"}


def test_claims_about_a_missing_set_are_left_out():
    rows = rows_of(metrics_of(sets=BOTH[:1]))
    assert set(rows) == {*CONVERGE, *UNRELATED, "tying/no-cost"} | EXPLORATORY
    # Without a violated pair the claim is that there is no cost; it is .05, more than the margin.
    assert (rows["tying/no-cost"]["goal"], rows["tying/no-cost"]["margin"]) == ("non-inferiority", 0.01)
    assert rows["tying/no-cost"]["verdict"] == "contradicted"
    rows = rows_of(metrics_of(sets=BOTH[1:]))
    assert set(rows) == {"conflict-converge/input", *UNRELATED, "tying/validation-loss"} | EXPLORATORY


def test_sets_of_one_kind_are_pooled():
    sets = (("first", 0.5, 10), ("second", 0.5, 20), ("rare", 0.1, 5), ("rarer", 0.02, 7))
    metrics = metrics_of(sets=sets)
    found, _ = analyse(metrics, DECAY, GATE)
    ratio = metrics["distance_output"][0, :, -1] / metrics["distance_output"][0, :, 0]
    (row,) = (row for row in found["claims"] if row["id"] == "conflict-apart/output")
    np.testing.assert_allclose(row["differences"], ratio[:, 30:42].mean(1) - ratio[:, :30].mean(1))
    assert [(entry["name"], entry["pairs"], entry["dh"]) for entry in found["sets"]] == [
        ("first", 10, "holds"), ("second", 20, "holds"), ("rare", 5, "fails"), ("rarer", 7, "fails"), ("unrelated", 40, None),
    ]  # fmt: skip


def test_few_seeds_decide_nothing_however_many_pairs():
    rows = rows_of(metrics_of(seeds=2))
    registered = {name: row for name, row in rows.items() if name not in EXPLORATORY}
    assert {(row["verdict"], row["n"]) for row in registered.values()} == {("undecided", 2)}
    assert all("2 seeds cannot decide this claim" in row["note"] for row in registered.values())


def test_models_that_do_not_pass_the_gate_decide_no_claim():
    """Untied models end at 4 nats, tied ones at about 4.05: with a bigram of 4.12 only the tied ones fail."""
    metrics = metrics_of()
    passed, failed = (analyse(metrics, DECAY, Gate(bigram, 0.1))[0] for bigram in (4.2, 4.12))
    assert (passed["gate"]["failed"], passed["claims"]) == ("", analyse(metrics, DECAY, GATE)[0]["claims"])
    assert failed["gate"]["failed"].startswith("No claim is tested, since the tied models end with 4.0")
    assert "untied" not in failed["gate"]["failed"]
    assert {row["verdict"] for row in failed["claims"]} == {"exploratory"}
    assert [row["estimate"] for row in failed["claims"]] == [row["estimate"] for row in passed["claims"]]
    losses = metrics["validation_loss"][:, :, -1].mean(axis=1)
    assert failed["gate"]["losses"] == {"untied": pytest.approx(losses[0]), "tied": pytest.approx(losses[1])}


def test_exploratory_claims_have_no_p_and_no_verdict():
    rows = rows_of(metrics_of())
    assert {(rows[name]["verdict"], rows[name]["p"]) for name in EXPLORATORY} == {("exploratory", None)}
    assert {name for name, row in rows.items() if row["family"] == "exploratory"} == EXPLORATORY


def test_equal_tables_tell_the_tie_apart_from_its_starting_point():
    """Untied models end at 4.05 nats, tied ones at 4, and untied ones from equal tables at 4.015."""
    metrics = metrics_of(equal=4.015)
    metrics["validation_loss"] = metrics["validation_loss"][[1, 0, 2]]
    rows = rows_of(metrics)
    untied, tied, equal = metrics["validation_loss"][:, :, -1]
    by_hand = {"start": equal - untied, "tie": tied - equal, "most": untied + tied - 2 * equal}
    for name, differences in by_hand.items():
        np.testing.assert_allclose(rows[f"equal-tables/{name}"]["differences"], differences)
    assert {rows[name]["verdict"] for name in EQUAL_TABLES} == {"supported"}
    assert rows["equal-tables/start"]["estimate"] == pytest.approx(-0.035, abs=0.01)
    found, _ = analyse(metrics, DECAY, GATE)
    assert list(found["final"]) == list(found["overflow"]) == ["untied", "tied", "untied-equal"]
    assert set(found["uses"][0]) >= {"untied", "tied"}
    assert "untied-equal" not in found["uses"][0]


def excludes_the_null(row):
    """Whether the adjusted interval excludes 0, or lies on one side of the margin."""
    low, high = (np.nan if end is None else end for end in row["interval_adjusted"] or (None, None))
    null = 0 if row["goal"] == "difference" else -row["margin"] if row["id"].startswith("unrelated") else row["margin"]
    return bool(low > null or high < null)


@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0])
def test_claims_are_decided_if_their_adjusted_interval_excludes_the_null(spread):
    decided = set()
    for seeds in (3, 9, 12):
        metrics, rng = metrics_of(seeds=seeds, equal=4.02), np.random.default_rng(seeds)
        for name in ("distance_input", "distance_output", "validation_loss"):
            values = metrics[name]
            noise = rng.normal(0, spread, (*values.shape[:2], 1, *values.shape[3:]))
            metrics[name] = np.concatenate([values[:, :, :1], values[:, :, 1:] * np.exp(noise)], axis=2)
        for row in rows_of(metrics).values():
            if row["family"] == "registered":
                assert row["verdict"] != "undecided" or not excludes_the_null(row), row
                decided.add(row["verdict"])
    assert "undecided" in decided


@pytest.mark.slow
def test_false_verdicts_are_rare_without_effects():
    """Distances and losses that differ only by noise: at most about 5 % of 100 studies have a verdict on a difference."""
    rng, wrong = np.random.default_rng(0), 0
    metrics = metrics_of(equal=4.0)
    for _ in range(100):
        for name in ("distance_input", "distance_output"):
            noise = rng.standard_normal((3, 10, 1, 82)) * (np.arange(RECORDS) > 0)[:, None] * 0.1
            metrics[name] = START * np.exp(noise)
        metrics["validation_loss"] = np.broadcast_to(rng.normal(4, 0.1, (3, 10, 1)), metrics["validation_loss"].shape)
        rows = assess([claim for claim in claims(metrics, DECAY) if claim.goal == "difference"])
        wrong += any(row["verdict"] in ("supported", "contradicted") for row in rows)
    assert stats.binomtest(wrong, 100, 0.05, alternative="greater").pvalue > 1e-3


def test_a_diverged_member_counts_as_the_worst():
    """Its loss is the highest and its accuracy the lowest; where it is in a claim about distances, it speaks against it."""
    metrics = metrics_of()
    metrics["finite"][1, 3, 8:] = False
    metrics["distance_input"][1, 3, 8:] = np.nan
    metrics["validation_loss"][1, 3] = np.nan
    found, runs = analyse(metrics, DECAY, GATE)
    rows = {row["id"]: row for row in found["claims"]}
    assert {row["n"] for row in found["claims"]} == {10}
    loss = metrics["validation_loss"][:, :, -1]
    assert rows["tying/validation-loss"]["differences"][3] == pytest.approx(np.nanmax(loss) - loss[0, 3])
    for name, worst in {"converge/tied": max, "conflict-apart/tied": min, "unrelated/tied": min}.items():
        differences = rows[name]["differences"]
        assert differences[3] == worst(differences[:3] + differences[4:])
    assert rows["converge/input"]["differences"] == rows_of(metrics_of())["converge/input"]["differences"]
    # Figures and tables show the other seeds.
    remaining = [seed for seed in range(7, 17) if seed != 10]
    assert (found["seeds"], found["excluded_seeds"]) == (remaining, [10])
    assert found["non_finite"] == [{"arm": "tied", "seed": 10, "step": 800}]
    assert runs["seeds"].tolist() == remaining
    assert all(np.isfinite(runs[name]).all() for name in runs if name.startswith(("distance", "validation_loss")))
    json.dumps(plain(found), allow_nan=False)


def test_nothing_is_decided_or_shown_without_a_finite_seed():
    metrics = metrics_of()
    metrics["finite"][0, :, 5:] = metrics["finite"][1, :, 5:] = False
    found, runs = analyse(metrics, DECAY, GATE)
    assert (found["seeds"], found["distance_ratio_by_pair"]) == ([], [])
    assert not {row["verdict"] for row in found["claims"]} & {"supported", "contradicted"}
    assert {row["note"] for row in found["claims"]} == {"some differences are not finite"}
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
    found, _ = analyse(metrics_of(), DECAY, GATE)
    final = found["final"]
    for arm, table, row in (("untied", "input", "input"), ("untied", "output", "output"), ("tied", "output", "tied")):
        for name, kind in (("twins .5", "holding"), ("twins .1", "conflict"), ("unrelated", "unrelated")):
            ratio = final[arm]["distance_ratio"][table][name]
            assert len(ratio) == 10
            np.testing.assert_allclose(ratio, np.exp(CHANGE[row][kind]), rtol=0.12)
    np.testing.assert_allclose(final["tied"]["validation_loss"], 4 + COST, atol=0.0101)
    assert final["untied"]["validation_loss_by_bucket"]["1-100"] == [3.0] * 10
    assert np.isnan(final["untied"]["validation_loss_by_bucket"]["101-1000"]).all()
    pairs = {row["pair"]: row for row in found["distance_ratio_by_pair"]}
    assert len(pairs) == 82
    assert pairs["word35"]["set"] == "twins .1"
    assert pairs["word35"]["tied"] == pytest.approx(np.exp(-0.3), rel=0.1)
