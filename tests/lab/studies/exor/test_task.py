"""The task of EXor: its strings, the published split, and invalid distributions."""

import math
import random

import numpy as np
import pytest

from tiejax.lab.studies.exor.task import SPLITS, EXor, split, strings


def test_strings_exclude_all_ones():
    rows = strings(7)
    assert ["".join(map(str, row)) for row in rows.tolist()] == [format(n, "07b") for n in range(127)]


def test_published_split():
    numbers = list(range(127))
    random.Random(14).shuffle(numbers)
    parts = split(7)
    assert [len(parts[name]) for name in SPLITS] == [114, 12, 1]
    together = np.concatenate([parts[name] for name in SPLITS])
    assert [int("".join(map(str, row)), 2) for row in together.tolist()] == numbers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bits": 1}, "bits: must lie between 2 and 16, got 1"),
        ({"bits": 17}, "bits: must lie between 2 and 16, got 17"),
        ({"zero": (0.5, 0.6)}, "zero: must sum to 1"),
        ({"one": (-0.1, 1.1)}, "one: probabilities must be finite and not negative"),
        ({"one": (math.nan, 1.0)}, "one: probabilities must be finite"),
        ({"zero": ()}, "zero: needs at least one probability"),
    ],
)
def test_invalid_tasks(fields, words):
    with pytest.raises(ValueError, match=words):
        EXor(**fields)
