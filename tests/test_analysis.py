"""Geometry, paired statistics and claims against hand-computed values and brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tiejax.geometry.distances import (
    area_under_log,
    group_pairs,
    log_roughness,
    mean_distance,
    pairwise_distances,
    symbol_pairs,
)
from tiejax.statistics.claims import Claim, assess
from tiejax.statistics.paired_test import holm, paired_test
from tiejax.studies.exor import claims as findings

MAIN = findings.Symbols(7, 4, 5, {"zero": (0, 1), "one": (2, 3)}, (0.1, 0.9, 0.5, 0.5))
DH = findings.Symbols(7, 4, 5, {"zero": (0,), "one": (2, 3)}, (1.0, 0.0, 0.5, 0.5))
NO_DH = findings.Symbols(7, 4, 5, {"zero": (0,), "one": (2, 3)}, (1.0, 0.0, 0.1, 0.9))


def test_distances_against_a_loop():
    table = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = pairwise_distances(table)
    expected = [math.dist(table[i], table[j]) for i, j in itertools.combinations(range(5), 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert symbol_pairs(5) == list(itertools.combinations(range(5), 2))


def test_mean_distance_picks_its_pairs():
    distances = np.arange(21.0)[None]  # pair k has distance k
    index = symbol_pairs(7)
    pairs = group_pairs((0, 1), (2, 3))
    assert sorted(pairs) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    expected = np.mean([index.index(pair) for pair in pairs])
    assert mean_distance(distances, 7, pairs).tolist() == [expected]
    assert np.isnan(mean_distance(distances, 7, [])).all()
    assert group_pairs((3, 1), (2,)) == [(2, 3), (1, 2)]


def test_area_and_roughness_by_hand():
    steps = np.array([0, 10, 30])
    distances = np.exp([[0.0, -1.0, -3.0]])
    # Trapezia: 10 * (-.5) + 20 * (-2) = -45 over 30 steps.
    np.testing.assert_allclose(area_under_log(distances, steps), [-1.5])
    np.testing.assert_allclose(log_roughness(distances), [1.5])
    assert np.isfinite(area_under_log(np.zeros((1, 3)), steps)).all()


def exact_wilcoxon(d):
    """Two-sided signed-rank p by enumeration of all signs."""
    ranks = stats.rankdata(np.abs(d))
    observed = ranks[np.asarray(d) > 0].sum()
    sums = [sum(r for r, sign in zip(ranks, signs, strict=True) if sign) for signs in itertools.product([0, 1], repeat=len(d))]
    low = np.mean([s <= observed + 1e-9 for s in sums])
    high = np.mean([s >= observed - 1e-9 for s in sums])
    return min(1.0, 2 * min(low, high))


@given(st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 1e-3), min_size=6, max_size=9, unique_by=abs))
@settings(max_examples=25, deadline=None)
def test_wilcoxon_is_exact_for_few_seeds(d):
    result = paired_test(np.array(d))
    assert result.p == pytest.approx(exact_wilcoxon(d), abs=1e-12)
    assert result.estimate == pytest.approx(np.median(d))


def test_rank_biserial_by_hand():
    # |d| ranks 1, 2, 3, 4, 5, 6; the negative ones are 1 and 3: (17 - 4) / 21.
    result = paired_test(np.array([-0.1, 0.2, -0.3, 0.4, 0.5, 0.6]))
    assert result.effect_size == pytest.approx((17 - 4) / 21)


def test_bca_interval_covers_the_median_it_estimates():
    """Coverage over 200 samples of a known median, which a wrong interval would miss."""
    generator = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        low, high = paired_test(generator.exponential(size=32)).interval
        inside += low <= math.log(2) <= high
    # 95 % of 200, less four standard deviations of the count.
    assert 178 <= inside < 200


def test_mcnemar_by_hand():
    # 9 pairs differ, 8 in one direction: p = 2 (C(9,0) + C(9,1)) / 2^9.
    d = np.array([-1] * 8 + [1] + [0] * 11, float)
    result = paired_test(d, binary=True)
    assert result.p == pytest.approx(2 * (1 + 9) / 2**9)
    assert result.estimate == pytest.approx(-7 / 20)
    assert result.effect_size == pytest.approx(-7 / 9)


@pytest.mark.parametrize("d", [[1.0, 2, 3, 4, 5], [2.0] * 10, [0.0] * 10])
def test_nothing_is_decided_from_few_seeds_or_without_variance(d):
    result = paired_test(np.array(d))
    assert result.p is None
    assert result.interval is None
    assert result.estimate == np.median(d)


def test_no_seeds():
    assert paired_test(np.zeros(0)).n == 0
    assert paired_test(np.zeros(0)).estimate is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_decides_nothing_and_spoils_no_other_claim(bad):
    up = np.linspace(0.1, 1, 12)
    rows = assess([claim(up, 1), claim([*up[:-1], bad], 1)])
    assert (rows[1]["p"], rows[1]["estimate"], rows[1]["verdict"]) == (None, None, "undecided")
    assert rows[0]["p_adjusted"] == rows[0]["p"] < 0.01


def test_roughness_of_a_single_record_is_nothing():
    assert np.isnan(log_roughness(np.ones((2, 1)))).all()


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def claim(differences, sign):
    return Claim("x", "statement", "statistic", np.asarray(differences, float), sign)


def test_verdicts():
    up = np.linspace(0.1, 1, 12)
    noise = np.array([-1, 1.1, -1.2, 1.3, -1.4, 1.5, -1.6, 1.7])
    rows = assess([claim(up, 1), claim(up, -1), claim(noise, 1), claim(up[:4], 1)])
    assert [row["verdict"] for row in rows] == ["supported", "contradicted", "undecided", "undecided"]
    # Holm over the three rows that have a p: the smallest is counted three times.
    assert rows[0]["p_adjusted"] == pytest.approx(3 * rows[0]["p"])
    assert rows[3]["p"] is None


def run_metrics(seeds=8, symbols=MAIN, exact=True, distance=None):
    """A run made by hand: `distance(table, arm, seed, record, pair)` gives each distance."""
    steps = np.arange(0, 50_001, 500)
    index = symbol_pairs(7)
    between = set(group_pairs(symbols.used["zero"], symbols.used["one"]))
    metrics = {"step": steps, "seeds": np.arange(seeds), "splits": np.array(["train", "validation", "test"])}
    for table in ("input", "output"):
        values = np.ones((2, seeds, len(steps), 21))
        for k, pair in enumerate(index):
            for arm, seed in itertools.product(range(2), range(seeds)):
                values[arm, seed, :, k] = 2.0 if pair in between else distance(table, arm, seed, steps, pair)
        metrics[f"distance_{table}"] = values
    metrics["finite"] = np.ones((2, seeds, len(steps)), bool)
    metrics["arms"] = np.array(["untied", "tied"])
    metrics |= {"use_ratio": np.full((2, seeds, len(steps)), 2.0), "use_cosine": np.zeros((2, seeds, len(steps)))}
    if exact:
        exact_steps = np.arange(0, 50_001, 5000)
        metrics["exact_step"] = exact_steps
        metrics["exact_cross_entropy"] = (
            np.full((2, seeds, len(exact_steps), 3), 0.55) + 0.001 * np.arange(seeds)[:, None, None]
        )
        metrics["exact_accuracy"] = np.full((2, seeds, len(exact_steps), 3), 0.69)
        metrics["exact_gap_zero"] = np.full((2, seeds, len(exact_steps)), 2.5) + 0.01 * np.arange(seeds)[:, None]
        metrics["exact_gap_one"] = metrics["exact_gap_zero"]
    return metrics


def as_the_paper_says(table, arm, seed, steps, pair):
    """Distances (of symbols 2 apart) that do everything the paper claims; a little different in every seed."""
    level = 1 + 0.01 * seed
    if pair == (0, 1):
        if arm == 1:  # tied: held apart, restless
            return level * 1.5 * np.where(np.arange(len(steps)) % 2, 1.2, 1.0)
        return level * (0.2 if table == "input" else 1.4) * np.ones(len(steps))
    if pair == (2, 3):
        return level * np.exp(-steps / (5_000 if arm else 20_000)) + 0.01
    if pair == (4, 5):
        return level * np.where(table == "output" and arm == 0, 0.3, 2.5) * np.ones(len(steps))
    return np.ones(len(steps))


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
def test_a_variant_reports_the_claims_that_apply(name, symbols):
    found, _ = findings.analyse(run_metrics(symbols=symbols, distance=as_the_paper_says), symbols, 0.5, 20_000)
    assert {row["id"] for row in found["claims"]} == EXPECTED[name]


def test_a_run_that_does_what_the_paper_claims_supports_the_claims():
    metrics = run_metrics(seeds=16, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][1] += 0.2 + 0.002 * np.arange(16)[:, None, None]
    found, _ = findings.analyse(metrics, MAIN, 0.5, 20_000)
    verdicts = {row["id"]: row["verdict"] for row in found["claims"]}
    # No tied member solved its task, and every untied one did: no variance, so McNemar has nothing to say of `solved`.
    undecided = {name for name, verdict in verdicts.items() if verdict != "supported"}
    assert undecided == {"solved", "output-gap/tied"}
    assert found["solved"] == {"untied": [True] * 16, "tied": [False] * 16}


def test_the_opposite_run_contradicts_them():
    def opposite(table, arm, seed, steps, pair):
        return as_the_paper_says(table, arm, seed, steps, {(0, 1): (2, 3), (2, 3): (0, 1)}.get(pair, pair))

    found, _ = findings.analyse(run_metrics(seeds=16, distance=opposite), MAIN, 0.5, 20_000)
    verdicts = {row["id"]: row["verdict"] for row in found["claims"]}
    assert verdicts["output-conditional"] == "contradicted"
    assert verdicts["tied-conflict/one-pair"] == "contradicted"


def test_relative_distance_divides_by_the_bits_that_occur():
    """In dh, symbol 1 never occurs: only 0-2 and 0-3 make the scale."""

    def distance(table, arm, seed, steps, pair):
        return np.full(len(steps), 100.0 if 1 in pair else 6.0)

    runs = findings.trajectories(run_metrics(symbols=DH, distance=distance), DH, 20_000)
    np.testing.assert_allclose(runs.relative["input"]["one"], 6.0 / 2.0)
    assert "zero" not in runs.relative["input"]


def test_more_than_two_spellings_are_averaged_over_their_pairs():
    symbols = findings.Symbols(7, 4, 5, {"zero": (0, 1, 2), "one": (3,)}, (0.2, 0.3, 0.5, 1.0))

    def distance(table, arm, seed, steps, pair):
        return np.full(len(steps), {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 6.0}.get(pair, 50.0))

    runs = findings.trajectories(run_metrics(symbols=symbols, distance=distance), symbols, 20_000)
    np.testing.assert_allclose(runs.distance["output"]["zero"], 3.0)
    assert symbols.imbalance("zero") == pytest.approx(math.log(2.5))
    assert math.isnan(symbols.imbalance("one"))


def test_final_values_are_means_over_the_last_whole_cycle():
    def distance(table, arm, seed, steps, pair):
        return steps.astype(float)

    runs = findings.trajectories(run_metrics(distance=distance), MAIN, 20_000)
    # Records 30,500, 31,000, ..., 50,000.
    assert runs.final(runs.distance["input"]["zero"])[0, 0] == pytest.approx(np.arange(30_500, 50_001, 500).mean())
    assert runs.final(runs.distance["input"]["zero"], last=True)[0, 0] == 50_000


def test_members_that_went_non_finite_are_left_out_by_name():
    metrics = run_metrics(distance=as_the_paper_says)
    metrics["finite"][1, 3, 40:] = False
    metrics["distance_input"][1, 3, 40:] = np.nan
    metrics["exact_cross_entropy"][1, 3, 5:] = np.nan
    found, runs = findings.analyse(metrics, MAIN, 0.5, 20_000)
    assert found["excluded_seeds"] == [3]
    assert found["seeds"] == [0, 1, 2, 4, 5, 6, 7]
    assert all(row["n"] <= 7 for row in found["claims"])
    assert np.isfinite(runs.distance["input"]["zero"]).all()
    everyone, _ = findings.analyse(run_metrics(distance=as_the_paper_says), MAIN, 0.5, 20_000)
    del everyone["final"]["tied"]["distance"]["input"]["zero"][3]
    assert found["final"]["tied"]["distance"]["input"]["zero"] == everyone["final"]["tied"]["distance"]["input"]["zero"]


def test_without_exact_risk_its_values_are_null():
    found, _ = findings.analyse(run_metrics(exact=False, distance=as_the_paper_says), MAIN, 0.5, 20_000)
    assert found["solved"] is None
    assert found["final"]["untied"]["exact_cross_entropy"] is None
    assert not {"solved", "tying-costs"} & {row["id"] for row in found["claims"]}


def test_claims_among_solved_pairs():
    metrics = run_metrics(seeds=10, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][0, :3] = 1.2  # untied members of seeds 0 to 2 sit on a plateau
    metrics["exact_cross_entropy"][1, 9] = 1.05
    found, _ = findings.analyse(metrics, MAIN, 0.5, 20_000)
    assert found["solved_pairs"] == [3, 4, 5, 6, 7, 8]
    rows = {row["id"]: row for row in found["claims_solved_pairs"]}
    assert rows["output-conditional"]["n"] == 6
    assert "solved" not in rows
    counts = {row["id"]: row["n"] for row in found["claims"]}
    assert (counts["output-gap/untied"], counts["output-gap/tied"]) == (7, 9)
