"""Tests of the claims about shapes: the roles of shapes, and verdicts on synthetic results."""

import dataclasses

import numpy as np
import pytest
from claim_rows import agrees
from coupling_bodies import STARTS, body_of

from tiejax.lab.studies.embedding_coupling.claims import CONTROL, COST, MASKED, PROBE, SCORE, at_edge, claims, roles_of
from tiejax.lab.studies.embedding_coupling.claims import verdicts as assessed
from tiejax.lab.studies.embedding_coupling.settings import DEFAULT_SHAPES
from tiejax.models.shapes import PUBLISHED_SHAPES, Shape
from tiejax.statistics.claims import assess

AS_PUBLISHED = {
    "coupled": 0.600,
    "decoupled": 0.602,
    "big-in": 0.580,
    "out-16": 0.560,
    "out-64": 0.581,
    "out-256": 0.620,
    "dropped-3": 0.570,
    "wide-88": 0.640,
    "deep-6": 0.660,
}
SIMILARITY = {
    "coupled": {"input": 0.39},
    "out-16": {"input": 0.40, "output": 0.36},
    "out-64": {"input": 0.395, "output": 0.28},
    "out-256": {"input": 0.41, "output": 0.11},
}


def verdicts(body, shapes=DEFAULT_SHAPES):
    return {row["id"]: row["verdict"] for row in assessed(body, shapes)}


def test_roles_of_the_default_shapes():
    assert roles_of(DEFAULT_SHAPES) == {
        "coupled": "coupled",
        "decoupled": "decoupled",
        "big_in": "big-in",
        "narrow": "out-16",
        "middle": "out-64",
        "wide": "out-256",
        "dropped": "dropped-3",
        "wider": "wide-88",
        "deeper": "deep-6",
    }


def test_roles_of_the_published_shapes():
    """The multilingual shapes are identified by their widths."""
    roles = roles_of({published.name: published.shape for published in PUBLISHED_SHAPES[:10]})
    assert (roles["narrow"], roles["middle"], roles["wide"]) == (
        "E_in 128, E_out 128",
        "E_in 128, E_out 768",
        "E_in 128, E_out 3072",
    )
    assert (roles["coupled"], roles["big_in"]) == ("coupled 768", "E_in 768, E_out 128")
    assert (roles["wider"], roles["deeper"]) == ("E_in 128, E_out 768, H 1024", "E_in 128, E_out 768, L 23")


def test_claims_are_supported_on_results_like_the_papers():
    found = verdicts(
        body_of(
            AS_PUBLISHED,
            masked={name: 0.2 + 0.1 * (name == "out-256") for name in DEFAULT_SHAPES},
            similarity=SIMILARITY,
            retrieval={name: [0.1, 0.2, 0.3, 0.25 + 0.2 * (name == "out-256")] for name in DEFAULT_SHAPES},
            cost={name: 0.03 if name == "out-256" else 0.005 for name in DEFAULT_SHAPES},
        )
    )
    assert len(found) == 15 <= 25
    assert set(found.values()) == {"supported"}, found


def test_claims_are_contradicted_on_opposite_results():
    values = {name: 1.2 - value for name, value in AS_PUBLISHED.items()} | {"decoupled": 0.63, "big-in": 0.70}
    found = verdicts(
        body_of(
            values,
            control=0.9,
            masked={name: 0.2 - 0.1 * (name == "out-256") for name in DEFAULT_SHAPES},
            similarity={
                "coupled": {"input": 0.3},
                "out-16": {"input": 0.4, "output": 0.1},
                "out-64": {"input": 0.38, "output": 0.5},
                "out-256": {"input": 0.4, "output": 0.5},
            },
            cost={name: 0.001 if name == "out-256" else 0.02 for name in DEFAULT_SHAPES},
        )
    )
    assert set(found.values()) == {"contradicted"}, found


def test_equal_shapes_support_only_equivalence_claims():
    found = verdicts(body_of(dict.fromkeys(DEFAULT_SHAPES, 0.6)))
    supported = {name for name, verdict in found.items() if verdict == "supported"}
    assert supported == {"pretraining/score", "decoupling/score", "large-output/score"}
    assert "contradicted" not in found.values()


def test_verdicts_of_claims_are_those_of_the_statistics_away_from_edges():
    body = body_of(AS_PUBLISHED)
    assert assessed(body, DEFAULT_SHAPES) == assess(claims(body, DEFAULT_SHAPES))


def test_no_claim_is_tested_without_passing_the_gate():
    """Estimates stay, also where a rate is at the edge of its grid."""
    body = body_of(AS_PUBLISHED)
    body["rates"]["tags"]["out-256"]["pretrained"]["chosen"] = 5e-4
    tested, untested = assessed(body, DEFAULT_SHAPES), assessed(body, DEFAULT_SHAPES, tested=False)
    assert [row["estimate"] for row in untested] == [row["estimate"] for row in tested]
    assert {(row["family"], row["verdict"], row["p"]) for row in untested} == {("exploratory", "exploratory", None)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_out", "gone"),
    [
        ("dropped-3", {"extra-layers/score"}),
        ("decoupled", {"decoupling/score"}),
        ("big-in", {"large-output/score"}),
        ("deep-6", {"reinvest/deeper-wider", "reinvest/deeper-coupled"}),
    ],
)
def test_claims_need_their_shapes(left_out, gone):
    body = body_of(AS_PUBLISHED)
    shapes = {name: shape for name, shape in DEFAULT_SHAPES.items() if name != left_out}
    assert set(verdicts(body)) - set(verdicts(body, shapes)) == gone


def test_a_single_shape_is_only_compared_with_its_control():
    shapes = {"coupled": dataclasses.replace(DEFAULT_SHAPES["coupled"])}
    assert set(verdicts(body_of(AS_PUBLISHED), shapes)) == {"pretraining/score"}
    assert roles_of({"a": Shape(4, 4, 8, 2, 2)})["coupled"] is None


def test_claims_stay_undecided_where_the_best_rate_is_at_the_edge_of_its_grid():
    body = body_of(AS_PUBLISHED, masked={name: 0.2 + 0.1 * (name == "out-256") for name in DEFAULT_SHAPES})
    before = {row["id"]: row for row in assessed(body, DEFAULT_SHAPES)}
    development = {"0.0005": 0.4, "0.001": 0.5, "0.002": 0.6}
    wide = body["rates"]["tags"]["out-256"]
    body["rates"]["tags"]["out-256"] = wide | {"pretrained": {"chosen": 2e-3, "development": development}}
    after = {row["id"]: row for row in assessed(body, DEFAULT_SHAPES)}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"output-width/score", "extra-layers/score", "dropping/output-width"}
    for name in changed:
        assert after[name]["verdict"] == "undecided"
        assert "out-256 (pretrained) on tags" in after[name]["note"]
        assert after[name]["p"] == before[name]["p"]
        assert after[name]["smallest_detectable"] is after[name]["seeds_needed"] is None
    assert after["output-width/masked-accuracy"]["verdict"] == "supported"


@pytest.mark.parametrize(
    ("rates", "chosen", "edge"),
    [([1, 2, 4], 1, True), ([1, 2, 4], 2, False), ([1, 2, 4], 4, True), ([1, 2], 1, True), ([1], 1, True)],
)
def test_the_edges_of_a_grid(rates, chosen, edge):
    found = {"chosen": float(chosen), "development": {str(float(rate)): 0.5 for rate in rates}}
    inside = {"chosen": 2.0, "development": dict.fromkeys(("1", "2", "4"), 0.5)}
    body = {
        "rates": {"tags": {"a": {"pretrained": found, "control": inside}}, "verbs": {"a": dict.fromkeys(STARTS, inside)}},
        "layer_mix": {"a": {"rates": dict.fromkeys(STARTS, inside)}},
        "drop_task": "verbs",
    }
    assert at_edge(body, "a", SCORE) == (["a (pretrained) on tags"] if edge else [])
    body["layer_mix"]["a"]["rates"] = {"pretrained": found, "control": inside}
    assert at_edge(body, "a", PROBE) == (["a (pretrained) on the mix of layers"] if edge else [])
    for measure in (CONTROL, COST, MASKED):  # the control's rate; the rate of another task; no rate
        assert at_edge(body, "a", measure) == []
    assert at_edge(body, None, SCORE) == []


@pytest.mark.parametrize("spread", [0.002, 0.05, 0.2])
def test_claims_are_decided_exactly_if_their_adjusted_interval_says_so(spread):
    """Scores around those of the paper, with noise; rates inside their grids."""
    rng, seen = np.random.default_rng(0), set()
    for seeds in (4, 10, 10):
        body = body_of(AS_PUBLISHED, similarity=SIMILARITY)
        for shape in body["scores"]["tags"].values():
            for scores in shape.values():
                scores["test_accuracy"] = (np.array(scores["test_accuracy"]) + rng.normal(0, spread, 10)).tolist()
        body = first_seeds(body, seeds)
        for row in assessed(body, DEFAULT_SHAPES):
            assert agrees(row), row
            assert row["n"] == seeds
            seen.add(row["verdict"])
    assert {"supported", "undecided"} <= seen


def first_seeds(found, seeds):
    """Return a body with the first seeds of every list over the ten seeds."""
    if isinstance(found, dict):
        return {name: first_seeds(value, seeds) for name, value in found.items()}
    return found[:seeds] if isinstance(found, list) and len(found) == 10 else found


def test_diverged_models_count_as_the_worst():
    """Seed 3 of the wide shape diverged: it gets the lowest score of all shapes, and its cost counts against the claim."""
    body = body_of(AS_PUBLISHED, cost={name: 0.03 if name == "out-256" else 0.005 for name in DEFAULT_SHAPES})
    before = {claim.id: claim.differences for claim in claims(body, DEFAULT_SHAPES)}
    wide = body["scores"]["tags"]["out-256"]["pretrained"]["test_accuracy"]
    lowest = min(min(shape["pretrained"]["test_accuracy"]) for shape in body["scores"]["tags"].values())
    wide[3] = np.nan
    narrow = body["scores"]["tags"]["out-16"]["pretrained"]["test_accuracy"]
    after = {claim.id: claim.differences for claim in claims(body, DEFAULT_SHAPES)}
    assert after["output-width/score"][3] == lowest - narrow[3]
    rest = np.arange(10) != 3
    assert after["dropping/output-width"][3] == before["dropping/output-width"][rest].min()
    for name in before:
        np.testing.assert_array_equal(after[name][rest], before[name][rest])
