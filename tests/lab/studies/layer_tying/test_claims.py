"""Tests of the layer-tying claims and their paired differences."""

import json

import numpy as np
import pytest
from claim_rows import agrees
from layer_runs import findings_of, run
from processes import EXPERIMENTS

from tiejax.lab.settings import command_line
from tiejax.lab.studies.layer_tying import claims
from tiejax.lab.studies.layer_tying.settings import STUDY, Settings
from tiejax.lab.studies.layer_tying.variants import Variant
from tiejax.statistics.claims import assess
from tiejax.system.json_values import plain


def test_claims_estimate_the_stated_differences():
    findings, _, _ = findings_of(run())
    rows = {row["id"]: row for row in findings["claims"]}
    halves = {  # means of two seeds
        "perplexity/agent": (np.log(4 / 8) + np.log(4 / 2)) / 2,
        "perplexity-equal-time/agent": ((2.55 - 2.0) + (1.9 - 2.2)) / 2,
        "replicated/agent": ((0.25 - 0.75) + (0.75 - 0.75)) / 2,
        "memory/mean": (np.log(1920 / 2240) + np.log(1760 / 2240)) / 2,
        "memory/most": (np.log(2080 / 2240) + np.log(1760 / 2240)) / 2,
        "static/all-one": (np.log(4 / 16) + np.log(4 / 4)) / 2,
        "from-untied/all-one": (np.log(16 / 8) + np.log(4 / 2)) / 2,
    }
    assert set(rows) == set(halves)
    for name, value in halves.items():
        assert rows[name]["estimate"] == pytest.approx(value, abs=1e-12)
        registered = name in ("perplexity/agent", "replicated/agent", "memory/mean")
        assert (rows[name]["n"], rows[name]["verdict"]) == (2, "undecided" if registered else "exploratory")
    reported = {"perplexity/agent", "replicated/agent", "memory/mean", "memory/most"}
    assert {name for name in rows if rows[name]["reported"]} == reported
    json.dumps(plain(findings), allow_nan=False)


def test_each_method_has_its_claims():
    """One seed; the loss of each method is its index in the list."""
    names = ("untied", "sequence", "my-map", "random-map", "random-agent", "agent", "found-map")
    rows = [
        {"method": name, "test_loss": [float(index)], "equal_time_loss": [2.0 * index], "replicated": [1.0],
         "distinct_in_training": [3.0], "diverged": np.array([False]),
         "bytes": {"stored_bytes": {kind: [4.0 if name == "untied" else 1.0] for kind in ("seeds", "largest")},
                   "parameter_bytes": {"seeds": [5.0 if name == "agent" else 4.0]}}}
        for index, name in enumerate(names)
    ]  # fmt: skip
    rows[4]["replicated"] = [0.75]
    every = claims.claims(rows, {})
    listed = {claim.id: (claim.differences.tolist(), claim.sign) for claim in every}
    assert listed == {
        "perplexity/agent": ([5], -1), "perplexity-equal-time/agent": ([10], -1), "replicated/agent": ([0.25], 1),
        "memory/mean": ([np.log(0.25)], -1), "memory/most": ([np.log(0.25)], -1), "learns/found-map": ([3], -1),
        "learns/random-map": ([2], -1), "learns/random-agent": ([1], -1), "learns/replicated": ([0.25], 1),
        "retrained/found-map": ([1], -1), "static/sequence": ([4], -1), "static/my-map": ([3], -1),
        "from-untied/sequence": ([1], -1), "from-untied/my-map": ([2], -1), "from-untied/random-map": ([3], -1),
        "from-untied/found-map": ([6], -1),
    }  # fmt: skip
    statement = {claim.id: claim.statement for claim in every}["static/sequence"]
    assert statement == (
        "The agent, with 3.0 distinct layers and 125.0 % of the bytes of sequence, is better than this fixed map, with 3.0 "
        "distinct layers."
    )
    assert {claim.id for claim in every if claim.family == "registered"} == {
        "perplexity/agent", "replicated/agent", "memory/mean", "learns/found-map", "learns/random-agent", "static/sequence",
    }  # fmt: skip
    assert claims.claims([row for row in rows if row["method"] not in ("agent", "found-map", "untied")], {}) == []
    assert {claim.id for claim in claims.claims(rows[5:], {})} == {"replicated/agent", "retrained/found-map"}


def test_claims_that_variants_register():
    rows = [
        {
            "method": name,
            "test_loss": [loss] * 3,
            "distinct_in_training": [1.0],
            "diverged": np.array([False]),
            "bytes": {"parameter_bytes": {"seeds": [size] * 3}},
        }
        for name, loss, size in (("untied", 4.0, 200.0), ("cycle", 4.2, 100.0), ("low-rank", 4.1, 99.0))
    ]
    variant = Variant("cycle", 3, lora_rank=2, better_than="cycle", not_worse_than="untied")
    found = {claim.id: claim for claim in claims.claims(rows, {"low-rank": variant}) if claim.family == "registered"}
    assert set(found) == {"better/low-rank", "not-worse/low-rank"}
    better, not_worse = found["better/low-rank"], found["not-worse/low-rank"]
    np.testing.assert_allclose(better.differences, -0.1)
    np.testing.assert_allclose(not_worse.differences, 0.1)
    assert (better.goal, not_worse.goal, better.sign, not_worse.sign) == ("difference", "non-inferiority", -1, -1)
    assert better.statement == "low-rank has a lower loss than cycle, with 99.0 % of the bytes of cycle."
    assert not_worse.statement == (
        "low-rank, whose parameters take 49.5 % of the bytes of untied, has a loss less than 0.01 above that of untied."
    )
    assert not_worse.margin == 0.01
    missing = claims.claims(rows[1:], {"low-rank": variant})  # nothing to compare with
    assert [claim.id for claim in missing] == ["better/low-rank"]


def test_methods_are_compared_with_a_narrower_model_of_as_many_bytes():
    """Not those of other sizes, agents or maps of agents, nor a pair that is registered or listed the other way round."""
    losses = {"untied": (4.0, 200.0), "cycle": (4.2, 101.0), "narrow": (4.1, 100.0), "all-one": (4.5, 50.0)}
    losses |= dict.fromkeys(("agent", "found-map", "better", "other"), losses["narrow"])
    rows = [
        {"method": name, "test_loss": [loss] * 3, "equal_time_loss": [loss] * 3, "distinct_in_training": [1.0],
         "diverged": np.array([False]), "replicated": [0.5] * 3,
         "bytes": {"parameter_bytes": {"seeds": [size] * 3}, "stored_bytes": {"seeds": [size] * 3, "largest": [size] * 3}}}
        for name, (loss, size) in losses.items()
    ]  # fmt: skip
    variants = {
        "narrow": Variant("untied", width=8),
        "other": Variant("cycle", width=12),
        "better": Variant("cycle", better_than="narrow"),
    }
    found = {claim.id: claim for claim in claims.claims(rows, variants)}
    assert {name for name in found if name.startswith(("from-narrow/", "from-other/"))} == {
        "from-narrow/cycle", "from-narrow/other", "from-other/cycle", "from-other/better",
    }  # fmt: skip
    claim = found["from-narrow/cycle"]
    np.testing.assert_allclose(claim.differences, 0.1)
    assert (claim.family, claim.sign) == ("exploratory", -1)
    assert claim.statement == "cycle has a lower loss than narrow, with 101.0 % of the bytes of narrow."


def test_the_first_look_can_decide_every_claim_of_the_published_configuration():
    """Ten seeds have p >= 2^-9; half of .05 is shared by the family."""
    path = EXPERIMENTS.parent / "configs" / "layer_tying" / "low_rank.yaml"
    settings = command_line.parse(Settings, STUDY.command, ["--config", str(path)])[0].resolved()
    variants = {name: Variant(**fields) for name, fields in settings.variants.items()}
    rows = [
        {"method": name, "test_loss": [1.0] * 10, "equal_time_loss": [1.0] * 10, "replicated": [1.0] * 10,
         "distinct_in_training": [1.0] * 10, "diverged": np.array([False]),
         "bytes": {"parameter_bytes": {"seeds": [1.0] * 10},
                   "stored_bytes": {kind: [1.0] * 10 for kind in ("seeds", "largest")}}}
        for name in settings.names
    ]  # fmt: skip
    registered = [claim for claim in claims.claims(rows, variants) if claim.family == "registered"]
    assert len(registered) == 12
    assert settings.looks == [10, 16]
    assert 2.0**-9 * len(registered) <= 0.05 / len(settings.looks)


def test_equal_shares_of_copies_in_every_seed_are_decided():
    """Ten of twelve layers are copies in every seed: + .0833 each time, 2^(1 - 8) for eight seeds."""
    row = {
        "method": "agent",
        "test_loss": [2.0] * 8,
        "equal_time_loss": [2.0] * 8,
        "replicated": [10 / 12] * 8,
        "distinct_in_training": [2.0] * 8,
        "diverged": np.array([False]),
        "bytes": {"stored_bytes": {kind: [1.0] * 8 for kind in ("seeds", "largest")}, "parameter_bytes": {"seeds": [1.0] * 8}},
    }
    untied_bytes = row["bytes"] | {"stored_bytes": {kind: [4.0] * 8 for kind in ("seeds", "largest")}}
    untied = row | {"method": "untied", "bytes": untied_bytes}
    found = {row["id"]: row for row in assess(claims.claims([row, untied], {}))}
    for name in ("replicated/agent", "memory/mean"):
        assert (found[name]["verdict"], found[name]["p"]) == ("supported", 2**-7)
    assert found["perplexity/agent"]["p"] == 1  # equal losses


@pytest.mark.parametrize("effect", [-0.2, 0.0, 0.2])
def test_claims_are_decided_exactly_if_their_adjusted_interval_says_so(effect):
    """Methods whose losses differ by steps of `effect` in the mean, and seeds in which every method saves as much memory."""
    names, seen = ("untied", "agent", "random-map", "random-agent", "found-map", "sequence"), set()
    rng = np.random.default_rng(0)
    for seeds in (3, 10, 16):
        rows = [
            {"method": name, "test_loss": rng.normal(effect * index, 0.05, seeds),
             "equal_time_loss": rng.normal(effect * index, 0.3, seeds), "replicated": [10 / 12] * seeds,
             "distinct_in_training": [2.0] * seeds, "diverged": np.array([False]),
             "bytes": {"stored_bytes": {kind: [4.0 if name == "untied" else 1.0] * seeds for kind in ("seeds", "largest")},
                       "parameter_bytes": {"seeds": [1.0] * seeds}}}
            for index, name in enumerate(names)
        ]  # fmt: skip
        for row in assess(claims.claims(rows, {})):
            if row["family"] == "registered":
                assert agrees(row), row
                seen.add(row["verdict"])
            else:
                assert (row["verdict"], row["p"]) == ("exploratory", None)
    assert {"supported", "undecided"} <= seen
    assert ("contradicted" in seen) == bool(effect)
