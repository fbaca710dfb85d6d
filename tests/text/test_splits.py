"""Cuts of texts into three streams."""

import pytest

from tiejax.text import splits


@pytest.mark.parametrize(
    ("texts", "ends", "expected"),
    [
        (["abcdefgh", "ij"], [8, 9, 10], [("train", "abcdefgh", True), ("validation", "ij", True)]),
        (["ab cd ef gh"], [3, 6, 11], [("train", "ab cd", True), ("validation", " ef", False), ("test", " gh", False)]),
        (["a b"], [1, 1, 3], [("train", "a", True), ("test", " b", False)]),
        (["ab", "c d"], [2, 3, 5], [("train", "ab", True), ("validation", "c", True), ("test", " d", False)]),
    ],
)
def test_cuts_of_texts(texts, ends, expected):
    assert list(splits.cut(texts, ends)) == expected
