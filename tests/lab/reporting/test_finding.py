"""Findings of a report: sentences by verdict, and counts of verdicts."""

from claim_rows import CLAIM, EXPLORATORY

from tiejax.lab.reporting import finding
from tiejax.lab.reporting.finding import tally


def row(name, verdict):
    return CLAIM | {"id": name, "verdict": verdict}


def test_openings_say_what_is_decided_and_what_the_seeds_would_have_shown():
    undecided = CLAIM | {"id": "b", "verdict": "undecided", "unit": "nats", "estimand": "the price", "n": 1}
    assert finding.opening(CLAIM) == "The relative distance, zero - one is 0.333 [0.1, 0.5] (8 seeds): supported."
    assert finding.opening(undecided) == (
        "The price: not decided with 1 seed, which would have shown 0.12 nats in four of five studies."
    )
    for row in (undecided | {"smallest_detectable": None}, undecided | {"note": "1 seed cannot decide this claim"}):
        assert finding.opening(row) == "The price: not decided with 1 seed."
    assert finding.opening(undecided | {"goal": "equivalence", "sign": 0}) == (
        "The price: not decided with 1 seed, which would have shown a value that is 0.12 nats inside the margin of 0.05 nats "
        "in four of five studies."
    )
    assert finding.opening(EXPLORATORY).endswith("is 0.333 [0.1, 0.5] (8 seeds; exploratory, not tested).")
    claims = [undecided, CLAIM]
    both = f"{finding.opening(CLAIM)} {finding.opening(undecided)}"
    assert finding.openings(claims, ["b", "output-conditional", "absent"]) == both
    assert finding.openings(claims, ["b", "output-conditional"], "In main:") == f"In main: {both}"
    assert finding.openings(claims, ["absent"], "In main:") == ""


def test_openings_of_margins():
    same = CLAIM | {"goal": "equivalence", "sign": 0, "unit": "nats", "estimand": "the price"}
    assert finding.opening(same) == "The price differs from 0 by less than 0.05 nats: it is 0.333 nats [0.1, 0.5] (8 seeds)."
    assert finding.opening(same | {"verdict": "contradicted"}) == "The price is 0.333 nats [0.1, 0.5] (8 seeds): contradicted."
    not_worse = same | {"goal": "non-inferiority", "sign": -1}
    assert finding.opening(not_worse) == "The price is less than 0.05 nats: it is 0.333 nats [0.1, 0.5] (8 seeds)."
    assert finding.opening(not_worse | {"sign": 1}).startswith("The price is more than -0.05 nats:")


def test_verdicts_are_counted():
    assert tally([]) == "No claim could be tested."
    assert tally([row("rain", "undecided")]) == "The one claim is undecided."
    claims = [row("rain", "undecided"), row("wind", "supported"), row("snow", "supported")]
    assert tally(claims) == "Of 3 claims, 2 supported, 1 undecided."
    assert tally([*claims, EXPLORATORY]) == "Of 3 claims, 2 supported, 1 undecided. 1 more claim is exploratory."
    assert tally([EXPLORATORY] * 2) == "No claim could be tested. 2 more claims are exploratory."
