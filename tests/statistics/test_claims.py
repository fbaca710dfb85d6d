"""Verdicts on claims: agreement with their intervals, families, margins, looks."""

import json
import math

import numpy as np
import pytest
from claim_rows import agrees
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tiejax.statistics.bootstrap_t import BootstrapT, statistics
from tiejax.statistics.claims import Claim, assess, assess_in_looks, verdicts
from tiejax.statistics.holm import holm
from tiejax.statistics.mean_tests import mean_tests
from tiejax.statistics.proportions import newcombe
from tiejax.statistics.sign_flips import SignFlips, subset_means

UP = 1 + 0.1 * np.random.default_rng(0).normal(size=20)
NOISE = np.random.default_rng(1).normal(size=20)


def claim(differences, sign=1, **fields):
    return Claim(fields.pop("id", "x"), "statement", "the estimand", np.asarray(differences, float), sign, **fields)


def test_claims_of_one_id_would_share_their_verdicts_in_looks():
    with pytest.raises(ValueError, match="two have the id x"):
        assess_in_looks(lambda seeds: [claim(UP[:seeds]), claim(NOISE[:seeds])], [10, 20])


@pytest.mark.parametrize("outcomes", [np.full(6, 0.31), np.array([1, 0, np.nan, 1, 0, 1]), ["yes"] * 6, [2] * 6])
def test_outcomes_that_are_neither_true_nor_false_are_refused(outcomes):
    with pytest.raises(ValueError, match="true or false"):
        Claim.proportion("solved", "s", "e", np.asarray(outcomes), np.zeros(6, bool), 1)


def test_outcomes_of_zeros_and_ones_are_true_and_false():
    found = Claim.proportion("solved", "s", "e", np.array([1.0, 0.0, 1.0]), np.array([False, False, True], object), 1)
    assert [arm.tolist() for arm in found.outcomes] == [[True, False, True], [False, False, True]]


@st.composite
def families(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    claims = []
    for number in range(draw(st.integers(1, 6))):
        n = draw(st.sampled_from([1, 4, 7, 12, 20, 40]))
        centre = draw(st.sampled_from([0, 0.03, 0.3, 1.0]))
        shape = draw(st.sampled_from(["normal", "ties", "tenths", "constant", "outcomes"]))
        goal = draw(st.sampled_from(["difference", "equivalence", "non-inferiority"]))
        sign = 0 if goal == "equivalence" else draw(st.sampled_from([1, -1]))
        fields = {"id": str(number), "goal": goal, "margin": draw(st.sampled_from([0.05, 0.5]))}
        if shape == "outcomes":
            first, second = rng.random((2, n)) < np.array([[0.5 + centre / 2], [0.5]])
            fields.pop("id")
            claims.append(Claim.proportion(str(number), "s", "e", first, second, sign, **fields))
            continue
        d = {
            "normal": centre + rng.normal(size=n) / 4,
            "ties": centre + rng.integers(-1, 2, n) / 4,
            "tenths": (rng.integers(-3, 4, n) + np.round(10 * centre)) / 10,
            "constant": np.full(n, centre),
        }
        claims.append(claim(d[shape], sign, **fields))
    return claims


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(families(), st.sampled_from([1, 3]))
def test_a_claim_is_decided_if_its_adjusted_interval_says_so(claims, looks):
    rows = assess(claims, looks)
    for row in rows:
        assert agrees(row), row
    assert len({row["adjusted_level"] for row in rows if row["goal"] == "difference" and row["p"] is not None}) <= 1
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(families(), min_size=1, max_size=3), st.sampled_from([1, 3]))
def test_verdicts_of_several_studies_are_those_of_each(studies, looks):
    found = verdicts(studies, looks)
    assert found == [[row["verdict"] for row in assess(claims, looks)] for claims in studies]


def test_verdicts_include_claims_that_are_not_tested():
    assert verdicts([[claim(UP), claim([]), claim(UP, family="exploratory")], []]) == [
        ["supported", "undecided", "exploratory"],
        [],
    ]


def test_verdicts_and_adjustment_within_the_family():
    rows = assess([claim(UP, 1), claim(UP, -1), claim(NOISE, 1), claim(UP[:4], 1)])
    assert [row["verdict"] for row in rows] == ["supported", "contradicted", "undecided", "undecided"]
    assert [row["p_adjusted"] for row in rows] == pytest.approx(holm([row["p"] for row in rows]))
    assert rows[0]["estimate"] == pytest.approx(UP.mean())
    assert rows[0]["differences"] == UP.tolist()
    assert "4 seeds cannot decide" in rows[3]["note"]
    assert rows[3]["p"] == 2**-3
    assert json.loads(json.dumps(rows)) == rows


def test_exploratory_claims_have_no_p_and_do_not_count():
    alone = assess([claim(NOISE)])
    rows = assess([claim(NOISE), claim(UP, family="exploratory")])
    assert rows[0] == alone[0]
    assert (rows[1]["verdict"], rows[1]["p"], rows[1]["interval_adjusted"]) == ("exploratory", None, None)
    low, high = rows[1]["interval"]
    assert low < 1 < high


def test_constant_differences_are_decided():
    (row,) = assess([claim(np.full(32, 0.0833))])
    assert (row["verdict"], row["p"]) == ("supported", 2.0**-31)
    assert row["interval"] == pytest.approx([0.0833, 0.0833])
    (row,) = assess([claim(np.zeros(32))])
    assert (row["verdict"], row["p"]) == ("undecided", 1)
    (row,) = assess([claim(np.zeros(32), 0, goal="equivalence", margin=0.01)])
    assert (row["verdict"], row["p"]) == ("supported", 2.0**-32)
    (row,) = assess([claim(np.full(32, 0.02), 0, goal="equivalence", margin=0.01)])
    assert (row["verdict"], row["p"]) == ("contradicted", 2.0**-31)


def test_few_seeds_cannot_decide():
    (row,) = assess([claim(np.full(5, 0.0833))])
    assert (row["verdict"], row["p"]) == ("undecided", 2.0**-4)
    assert "5 seeds cannot decide this claim: the smallest possible p is 0.0625" in row["note"]
    (row,) = assess([claim(np.full(6, 0.0833))])
    assert (row["verdict"], row["p"], row["note"]) == ("supported", 2.0**-5, None)


def test_an_interval_of_proportions_excludes_0_if_mcnemar_rejects():
    """8 of 256 seeds differ, all in one direction: p = 2^-7. Newcombe's interval at level .99 contains 0."""
    first, second = np.repeat([True, True, False], [226, 8, 22]), np.repeat([True, False], [226, 30])
    assert newcombe(first, second, 0.01)[0] < 0
    undecided = [claim(NOISE, id=f"noise {number}") for number in range(4)]
    row = assess([*undecided, Claim.proportion("solved", "s", "e", first, second, 1)])[-1]
    assert (row["p"], row["verdict"], row["adjusted_level"]) == (2.0**-7, "supported", 0.99)
    assert 0 < row["interval_adjusted"][0] < 1e-3


def test_margins():
    near, far = 0.004 * NOISE, 0.03 + 0.004 * NOISE
    rows = assess(
        [
            claim(near, 0, goal="equivalence", margin=0.01),
            claim(far, 0, goal="equivalence", margin=0.01),
            claim(0.01 - near.mean() + near, 0, goal="equivalence", margin=0.01),
            claim(far, 1, goal="non-inferiority", margin=0.01),
            claim(far, -1, goal="non-inferiority", margin=0.01),
            claim(near, -1, goal="non-inferiority", margin=0.01),
        ]
    )
    assert [row["verdict"] for row in rows] == [
        "supported",
        "contradicted",
        "undecided",
        "supported",
        "contradicted",
        "supported",
    ]


def test_equivalence_is_tested_at_its_level_without_doubling():
    """With 5 seeds inside the margin p is 2^-5 for one claim: below .05, though its double is not."""
    (row,) = assess([claim(np.zeros(5), 0, goal="equivalence", margin=0.01)])
    assert (row["p"], row["verdict"]) == (2.0**-5, "supported")


def test_proportions_are_tested_by_mcnemar():
    first, second = np.repeat([True, False], [7, 13]), np.repeat([False, True], [19, 1])
    (row,) = assess([Claim.proportion("solved", "s", "e", first, second, 1)])
    assert row["p"] == pytest.approx(2 * (1 + 8) / 2**8)
    assert row["estimate"] == pytest.approx(6 / 20)
    assert row["kind"] == "proportion"


def test_proportions_with_a_margin_are_tested_for_equivalence():
    """Without a differing seed, p is the larger of 2^-n and of (1 - margin)^n, the chance of n equal seeds at the margin."""
    same = np.arange(200) % 2 == 0
    equal, half = Claim.proportion("equal", "s", "e", same, same, 1, margin=0.05), ~same[:100]
    apart = Claim.proportion("apart", "s", "e", np.concatenate([half, half]), np.zeros(200, bool), 1, margin=0.05)
    rows = assess([equal, apart])
    assert rows[0]["equivalence"]["p"] == pytest.approx(0.95**200)
    assert [row["equivalence"]["verdict"] for row in rows] == ["supported", "contradicted"]
    (few,) = assess([Claim.proportion("few", "s", "e", same[:20], same[:20], 1, margin=0.05)])
    assert few["equivalence"]["p"] == pytest.approx(0.95**20)
    assert few["equivalence"]["verdict"] == "undecided"


@pytest.mark.parametrize("differences", [[], [1.0, np.nan], [np.inf, 0.0]])
def test_claims_without_finite_differences_are_undecided_and_count_in_their_family(differences):
    rows = assess([claim(differences), claim(UP)])
    assert (rows[0]["verdict"], rows[0]["p"], rows[0]["estimate"]) == ("undecided", None, None)
    assert rows[0]["note"]
    assert rows[1]["p_adjusted"] == 2 * rows[1]["p"]


def test_a_verdict_once_reached_stays_and_every_look_has_its_share():
    late = np.concatenate([UP, -3 * UP, -3 * UP])

    def claims_of(seeds):
        return [claim(late[:seeds], id="first"), claim(np.tile(NOISE, 3)[:seeds], id="second")]

    rows = {row["id"]: row for row in assess_in_looks(claims_of, [20, 60], planned=4)}
    alone = {row["id"]: row for row in assess(claims_of(20), looks=4)}
    assert rows["first"]["verdict"] == "supported"
    kept = ("verdict", "p", "p_adjusted", "look", "note")
    assert {name: rows["first"][name] for name in kept} == {name: alone["first"][name] for name in kept}
    whole = {row["id"]: row for row in assess(claims_of(60), looks=4)}["first"]
    assert {name: row for name, row in rows["first"].items() if name not in kept} == {
        name: row for name, row in whole.items() if name not in kept
    }
    assert rows["first"]["estimate"] == pytest.approx(late.mean())
    assert (rows["second"]["verdict"], rows["second"]["look"]) == ("undecided", 60)
    # One of two claims at one of four looks: .05 / 4, halved by Bonferroni.
    assert alone["first"]["adjusted_level"] == pytest.approx(1 - 0.05 / 4 / 2)


def test_a_claim_that_is_exploratory_at_the_last_look_has_no_verdict():
    def claims_of(seeds):
        family = "registered" if seeds == 20 else "exploratory"
        return [claim(np.tile(UP, 60)[:seeds], id="x", family=family, margin=10.0)]

    assert assess_in_looks(claims_of, [20], planned=2)[0]["verdict"] == "supported"
    (row,) = assess_in_looks(claims_of, [20, 60], planned=2)
    assert (row["verdict"], row["p"], row["equivalence"], row["last_look"]) == ("exploratory", None, None, 60)


def test_a_claim_alone_is_decided_exactly_if_its_interval_says_so():
    """Of one claim, the methods of Holm and Bonferroni are the same."""
    for d in (UP, NOISE, NOISE + 0.3, NOISE + 0.5, NOISE + 0.7):
        (row,) = assess([claim(d)])
        low, high = row["interval_adjusted"]
        assert (row["verdict"] != "undecided") == (low > 0 or high < 0)


def test_a_verdict_on_equivalence_stays_as_well():
    near = np.concatenate([0.004 * NOISE, 1 + NOISE])
    claims_of = lambda seeds: [claim(near[:seeds], margin=0.05)]  # noqa: E731
    (row,) = assess_in_looks(claims_of, [20, 40])
    assert row["equivalence"] == assess(claims_of(20), looks=2)[0]["equivalence"]
    assert row["equivalence"]["verdict"] == "supported"


def test_registered_differences_with_a_margin_are_tested_for_equivalence():
    """The second family has the p-values of equivalence claims about the same differences, adjusted among themselves."""
    near, far = 0.004 * NOISE, 0.03 + 0.004 * NOISE
    rows = assess(
        [claim(near, margin=0.01), claim(far, -1, margin=0.01), claim(near), claim(near, margin=0.01, family="exploratory")]
    )
    same = assess([claim(d, 0, goal="equivalence", margin=0.01) for d in (near, far)])
    for row, expected in zip(rows, same, strict=False):
        assert row["equivalence"] == {name: expected[name] for name in ("p", "p_adjusted", "verdict", "look")}
    assert [row["equivalence"]["verdict"] for row in rows[:2]] == ["supported", "contradicted"]
    assert (rows[2]["equivalence"], rows[3]["equivalence"]) == (None, None)


def test_skewed_differences_and_those_of_one_arm_need_both_tests():
    skewed = np.random.default_rng(2).exponential(size=20) - 0.4
    rows = assess([claim(skewed), claim(UP), claim(UP, one_arm=True)])
    assert [row["skewness"] is not None for row in rows] == [True, False, False]
    assert rows[0]["skewness"] == pytest.approx(stats.skew(skewed))
    (exploratory,) = assess([claim(skewed, family="exploratory")])
    assert [exploratory[name] for name in ("skewness", "interval")] == [rows[0][name] for name in ("skewness", "interval")]
    for row, d, both in zip(rows, (skewed, UP, UP), (True, False, True), strict=True):
        (flips,), (t,) = subset_means([d]), statistics([d])
        p_values = [SignFlips(d, flips).two_sided(), BootstrapT(d, t).two_sided()]
        assert row["p"] == (max(p_values) if both else p_values[0])
        limits = [SignFlips(d, flips).interval(0.05), BootstrapT(d, t).interval(0.05)]
        assert row["interval"] == pytest.approx([min(limits)[0], max(high for _, high in limits)] if both else limits[0])


def test_a_mean_that_a_few_seeds_determine_is_not_decided():
    """Eight of 60 seeds make the mean negative, beyond what both tests doubt; most seeds lie on the other side."""
    few = np.concatenate([np.full(8, -9.0), 0.1 + 0.01 * np.tile(NOISE, 3)[8:]])
    rows = assess([claim(few, -1), claim(few, -1, goal="non-inferiority", margin=0.05), claim(UP)])
    assert max(test.two_sided() for test in mean_tests([few], [False])[0].tests) < 0.01
    assert [row["verdict"] for row in rows] == ["undecided", "undecided", "supported"]
    assert (rows[0]["p"], rows[0]["interval_adjusted"]) == (1, None)
    assert "a few seeds determine the mean" in rows[0]["note"]
    most = np.concatenate([[9.0], 0.1 + 0.01 * np.tile(NOISE, 2)[1:]])
    (row,) = assess([claim(most)])
    assert (row["verdict"], row["note"]) == ("supported", None)
    assert row["skewness"] > 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sign": 1, "goal": "equivalence", "margin": 1.0}, "expected sign 0"),
        ({"sign": 0}, "expected sign 0"),
        ({"sign": 1, "goal": "non-inferiority"}, "needs a margin"),
        ({"sign": 1, "kind": "proportion"}, "needs the outcomes"),
        (
            {"sign": 1, "goal": "noninferiority", "margin": 0.2},
            "goal(: expected difference, equivalence, non-inferiority, got|')",
        ),
        ({"sign": 1, "family": "Registered"}, "family(: expected registered, exploratory, got 'Registered'|')"),
        ({"sign": 1, "kind": "means"}, "kind(: expected mean, proportion, time, got 'means'|')"),
        ({"sign": 10}, "expected sign -1, 0 or 1, got 10"),
        ({"sign": 1, "margin": -0.1}, "expected a margin > 0, got -0.1"),
    ],
)
def test_inconsistent_claims_are_rejected(fields, message):
    """Where signatures are checked, misspelt choices are refused before they are looked at."""
    with pytest.raises((ValueError, TypeError), match=message):
        claim(UP, **fields)


def test_differences_and_outcomes_may_be_integers():
    first, second = np.repeat([1, 0], [8, 2]), np.repeat([0, 1], [9, 1])
    fields = {"kind": "proportion", "outcomes": (first, second)}
    expected = assess([Claim.proportion("a", "A.", "a", first == 1, second == 1, 1)])
    found = assess([Claim("a", "A.", "a", first - second, 1, unit="share of seeds", **fields)])
    assert found[0]["interval"] == expected[0]["interval"]
    assert found[0]["p"] == expected[0]["p"]


def test_rows_print_as_a_table():
    found = assess([Claim("a", "A.", "a", np.arange(1.0, 9), 1), Claim("long name", "B.", "b", np.zeros(0), 1)])
    low, high = found[0]["interval"]
    assert str(found).splitlines() == [
        "claim      estimate  95 % interval  adjusted p  n  verdict",
        f"a          4.5       {low:.3g} to {high:.3g}   0.0156      8  supported",
        "long name  -         -              -           0  undecided",
    ]
    assert json.loads(json.dumps(found[0]))["id"] == "a"


def test_a_diverged_model_is_no_evidence_that_a_difference_lies_within_a_margin():
    near, diverged = np.linspace(-0.01, 0.01, 20), np.arange(20) == 3
    about = {"margin": 0.05, "replaced": diverged}
    rows = assess([claim(near, id="a", **about), claim(near, -1, id="b", goal="non-inferiority", **about)])
    rows += assess([claim(near, 0, goal="equivalence", **about)])
    assert [row["verdict"] for row in rows] == ["undecided"] * 3
    assert rows[0]["equivalence"]["p"] == rows[1]["p"] == rows[2]["p"] == 1
    assert "diverged" in rows[1]["note"]
    assert rows[1]["interval_adjusted"] is rows[1]["seeds_needed"] is rows[0]["note"] is None
    none = about | {"replaced": diverged & False}
    (row,) = assess([claim(near, -1, goal="non-inferiority", **none)])
    assert row["verdict"] == "supported"


def test_a_diverged_model_may_contradict_a_margin():
    (row,) = assess([claim(UP, -1, goal="non-inferiority", margin=0.05, replaced=np.arange(20) == 3)])
    assert row["verdict"] == "contradicted"


def test_equal_proportions_of_few_seeds_are_not_within_a_margin_by_their_interval():
    same = np.ones(10, bool)
    (row,) = assess([Claim.proportion("x", "s", "e", same, same, 0, goal="equivalence", margin=0.05)])
    low, high = row["interval_adjusted"]
    assert (row["verdict"], -low) == ("undecided", high)
    assert (1 - high) ** 10 == pytest.approx(0.025)  # a difference of `high` shows in none of 10 seeds with this probability
    assert "10 seeds cannot decide" in row["note"]


def test_claims_of_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"claim x: expected one difference per seed, got an array of shape \(\)"):
        claim(np.array(1.0))
    with pytest.raises(ValueError, match=r"claim x: expected one difference per seed, got an array of shape \(4, 2\)"):
        claim(np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"the same seeds in both arms, got shapes \(6,\) and \(1,\)"):
        Claim.proportion("x", "s", "e", np.ones(6), np.ones(1), 1)
    with pytest.raises(ValueError, match="claim x: expected differences that are the first outcomes less the second"):
        claim(np.ones(2), kind="proportion", outcomes=(np.zeros(2), np.ones(2)))
    with pytest.raises(ValueError, match=r"claim x: expected a margin > 0, got nan"):
        claim(UP, margin=math.nan)
    with pytest.raises(ValueError, match="broadcast"):
        claim(UP, margin=0.1, replaced=np.array([True, False]))
