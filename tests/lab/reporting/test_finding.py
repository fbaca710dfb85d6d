"""Findings of a report: sentences by verdict, and counts of verdicts."""

from claim_rows import CLAIM, EXPLORATORY

from tiejax.lab.reporting import finding
from tiejax.lab.reporting.finding import Clause, sentence, tally

RAIN = Clause("rain", "it rains {size} mm", "it is drier by {size} mm", "whether it rains")
WIND = Clause("wind", "the wind blows", "the wind rests", "whether the wind blows")
SNOW = Clause("snow", "it snows", "it thaws", "whether it snows")


def row(name, verdict, estimate=-0.25, n=8):
    return {
        "id": name,
        "statement": f"{name} is there.",
        "statistic": "mm",
        "estimate": estimate,
        "p_adjusted": 0.01,
        "n": n,
        "verdict": verdict,
    }


def test_clauses_follow_verdicts_and_open_questions_come_last():
    claims = [row("rain", "undecided"), row("wind", "supported"), row("snow", "contradicted", n=7)]
    assert sentence(claims, [RAIN, WIND, SNOW], "Up north,") == (
        "Up north, the wind blows (supported, 8 seeds), it thaws (contradicted, 7 seeds), and it remains open whether it rains "
        "(undecided, 8 seeds)."
    )


def test_numbers_of_seeds_are_not_repeated_and_sizes_are_unsigned():
    claims = [row("rain", "supported"), row("wind", "supported")]
    assert sentence(claims, [RAIN, WIND]) == "It rains 0.25 mm (supported, 8 seeds) and the wind blows (supported)."
    claims = [row("rain", "contradicted"), row("wind", "undecided", None, n=1)]
    expected = "It is drier by 0.25 mm (contradicted, 8 seeds) and it remains open whether the wind blows (undecided, 1 seed)."
    assert sentence(claims, [RAIN, WIND]) == expected


def test_claims_that_were_not_tested_are_omitted():
    assert sentence([row("rain", "supported")], [WIND], "Up north,") == ""
    assert sentence([row("wind", "undecided")], [RAIN, WIND]) == "It remains open whether the wind blows (undecided, 8 seeds)."


def test_openings_say_what_is_decided_and_what_the_seeds_would_have_shown():
    undecided = CLAIM | {"id": "b", "verdict": "undecided", "unit": "nats", "estimand": "the price", "n": 1}
    assert finding.opening(CLAIM) == "The relative distance, zero - one is 0.333 [0.1, 0.5] (8 seeds): supported."
    assert finding.opening(undecided) == (
        "The price: not decided with 1 seed, which would have shown 0.12 nats in four of five studies."
    )
    assert finding.opening(undecided | {"smallest_detectable": None}) == "The price: not decided with 1 seed."
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
