"""Claims on planted text from made-up distances and excess losses whose differences are known."""

import numpy as np
import pytest

from tiejax.lab.studies.causal_untying.claims import PLANTED, verdicts
from tiejax.lab.studies.causal_untying.planted_claims import Planted, claims
from tiejax.text.planted_pairs import CHOICES

SEEDS = 12
STEPS = np.array([0, 100, 200, 300])  # the untie at 1/3 is at step 100
KINDS = ["holding", "holding", "constant", "contextual", "reverse", "unrelated"]
# Distances at the end over those at the untie, by kind.
AT_END = {
    ("untie-1/3", "input"): {"holding": 0.8, "constant": 0.6, "contextual": 0.5, "reverse": 1.0, "unrelated": 1.1},
    ("tied", "input"): {"holding": 0.9, "constant": 0.85, "contextual": 0.95, "reverse": 1.0, "unrelated": 1.1},
    ("untie-1/3", "output"): {"holding": 0.7, "constant": 1.0, "contextual": 1.0, "reverse": 0.75, "unrelated": 1.05},
    ("tied", "output"): {"holding": 0.9, "constant": 0.85, "contextual": 0.95, "reverse": 1.0, "unrelated": 1.1},
}
EXCESS = {"tied": 0.30, "untie-1/3": 0.27, "untie-2/3": 0.25, "never-independent": 0.4}


def made_up(arms=("tied", "untie-1/3", "untie-2/3", "never-independent")):
    """Distances of pair k are k + 1 at the untie, twice that at first; the noise of seeds is the same in all arms."""
    arrays, noise = {}, np.random.default_rng(0).normal(0, 0.01, (SEEDS, 1))
    for arm in arms:
        arrays[f"{arm}/train_step"] = STEPS
        for table in ("input", "output"):
            ends = AT_END.get((arm, table), dict.fromkeys(KINDS, 1.0))
            distance = np.ones((SEEDS, len(STEPS), len(KINDS))) * np.arange(1, len(KINDS) + 1)
            distance[:, 0] *= 2
            distance[:, 2] *= 3
            distance[:, -1] *= np.array([ends[kind] for kind in KINDS]) + noise
            arrays[f"{arm}/train_pair_{table}"] = distance
        arrays[f"{arm}/nats"] = np.ones((SEEDS, 1))
        arrays[f"{arm}/choices"] = np.full((SEEDS, len(CHOICES)), 50)
        arrays[f"{arm}/excess"] = 50 * (EXCESS[arm] + noise) * np.ones(len(CHOICES))
    return Planted(arrays, KINDS, 300)


def test_estimates():
    """Conflict twins: (.6 + .5) / 2 - (.85 + .95) / 2 = -.35, holding ones .8 - .9 = -.1; reverse pairs .75 - 1.05 = -.3."""
    found = {claim.id: claim.differences for claim in claims(made_up())}
    assert list(found) == ["input-distance/conflict", "output-distance/reverse", "excess/contextual"]
    for differences, expected in zip(found.values(), (-0.25, -0.3, -0.05), strict=True):
        np.testing.assert_allclose(differences, expected, atol=1e-12)


def test_claims_without_their_arms_are_left_out():
    assert [claim.id for claim in claims(made_up(["tied", "untie-2/3"]))] == ["excess/contextual"]
    assert claims(made_up(["untie-1/3", "untie-2/3"])) == []


@pytest.mark.parametrize(("excess", "family"), [(0.34, "registered"), (0.36, "exploratory")])
def test_markers_that_models_do_not_understand_are_not_tested(excess, family):
    planted = made_up()
    planted.arrays["untie-1/3/excess"][:, CHOICES.index("cipher")] = 50 * excess
    found = claims(planted)
    assert [claim.family for claim in found] == ["registered", family, "registered"]
    assert ("not tested" in found[1].statement) == (family == "exploratory")


def test_a_diverged_model_speaks_against_the_claim():
    planted = made_up()
    noise = np.random.default_rng(1).normal(0, 0.01, (SEEDS, 1, 1))
    planted.arrays["untie-1/3/train_pair_output"][:, -1:] += noise * np.arange(1, 7)
    expected = claims(planted)[1].differences
    planted.arrays["untie-1/3/train_pair_output"][4, 2:] = np.nan
    found = claims(planted)[1].differences
    assert found[4] == np.delete(expected, 4).max()
    np.testing.assert_array_equal(np.delete(found, 4), np.delete(expected, 4))


def test_losses_are_exploratory_on_planted_text():
    losses = {arm: 4.0 + excess + np.zeros(SEEDS) for arm, excess in EXCESS.items()}
    found = verdicts(losses, {}, [], [10, SEEDS], 3, made_up())
    rows = {row["id"]: row for row in found[PLANTED]}
    assert list(found) == [PLANTED]
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "input-distance/conflict": "supported",
        "output-distance/reverse": "supported",
        "excess/contextual": "supported",
        "tied/never": "exploratory",
        "late/tied": "exploratory",
        "late/never": "exploratory",
    }
    assert rows["late/tied"]["estimate"] == pytest.approx(-0.05)
    assert rows["excess/contextual"]["look"] == 10
