"""The claims about EXor on synthetic runs: which of them apply, their verdicts, and diverged members."""

import numpy as np
import pytest
from exor_runs import DH, HALF, MAIN, NO_DH, as_the_paper_says, run_metrics

from tiejax.lab.studies.exor.analysis import analyse
from tiejax.lab.studies.exor.claim_values import Setup, regular_records
from tiejax.lab.studies.exor.plateaus import Level
from tiejax.lab.studies.exor.task import EXor

BAYES, CYCLE = 0.5, 20_000
VARIANTS = {"main": MAIN, "dh": DH, "no-dh": NO_DH, "half": HALF}

REVERSE = {"output-reverse/output", "output-reverse/input", "output-reverse/tied"}
OUTCOMES = {"solved", "solve-time"}
PASSAGES = {f"first-passage/{threshold}/{table}" for threshold in ("0.5", "0.25", "0.1") for table in ("input", "output")}
# Where the spellings of a bit are not equally likely:
CONFLICT = {"tied-conflict/untied-input", "tying-costs", "output-gap/untied", "output-gap/tied"}
CONFLICT |= {f"tied-unstable/{scale}/{table}" for scale in ("linear", "log") for table in ("input", "output")}
BOTH_PAIRS = {"input-semantic/zero", "output-conditional", "tied-conflict/one-pair"}
ALWAYS = {"input-semantic/one"} | REVERSE | OUTCOMES
EXPECTED = {
    "main": ALWAYS | BOTH_PAIRS | PASSAGES | CONFLICT,
    "dh": ALWAYS | PASSAGES | {"tying-free"},
    "no-dh": ALWAYS | CONFLICT,
    "half": ALWAYS | PASSAGES | {"tying-free", "tying-costs", "input-semantic/zero"},
}


def analysed(metrics, task=MAIN, **fields):
    return analyse(metrics, Setup(task, BAYES, CYCLE, **fields))[0]


def verdicts(found):
    return {row["id"]: row["verdict"] for row in found["claims"]}


@pytest.mark.parametrize("name", VARIANTS)
def test_applicable_claims_of_each_variant(name):
    task = VARIANTS[name]
    found = analysed(run_metrics(task=task, distance=as_the_paper_says), task)
    families = {row["id"]: row["family"] for row in found["claims"]}
    assert set(families) == EXPECTED[name]
    exploratory = {claim for claim, family in families.items() if family == "exploratory"}
    gaps = {claim for claim in EXPECTED[name] if claim.startswith("output-gap")}  # an outcome selects their seeds
    assert exploratory == gaps | (OUTCOMES if name == "no-dh" else set())


def test_a_bias_leaves_no_bound_on_the_gap_and_asked_symbols_leave_even_and_odd_untrained():
    metrics = run_metrics(distance=as_the_paper_says)
    biased = set(verdicts(analysed(metrics, output_bias=True)))
    assert EXPECTED["main"] - biased == {"output-gap/untied", "output-gap/tied"}
    asked = set(verdicts(analysed(metrics, asked_only=True)))
    assert EXPECTED["main"] - asked == {"output-reverse/output", "output-reverse/tied"}


@pytest.mark.slow
def test_run_that_behaves_as_claimed_supports_the_claims():
    metrics = run_metrics(seeds=16, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][1] += 0.2 + 0.002 * np.arange(16)[:, None, None]
    found = analysed(metrics)
    assert {name for name, verdict in verdicts(found).items() if verdict != "supported"} == {
        "output-gap/untied",
        "output-gap/tied",
    }
    assert found["solved"] == {"untied": [True] * 16, "tied": [False] * 16}
    assert found["solve_time"] == {"untied": [0.0] * 16, "tied": [50_000.0] * 16}
    assert found["solving_window"] == 20_000
    rows = {row["id"]: row for row in found["claims"]}
    assert (rows["solved"]["estimate"], rows["solve-time"]["estimate"]) == (-1, 50_000)
    assert rows["solved"]["kind"] == "proportion"
    assert rows["tying-costs"]["estimate"] == pytest.approx(np.mean(0.2 + 0.002 * np.arange(16)))


@pytest.mark.slow
def test_opposite_run_contradicts_the_claims():
    def opposite(table, arm, seed, steps, pair):
        return as_the_paper_says(table, arm, seed, steps, {(0, 1): (2, 3), (2, 3): (0, 1)}.get(pair, pair))

    metrics = run_metrics(seeds=16, distance=opposite)
    metrics["exact_cross_entropy"][0] += 0.2
    found = verdicts(analysed(metrics))
    for claim in ("output-conditional", "tied-conflict/one-pair", "tying-costs", "solved", "solve-time"):
        assert found[claim] == "contradicted", claim


def test_price_where_dh_holds():
    """At most .05 nat: supported by a price of .01, contradicted by one of .1, together with more and sooner solved models."""
    cheap, dear = (run_metrics(seeds=16, task=DH, distance=as_the_paper_says) for _ in range(2))
    cheap["exact_cross_entropy"][1] += 0.01
    dear["exact_cross_entropy"][1] += 0.1
    assert verdicts(analysed(cheap, DH))["tying-free"] == "supported"
    found = verdicts(analysed(dear, DH))
    assert [found[name] for name in ("tying-free", "solved", "solve-time")] == ["contradicted"] * 3
    # With two pairs that obey DH, a price that remains is claimed as well.
    assert verdicts(analysed(dear, HALF))["tying-costs"] == "supported"


def random_run(rng, task, seeds):
    """Return a run with random distances and losses: effects of every size, members that solve the task or not."""
    effects = rng.normal(0, 1, (2, 2, 7, 7))

    def distance(table, arm, seed, steps, pair):
        mean = effects[int(table == "input"), arm][pair]
        return np.exp(mean + rng.normal() + 0.2 * rng.normal(size=len(steps)) - steps / 30_000 * abs(mean))

    metrics = run_metrics(seeds=seeds, task=task, distance=distance)
    losses = BAYES + rng.exponential(0.1, (2, seeds, 1, 1)) + rng.normal(0, 0.1) * np.array([0, 1])[:, None, None, None]
    metrics["exact_cross_entropy"] = np.broadcast_to(losses, metrics["exact_cross_entropy"].shape).copy()
    metrics["exact_gap_zero"] = metrics["exact_gap_one"] = rng.normal(2.2, 1, (2, seeds, 1)) * np.ones((2, seeds, 11))
    if rng.random() < 0.3:
        metrics["finite"][rng.integers(2), rng.integers(seeds), 50:] = False
    return metrics


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_claim_is_decided_if_its_interval_excludes_the_null(variant):
    rng, task, seen = np.random.default_rng(0), VARIANTS[variant], set()
    for seeds in (3, 9, 20, 20):
        found = analysed(random_run(rng, task, seeds), task)
        for row in (row for row in found["claims"] if row["family"] == "registered" and row["n"]):
            low, high = row["interval_adjusted"] or (None, None)
            low, high = -np.inf if low is None else low, np.inf if high is None else high
            decided = row["verdict"] in ("supported", "contradicted")
            null = 0 if row["goal"] == "difference" else -row["sign"] * row["margin"]
            assert decided or low <= null <= high, (row["id"], row["verdict"], low, high)
            if decided:
                assert (row["verdict"] == "supported") == (row["sign"] * (row["estimate"] - null) > 0)
            seen.add(row["verdict"])
        for row in (row for row in found["claims"] if row["family"] == "exploratory"):
            assert (row["verdict"], row["p"]) == ("exploratory", None)
    assert seen >= {"supported", "undecided"}


def test_diverged_members_stay_in_every_comparison():
    metrics = run_metrics(seeds=8, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][1] += 0.2  # untied solve the task, tied do not
    before = analysed(metrics)
    metrics["finite"][0, 3, 40:] = False
    metrics["distance_input"][0, 3, 40:] = np.nan
    metrics["exact_cross_entropy"][0, 3, 5:] = np.nan
    found = analysed(metrics)
    assert (found["excluded_seeds"], found["seeds"]) == ([3], list(range(8)))
    assert found["non_finite"] == [{"arm": "untied", "seed": 3, "step": 20_000}]
    assert found["solved"]["untied"] == [seed != 3 for seed in range(8)]
    assert found["solve_time"]["untied"][3] == 50_000
    assert found["final"]["tied"] == before["final"]["tied"]
    assert np.isnan(found["final"]["untied"]["exact_cross_entropy"]["train"][3])
    now, then = ({row["id"]: row for row in body["claims"]} for body in (found, before))
    assert {row["n"] for name, row in now.items() if not name.startswith("output-gap")} == {8}
    assert now["output-gap/untied"]["n"] == 7
    # Its loss is the worst one, .757 of tied seed 7, against .753 of tied seed 3.
    assert now["tying-costs"]["differences"][3] == pytest.approx(0.753 - 0.757)
    # Distances count against the claim: the untied input table draws the pair together least in seed 7.
    expected = max(then["input-semantic/zero"]["differences"][:3] + then["input-semantic/zero"]["differences"][4:])
    assert now["input-semantic/zero"]["differences"][3] == expected
    assert now["first-passage/0.5/input"]["differences"][3] < then["first-passage/0.5/input"]["differences"][3]
    # Comparisons without its table's arm keep all their values.
    assert now["tied-conflict/one-pair"]["differences"] == then["tied-conflict/one-pair"]["differences"]


def test_nothing_is_claimed_if_all_members_diverged():
    metrics = run_metrics(distance=as_the_paper_says)
    metrics["finite"][:, :, 1:] = False
    found = analysed(metrics)
    assert (found["claims"], found["uses"], found["solved"]["tied"]) == ([], [], [False] * 8)


def test_values_without_exact_risk_are_null():
    found = analysed(run_metrics(exact=False, distance=as_the_paper_says))
    assert [found[name] for name in ("solved", "solve_time", "solving_window", "plateaus")] == [None] * 4
    assert found["final"]["untied"]["exact_cross_entropy"] is None
    assert not {"solved", "solve-time", "tying-costs", "output-gap/tied"} & set(verdicts(found))


def test_fluctuation_needs_two_cycles_of_even_records():
    steps = np.arange(0, 50_001, 500)
    places, period = regular_records(steps, 20_000)
    assert (steps[places[0]], steps[places[-1]], period) == (10_000, 50_000, 40)
    assert regular_records(steps, 25_500) is None  # less than two cycles
    assert regular_records(steps, 20_100) is None
    assert regular_records(steps[:1], 20_000) is None
    uneven = np.append(steps, 50_123)
    assert regular_records(uneven, 20_000)[0].tolist() == places.tolist()


def test_fluctuation_without_the_cycle_is_judged_per_scale():
    """Tied distances are ten times as long and have three times the noise: more on the linear scale, less on the other."""
    noise = np.random.default_rng(0).normal(size=(2, 12, 101))

    def distance(table, arm, seed, steps, pair):
        recurring = 2 + np.sin(2 * np.pi * steps / CYCLE)
        return (10 if arm else 1) * recurring + (0.03 if arm else 0.01) * noise[arm, seed]

    metrics = run_metrics(seeds=12, distance=distance)
    found = verdicts(analysed(metrics))
    assert {found[f"tied-unstable/linear/{table}"] for table in ("input", "output")} == {"supported"}
    assert {found[f"tied-unstable/log/{table}"] for table in ("input", "output")} == {"contradicted"}
    # What recurs with the cycle does not count: without noise nothing fluctuates.
    noise[:] = 0
    rows = {row["id"]: row for row in analysed(run_metrics(seeds=12, distance=distance))["claims"]}
    np.testing.assert_allclose(rows["tied-unstable/linear/input"]["estimate"], 0, atol=1e-12)


def test_plateaus_of_members():
    metrics = run_metrics(seeds=2, distance=as_the_paper_says)
    metrics["exact_cross_entropy"][0, 1] = 1.2
    setup = Setup(MAIN, BAYES, CYCLE)
    found, _ = analyse(metrics, setup, [Level("all", 0.55), Level("nothing", 1.2)])
    assert found["plateaus"]["members"] == {"untied": [1, 1, 0], "tied": [2, 0, 0]}


def test_spellings_of_several_probabilities_violate_dh():
    task = EXor(7, (0.2, 0.8), (0.4, 0.6))
    found = verdicts(analysed(run_metrics(task=task, distance=as_the_paper_says), task))
    assert "first-passage/0.5/input" not in found
    assert "tied-conflict/untied-input" in found
