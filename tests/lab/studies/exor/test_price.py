"""Claims about the arms of EXor: changes of the price of tying, paired by seed, and names of runs."""

import itertools

import numpy as np
import pytest

from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import ARM_SETTINGS, CHANGES, Settings, changes, run_name
from tiejax.lab.studies.exor.variants import arm_claims
from tiejax.statistics.claims import assess

SPELLINGS = {"main": ([0.1, 0.9], [0.5, 0.5]), "half": ([0.5, 0.5], [0.5, 0.5])}


def body(variant, cost, distance, seeds=range(12), phase=1.0):
    """Return a run whose tied models lose `cost` more, with noise that depends on the phase."""
    zero, one = SPELLINGS[variant]
    noise = 0.001 * np.sin(phase * np.array([*seeds]))
    final = {
        "untied": {"exact_cross_entropy": {"train": [0.5] * len(seeds)}},
        "tied": {
            "exact_cross_entropy": {"train": (0.5 + cost + noise).tolist()},
            "relative_distance": {"input": {"zero": (distance + noise).tolist()}},
        },
    }
    return {"bits": 7, "zero": zero, "one": one, "seeds": [*seeds], "final": final}


def runs(**changed):
    prices = {"main": 0.3, "main-bias": 0.1, "main-asked": 0.2, "half": 0.2, "half-bias": 0.1, "half-asked": 0.21} | changed
    return {
        name: body(name.split("-")[0], cost, 0.2 if name.endswith("bias") else 0.9, phase=1 + place)
        for place, (name, cost) in enumerate(prices.items())
    }


def rows(bodies, variants=("main", "half"), arms=("published", "bias", "asked")):
    return {row["id"]: row for row in assess(arm_claims(bodies, variants, arms))}


def test_registered_claims_are_those_of_the_page():
    found = rows(runs())
    registered = {name: row for name, row in found.items() if row["family"] == "registered"}
    assert {name: row["verdict"] for name, row in registered.items()} == dict.fromkeys(
        ("price/main-bias", "distance/main-bias", "price/half-asked"), "supported"
    )
    assert registered["price/half-asked"]["goal"] == "equivalence"
    assert registered["price/main-bias"]["estimate"] == pytest.approx(-0.2, abs=0.001)
    assert registered["distance/main-bias"]["estimate"] == pytest.approx(-0.7, abs=0.001)
    for variant, arm in itertools.product(("main", "half"), ("bias", "asked")):
        assert f"tying-costs/{variant}-{arm}" in found
    assert found["tying-costs/half-bias"]["estimate"] == pytest.approx(0.1, abs=0.001)


def test_a_changed_price_contradicts_the_equivalence():
    assert rows(runs(**{"half-asked": 0.05}))["price/half-asked"]["verdict"] == "contradicted"
    assert rows(runs(**{"main-bias": 0.4}))["price/main-bias"]["verdict"] == "contradicted"


def test_without_the_published_arm_only_prices_are_estimated():
    assert set(rows(runs(), ("main",), ("bias",))) == {"tying-costs/main-bias"}


def test_runs_of_arms_differ_in_one_setting():
    settings = Settings(variants=["main", "half"], arms=[",".join(ARM_SETTINGS)], out="run").resolved()
    assert list(settings.by_variant) == [run_name(*both) for both in itertools.product(("main", "half"), ARM_SETTINGS)]
    published = settings.by_variant["main"]
    for arm, changed in ARM_SETTINGS.items():
        one = settings.by_variant[run_name("main", arm)]
        differing = {name for name in vars(one) if getattr(one, name) != getattr(published, name)} - {"out"}
        assert differing == set(changed)
    assert settings.by_variant["half-bias"].variant == "half"


def test_changes_of_an_arm_are_named():
    assert changes(vars(Settings().resolved())) == {}
    assert changes({}) == {}  # of a run before these settings
    assert {name: published for name, (published, _) in CHANGES.items()} == {
        name: getattr(Settings(), name) for name in CHANGES
    }
    named = {arm: changes(vars(Settings(**changed).resolved())) for arm, changed in ARM_SETTINGS.items()}
    assert named["bias"] == {"not as published": "a trained bias of the logits"}
    assert named["table-decay"] == {"not as published": "weight decay 0 of the tables"}
    both = changes({"table_rate": 0.5, "table_std": 0.25})
    assert both == {
        "not as published": "initial tables with standard deviation 0.25; learning rate of the tables multiplied by 0.5"
    }
    # Weight decay and gradient weights are named with the training.
    shown_elsewhere = {arm for arm, changed in ARM_SETTINGS.items() if not set(changed) <= set(CHANGES)}
    assert {arm for arm, row in named.items() if not row} == {"published"} | shown_elsewhere


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arms": ["bias"]}, "^--arms: needs --variants"),
        ({"variants": ["main"], "arms": ["biased"]}, "^--arms: expected some of published, bias, .*, got 'biased'"),
        ({"variants": ["main"], "arms": ["bias,bias"]}, "^--arms: expected distinct arms, but bias is repeated"),
    ],
)
def test_bad_arms_are_refused(fields, message):
    with pytest.raises(BadInput, match=message):
        Settings(**fields).resolved()
