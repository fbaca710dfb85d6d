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
    inside = undecided | {"goal": "equivalence", "sign": 0}
    assert finding.opening(inside | {"smallest_detectable": 0.02}) == (
        "The price: not decided with 1 seed, which would have shown a value that is 0.02 nats inside the margin of 0.05 nats "
        "in four of five studies."
    )
    assert (
        finding.opening(inside) == "The price: not decided with 1 seed, which could not have shown it in four of five studies."
    )
    assert finding.opening(EXPLORATORY).endswith("is 0.333 [0.1, 0.5] (8 seeds; exploratory, not tested).")
    claims = [undecided, CLAIM]
    both = f"{finding.opening(CLAIM)} {finding.opening(undecided)}"
    assert finding.openings(claims, ["b", "output-conditional", "absent"]) == both
    assert finding.openings(claims, ["b", "output-conditional"], "In main:") == f"In main: {both}"
    assert finding.openings(claims, ["absent"], "In main:") == ""


def test_openings_of_differences_inside_the_margin():
    near = CLAIM | {"estimate": 0.02, "interval": [0.01, 0.03], "equivalence": {"verdict": "supported", "look": 8}}
    words = "The relative distance, zero - one differs from 0 by less than 0.05"
    assert finding.opening(near) == f"{words}: it is 0.02 [0.01, 0.03] (8 seeds; supported: it is not 0)."
    assert finding.opening(near | {"verdict": "undecided"}) == f"{words}: it is 0.02 [0.01, 0.03] (8 seeds)."
    later = near | {"n": 16, "last_look": 16, "estimate": 0.2}
    assert finding.opening(later | {"verdict": "undecided"}) == (
        f"{words} (decided with 8; all 16 do not bear it out): it is 0.2 [0.01, 0.03] (16 seeds)."
    )


def test_openings_name_the_look():
    later = CLAIM | {"n": 16, "last_look": 16}
    assert finding.opening(later).endswith("is 0.333 [0.1, 0.5] (16 seeds): supported with 8.")
    moved = later | {"estimate": -0.1, "interval": [-0.2, 0.1]}
    assert finding.opening(moved).endswith("(16 seeds): supported with 8; all 16 do not bear it out.")


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
