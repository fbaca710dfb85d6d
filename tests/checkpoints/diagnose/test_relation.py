"""Similarity of two tables: scores on sampled tokens approximate those on all, and progress ends at its total."""

import itertools

import numpy as np
import pytest
from two_tables import NAMES, make, pair, results_of

from tiejax.checkpoints.diagnose import relation
from tiejax.checkpoints.diagnose.checkpoint import open_tables
from tiejax.checkpoints.diagnose.options import Options
from tiejax.checkpoints.diagnose.relation import standing


def test_long_tables_are_scored_on_sampled_tokens(tmp_path, monkeypatch):
    folder = make(tmp_path / "c", dict(zip(NAMES, pair(900, 6), strict=True)))
    whole, on_all = results_of(folder)
    monkeypatch.setattr(relation, "SCORED", 300)
    drawn, arrays = results_of(folder, seed=3)
    assert (whole["alignment"]["scored"], drawn["alignment"]["scored"]) == (900, 300)
    assert len(np.unique(arrays["scored"])) == 300
    np.testing.assert_allclose(arrays["cosine_from_input"], on_all["cosine_from_input"][arrays["scored"]], atol=1e-5)
    expected = on_all["cosine_from_input"].mean()
    assert drawn["alignment"]["least_squares"]["from_input"] == pytest.approx(expected, abs=0.03)
    assert drawn["alignment"]["procrustes"] == pytest.approx(whole["alignment"]["procrustes"], abs=0.03)


def test_progress_counts_every_row_once(tmp_path):
    """Each phase ends at its total, so that the estimated time left is right."""
    calls = {}
    folder = make(tmp_path / "c", dict(zip(NAMES, pair(), strict=True)))
    _, tables = open_tables(folder, Options())
    relation.relate(
        tables, None, Options(sample=20), lambda phase, done, total: calls.setdefault(phase, []).append((done, total))
    )
    assert {phase: seen[-1] for phase, seen in calls.items()} == {
        "products of the tables": (80, 80),
        "maps between the tables": (3, 3),
        "neighbours": (120, 120),
    }
    for seen in calls.values():
        assert all(before < after for (before, _), (after, _) in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("least_squares", "overlap", "chance", "expected"),
    [
        (0.8, 0.8, 0.1, "near"),
        (0.719, 0.733, 0.1, "near"),
        (0.8, 0.6, 0.1, "between"),
        (0.6, 0.6, 0.1, "between"),
        (0.8, 0.1, 0.1, "between"),
        (0.3, 0.1, 0.1, "apart"),
        (0.9, 0.1, 0.6, "apart"),  # least squares would map any two tables
        (0.9, 0.8, 0.6, "near"),
        (None, 0.8, 0.1, "near"),
    ],
)
def test_standing(least_squares, overlap, chance, expected):
    assert standing(least_squares, overlap, chance, 0.01) == expected


@pytest.mark.parametrize(("overlap", "expected"), [(0.8, "unclear"), (0.1, "unclear")])
def test_no_standing_if_unrelated_tables_would_pass(overlap, expected):
    assert standing(0.9, overlap, 0.6, 0.5) == expected
    assert standing(0.8, overlap, 0.1, 0.5) == "near"  # by least squares alone
