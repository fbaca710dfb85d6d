"""Tests of the layer-tying claims and their paired differences."""

import json

import numpy as np
import pytest
from claim_rows import agrees
from layer_runs import findings_of, run

from tiejax.lab.studies.layer_tying import claims
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
    }
    assert set(rows) == set(halves)
    for name, value in halves.items():
        assert rows[name]["estimate"] == pytest.approx(value, abs=1e-12)
        assert (rows[name]["n"], rows[name]["verdict"]) == (2, "exploratory" if name.startswith("static") else "undecided")
    reported = {"perplexity/agent", "replicated/agent", "memory/mean", "memory/most"}
    assert {name for name in rows if rows[name]["reported"]} == reported
    json.dumps(plain(findings), allow_nan=False)


def test_each_method_has_its_claims():
    """One seed; the loss of each method is its index in the list."""
    names = ("untied", "all-one", "my-map", "random-map", "random-agent", "agent", "found-map")
    rows = [
        {"method": name, "test_loss": [float(index)], "equal_time_loss": [2.0 * index], "replicated": [1.0],
         "distinct_in_training": [3.0],
         "bytes": {"stored_bytes": {kind: [4.0 if name == "untied" else 1.0] for kind in ("seeds", "largest")}}}
        for index, name in enumerate(names)
    ]  # fmt: skip
    listed = {claim.id: (claim.differences.tolist(), claim.sign) for claim in claims.claims(rows)}
    assert listed == {
        "perplexity/agent": ([5], -1), "perplexity-equal-time/agent": ([10], -1), "replicated/agent": ([0.25], 1),
        "memory/mean": ([np.log(0.25)], -1), "memory/most": ([np.log(0.25)], -1), "learns/found-map": ([3], -1),
        "learns/random-map": ([2], -1), "learns/random-agent": ([1], -1),
        "retrained/found-map": ([1], -1), "static/all-one": ([4], -1), "static/my-map": ([3], -1),
    }  # fmt: skip
    assert claims.claims([row for row in rows if row["method"] not in ("agent", "found-map")]) == []
    assert {claim.id for claim in claims.claims(rows[5:])} == {"replicated/agent", "retrained/found-map"}


def test_equal_shares_of_copies_in_every_seed_are_decided():
    """Ten of twelve layers are copies in every seed: + .0833 each time, 2^(1 - 8) for eight seeds."""
    row = {
        "method": "agent",
        "test_loss": [2.0] * 8,
        "equal_time_loss": [2.0] * 8,
        "replicated": [10 / 12] * 8,
        "distinct_in_training": [2.0] * 8,
        "bytes": {"stored_bytes": {kind: [1.0] * 8 for kind in ("seeds", "largest")}},
    }
    untied = row | {"method": "untied", "bytes": {"stored_bytes": {kind: [4.0] * 8 for kind in ("seeds", "largest")}}}
    found = {row["id"]: row for row in assess(claims.claims([row, untied]))}
    for name in ("replicated/agent", "memory/most"):
        assert (found[name]["verdict"], found[name]["p"]) == ("supported", 2**-7)
    assert found["perplexity/agent"]["p"] == 2**-8  # equal losses: within any margin


@pytest.mark.parametrize("effect", [-0.2, 0.0, 0.2])
def test_claims_are_decided_exactly_if_their_adjusted_interval_says_so(effect):
    """Methods whose losses differ by steps of `effect` in the mean, and seeds in which every method saves as much memory."""
    names, seen = ("untied", "agent", "random-map", "random-agent", "found-map", "cycle"), set()
    rng = np.random.default_rng(0)
    for seeds in (3, 10, 16):
        rows = [
            {"method": name, "test_loss": rng.normal(effect * index, 0.05, seeds),
             "equal_time_loss": rng.normal(effect * index, 0.3, seeds), "replicated": [10 / 12] * seeds,
             "distinct_in_training": [2.0] * seeds,
             "bytes": {"stored_bytes": {kind: [4.0 if name == "untied" else 1.0] * seeds for kind in ("seeds", "largest")}}}
            for index, name in enumerate(names)
        ]  # fmt: skip
        for row in assess(claims.claims(rows)):
            if row["family"] == "registered":
                assert agrees(row), row
                seen.add(row["verdict"])
            else:
                assert (row["verdict"], row["p"]) == ("exploratory", None)
    assert {"supported", "undecided"} <= seen
    assert ("contradicted" in seen) == bool(effect)
