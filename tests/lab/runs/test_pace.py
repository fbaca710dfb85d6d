"""The pace of a run: no estimate before two chunks of every program agree within a third."""

import pytest

from tiejax.lab.runs.pace import Pace


def paced(*chunks):
    """Return the pace after each chunk (program, units, seconds)."""
    pace, found = Pace(), []
    for chunk in chunks:
        pace.add(*chunk)
        found.append(pace.seconds)
    return found


def test_two_chunks_in_a_row_must_agree_within_a_third():
    """Seconds per step: 1, .1, .07, .05 (the last two differ by more than a third), .06; from then on the mean."""
    chunks = [("a", 1, 1.0), ("a", 10, 1.0), ("a", 100, 7.0), ("a", 100, 5.0), ("a", 100, 6.0), ("a", 200, 4.0)]
    assert paced(*chunks) == [None, None, None, None, pytest.approx(11 / 200), pytest.approx(15 / 400)]


@pytest.mark.parametrize(("second", "known"), [(1.33, True), (1.34, False), (0.76, True), (0.74, False)])
def test_a_third(second, known):
    assert (paced(("a", 1, 1.0), ("a", 1, second))[1] is not None) == known


def test_every_program_must_have_agreed():
    """The first estimate of a run of two programs follows the second's chunks, and weighs all that are known."""
    chunks = [("a", 10, 1.0), ("b", 1, 9.0), ("a", 10, 1.0), ("b", 10, 3.0), ("b", 10, 3.0)]
    assert paced(*chunks) == [None, None, None, None, pytest.approx(8 / 40)]


def test_a_program_counts_from_its_compilation():
    pace = Pace()
    for _ in range(2):
        pace.add("a", 10, 1.0)
    pace.begin("b")
    assert pace.seconds is None
    pace.end("b")
    assert pace.seconds == pytest.approx(0.1)
    pace.begin("a")  # again
    assert pace.seconds == pytest.approx(0.1)


def test_a_program_that_ended_early_does_not_count():
    pace = Pace()
    pace.add("short", 5, 10.0)
    for _ in range(2):
        pace.add("long", 10, 1.0)
    assert pace.seconds is None
    pace.end("short")
    assert pace.seconds == pytest.approx(0.1)
    pace.end("long")
    assert pace.seconds == pytest.approx(0.1)


def test_chunks_without_work_say_nothing():
    assert paced(("a", 0, 1.0), ("a", 1, 0.0)) == [None, None]
