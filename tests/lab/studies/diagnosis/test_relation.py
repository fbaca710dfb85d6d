"""How two tables relate: scores on sampled tokens near those of all, and progress that ends at its total."""

import itertools

import numpy as np
import pytest
from two_tables import NAMES, make, pair, results_of

from tiejax.lab.studies.diagnosis import relation
from tiejax.lab.studies.diagnosis.checkpoint import open_tables
from tiejax.lab.studies.diagnosis.settings import Settings


def test_long_tables_are_scored_on_drawn_tokens(here, monkeypatch):
    folder = make(here / "c", dict(zip(NAMES, pair(900, 6), strict=True)))
    whole, of_all = results_of(folder)
    monkeypatch.setattr(relation, "SCORED", 300)
    drawn, arrays = results_of(folder, seed=3)
    assert (whole["alignment"]["scored"], drawn["alignment"]["scored"]) == (900, 300)
    assert len(np.unique(arrays["scored"])) == 300
    np.testing.assert_allclose(arrays["cosine_from_input"], of_all["cosine_from_input"][arrays["scored"]], atol=1e-5)
    expected = of_all["cosine_from_input"].mean()
    assert drawn["alignment"]["least_squares"]["from_input"] == pytest.approx(expected, abs=0.03)
    assert drawn["alignment"]["procrustes"] == pytest.approx(whole["alignment"]["procrustes"], abs=0.03)


def test_progress_counts_every_row_once(here):
    """Each phase ends at its total, so that the time left is right."""
    told = {}
    checkpoint = make(here / "c", dict(zip(NAMES, pair(), strict=True)))
    _, tables = open_tables(Settings(checkpoint=str(checkpoint)))
    relation.relate(
        tables, None, Settings(sample=20), lambda phase, done, total: told.setdefault(phase, []).append((done, total))
    )
    assert {phase: seen[-1] for phase, seen in told.items()} == {
        "products of the tables": (80, 80),
        "maps between the tables": (3, 3),
        "neighbours": (120, 120),
    }
    for seen in told.values():
        assert all(before < after for (before, _), (after, _) in itertools.pairwise(seen))
