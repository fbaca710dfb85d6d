"""Buckets of token frequency."""

import numpy as np

from tiejax.text.buckets import buckets
from tiejax.text.twins import Twins


def test_buckets_by_frequency_rank():
    count = np.arange(2_000)[::-1].copy()
    count[[0, 1999]] = 0, 5_000
    twins = Twins(2_000, ("a", "b"), (3, 4), (0.5, 0.5))
    names, of = buckets(count, twins)
    assert names == ["1-100", "101-1,000", "1,001-2,000", "twins"]
    order = sorted(range(2_000), key=lambda token: -count[token])
    assert [of[token] for token in order] == [0] * 100 + [1] * 900 + [2] * 1000
    assert of[2_000:].tolist() == [3, 3]
    assert of[1999] == 0
