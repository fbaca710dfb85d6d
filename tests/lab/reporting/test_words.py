"""Formatting of numbers."""

import pytest

from tiejax.lab.reporting import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.4, "4 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7 * 3600 + 125, "7 h 02 min"), (3599.7, "1 h 00 min")],
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.12345, "0.123"), (1234.5, "1.23e+03"), (2.0, "2")])
def test_numbers(value, text):
    assert words.number(value) == text


def test_counts_have_a_plural():
    assert [words.counted(number, "seed") for number in (0, 1, 1234)] == ["0 seeds", "1 seed", "1,234 seeds"]


def test_shares_are_percentages():
    assert words.share(0.8437) == "84 %"
    assert words.share(0.8437, 2) == "84.37 %"
    assert words.count_true([True, False, False]) == "1 of 3 (33 %)"
    assert words.count_true([]) == "0 of 0"
