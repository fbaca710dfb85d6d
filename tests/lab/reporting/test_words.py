"""Formatting of numbers."""

import pytest
from claim_rows import CLAIM

from tiejax.lab.reporting import finding, words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.4, "4 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7 * 3600 + 125, "7 h 02 min"), (3599.7, "1 h 00 min")],
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.12345, "0.123"), (1234.5, "1,230"), (-42_517.0, "-42,500"), (999.6, "1,000"), (2.0, "2"), (1e-9, "1e-09")],
)
def test_numbers(value, text):
    assert words.number(value) == text


def test_counts_have_a_plural():
    assert [words.counted(number, "seed") for number in (0, 1, 1234)] == ["0 seeds", "1 seed", "1,234 seeds"]


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([3], "seed 3"),
        ([3, 4], "seeds 3, 4"),
        ([0, 1, 2], "seeds 0 to 2"),
        ([7, 3, 11], "seeds 7, 3, 11"),
        ([2, 1, 0], "seeds 2, 1, 0"),
    ],
)
def test_lists_of_seeds(seeds, text):
    assert words.seeds_words(seeds) == text


def test_shares_are_percentages():
    assert words.share(0.8437) == "84 %"
    assert words.share(0.8437, 2) == "84.37 %"
    assert words.count_true([True, False, False]) == "1 of 3 (33 %)"
    assert words.count_true([]) == "0 of 0"


def test_intervals_name_infinite_ends():
    ends = [None, [0.1, 0.5], [0.1, None], [None, 0.5]]
    assert list(map(words.interval_words, ends)) == ["-", "0.1 to 0.5", "above 0.1", "below 0.5"]
    assert words.interval_words((-0.1, 2.5e-13)) == "-0.1 to 0"
    assert words.interval_words((1e-13, 2.5e-13)) == "1e-13 to 2.5e-13"


def test_claims_name_their_estimand_unit_and_margin():
    assert finding.about(CLAIM) == "the relative distance, zero - one"
    assert finding.about(CLAIM | {"unit": "nats"}) == "the relative distance, zero - one (nats)"
    assert finding.about(CLAIM | {"goal": "non-inferiority"}) == "the relative distance, zero - one (margin 0.05)"
