"""Findings of a report: sentences by verdict, and counts of verdicts."""

from claim_rows import CLAIM, EXPLORATORY

from tiejax.lab.reporting import finding
from tiejax.lab.reporting.finding import tally


def row(name, verdict):
    return CLAIM | {"id": name, "verdict": verdict}


PRICE = CLAIM | {"statement": "Tying costs loss.", "estimand": "the loss (tied - untied)", "unit": "nats"}


def test_a_supported_claim_is_stated_with_its_estimate():
    assert finding.opening(CLAIM) == (
        "Zero <farther> than one: the relative distance is 0.333 higher for zero [0.1, 0.5] (8 seeds; supported)."
    )
    assert finding.opening(PRICE | {"statement": "Tables: tied ones differ."}) == (
        "Tables: tied ones differ; the loss is 0.333 nats higher for tied [0.1, 0.5] (8 seeds; supported)."
    )


def test_a_contradicted_claim_is_named_after_the_answer():
    lower = PRICE | {"verdict": "contradicted", "estimate": -0.115, "interval": [-0.143, -0.0934]}
    claim = 'the claim "Tying costs loss" is contradicted.'
    assert finding.opening(lower) == (
        f"The loss is 0.115 nats lower for tied than for untied [0.0934, 0.143] (8 seeds); {claim}"
    )
    sooner = lower | {"kind": "time", "estimand": "the time, cut at 150,000 (tied - untied)", "unit": "steps"}
    assert finding.opening(sooner) == (
        f"The time, cut at 150,000, is 0.115 steps shorter for tied than for untied [0.0934, 0.143] (8 seeds); {claim}"
    )
    margin = lower | {"goal": "non-inferiority", "sign": 1}
    assert "[0.0934, 0.143] (8 seeds, margin 0.05 nats); the claim" in finding.opening(margin)


def test_estimands_are_read_for_what_they_compare():
    """Only the estimand names the two; what cannot be split is given whole, with its sign."""
    lower = EXPLORATORY | {"estimate": -0.2, "interval": [-0.3, 0.1]}
    for estimand, words in {
        "the distance (less 1)": "The distance is 0.2 below 1 [-0.1, 0.3]",
        "the share, at the end, less 0.75": "The share, at the end, is 0.2 below 0.75 [-0.1, 0.3]",
        "the distance, unrelated words - 1": "The distance is 0.2 below 1 for unrelated words [-0.1, 0.3]",
        "the price, mean of a - b and c - d": "The price, mean of a - b and c - d, is -0.2 [-0.3, 0.1]",
        "the slope of the loss (a - b) over time": "The slope of the loss (a - b) over time is -0.2 [-0.3, 0.1]",
        "the loss (3 layers - 2 layers)": "The loss is 0.2 lower for 3 layers than for 2 layers [-0.1, 0.3]",
        "the loss at the end (untie-2/3 - tied)": "The loss at the end is 0.2 lower for untie-2/3 than for tied [-0.1, 0.3]",
    }.items():
        assert finding.opening(lower | {"estimand": estimand}) == f"{words} (8 seeds; exploratory, not tested)."
    nothing = EXPLORATORY | {"estimate": 0.0, "interval": None}
    assert finding.opening(nothing) == "The relative distance, zero - one, is 0 (8 seeds; exploratory, not tested)."
    half = EXPLORATORY | {"estimate": -0.2, "interval": [None, 2.5e-13]}
    assert "zero than for one [-2.5e-13, -]" in finding.opening(half)


def test_an_undecided_claim_has_its_estimate_and_the_seeds_that_would_decide_it():
    undecided = PRICE | {"verdict": "undecided", "interval": [-0.1, 0.5], "seeds_needed": 839}
    words = '"Tying costs loss" is not decided with 8 seeds: the loss (tied - untied) is +0.333 nats'
    assert finding.opening(undecided) == (
        f"{words} [-0.1, 0.5]; about 840 seeds would decide it if the true difference is 0.05 nats."
    )
    margin = undecided | {"goal": "non-inferiority", "sign": -1, "seeds_needed": 13_329}
    assert finding.opening(margin) == (
        f"{words} [-0.1, 0.5]; about 14,000 seeds would decide it if the true difference is 0 nats."
    )
    for unknown in (None, 8):
        assert finding.opening(undecided | {"seeds_needed": unknown}) == f"{words} [-0.1, 0.5]."
    excludes_0 = undecided | {"interval": [0.1, 0.5], "interval_adjusted": [-0.2, 0.9], "seeds_needed": None}
    assert finding.opening(excludes_0) == f"{words} [0.1, 0.5], adjusted for all claims [-0.2, 0.9]."
    few = undecided | {"n": 1, "interval": None, "note": "1 seed cannot decide this claim: the smallest possible p is 1"}
    assert finding.opening(few | {"estimate": -0.2, "seeds_needed": 9}) == (
        '"Tying costs loss" is not decided with 1 seed: the loss (tied - untied) is -0.2 nats; 1 seed cannot decide this claim.'
    )
    none = undecided | {"n": 0, "estimate": None, "interval": None, "note": "no seeds", "seeds_needed": None}
    assert finding.opening(none) == '"Tying costs loss" is not decided with 0 seeds; no seeds.'


def test_decided_claims_come_first():
    claims = [PRICE | {"id": "b", "verdict": "undecided"}, CLAIM]
    both = f"{finding.opening(CLAIM)} {finding.opening(claims[0])}"
    assert finding.openings(claims, ["b", "output-conditional", "absent"]) == both
    assert finding.openings(claims, ["b", "output-conditional"], "In main:") == f"In main: {both}"
    assert finding.openings(claims, ["absent"], "In main:") == ""


def test_openings_of_differences_inside_the_margin():
    near = PRICE | {"estimate": 0.02, "interval": [0.01, 0.03], "equivalence": {"verdict": "supported", "look": 8}}
    words, claim = "The loss differs by less than 0.05 nats", 'the claim "Tying costs loss" is'
    both = "between tied and untied (0.02 nats [0.01, 0.03], 8 seeds)"
    assert finding.opening(near) == f"{words} {both}; {claim} supported."
    sign = f"its sign is open: {claim} not decided."
    assert finding.opening(near | {"verdict": "undecided"}) == f"{words} {both}; {sign}"
    assert finding.opening(near | {"goal": "equivalence", "sign": 0}) == f"{words} {both}; {claim} supported."
    later = near | {"n": 16, "last_look": 16, "estimate": 0.2, "verdict": "undecided", "estimand": "the distance (less 1)"}
    assert finding.opening(later) == (
        "The distance (less 1) differs from 0 by less than 0.05 nats (decided with 8; all 16 do not bear it out) "
        f"(0.2 nats [0.01, 0.03], 16 seeds); {sign}"
    )
    both = near | {"n": 16, "last_look": 16, "equivalence": {"verdict": "supported", "look": 16}}
    assert finding.opening(both).endswith(f"16 seeds); {claim} supported with 8.")


def test_openings_name_the_look():
    later = PRICE | {"n": 16, "last_look": 16}
    assert finding.opening(later).endswith("for tied [0.1, 0.5] (16 seeds; supported with 8).")
    moved = later | {"estimate": -0.1, "interval": [-0.2, 0.1]}
    assert finding.opening(moved) == (
        "The loss is 0.1 nats lower for tied than for untied [-0.1, 0.2] (16 seeds); "
        'the claim "Tying costs loss" is supported with 8; all 16 do not bear it out.'
    )


def test_openings_of_margins():
    not_worse = PRICE | {"goal": "non-inferiority", "sign": -1, "estimate": 0.01, "interval": [-0.01, 0.03]}
    assert finding.opening(not_worse | {"statement": "Tying costs nearly nothing."}) == (
        "Tying costs nearly nothing: the loss is 0.01 nats higher for tied [-0.01, 0.03] "
        "(8 seeds, margin 0.05 nats; supported)."
    )


def test_verdicts_are_counted():
    assert tally([]) == "No claim could be tested."
    assert tally([row("rain", "undecided")]) == "The one claim is undecided."
    claims = [row("rain", "undecided"), row("wind", "supported"), row("snow", "supported")]
    assert tally(claims) == "Of 3 claims, 2 supported, 1 undecided."
    assert tally([*claims, EXPLORATORY]) == "Of 3 claims, 2 supported, 1 undecided. 1 more claim is exploratory."
    assert tally([EXPLORATORY] * 2) == "No claim could be tested. 2 more claims are exploratory."
