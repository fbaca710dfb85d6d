"""Text of unknown origin where it is shown."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiejax.system.visible import LONGEST, shown, visible, visible_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("novels/emma.txt", "novels/emma.txt"),
        ("café ☃ \U0001f600 नमस्ते", "café ☃ \U0001f600 नमस्ते"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\nb\tc\rd\0", r"a\nb\tc\rd\x00"),
        ("\x7f\x80\x9b31m", r"\x7f\x80\x9b31m"),
        ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
        ("\u2028\u2029\u200e\ufeff", r"\u2028\u2029\u200e\ufeff"),
        ("\udcff", r"\udcff"),
        # Joined letters of Hindi and of Persian.
        ("क्\u200dष \u0645\u06cc\u200c\u062e", "क्\u200dष \u0645\u06cc\u200c\u062e"),
    ],
)
def test_what_is_not_seen_is_escaped(text, expected):
    assert visible(text) == expected


@given(st.text(max_size=30))
def test_nothing_that_acts_is_left_and_every_letter_that_is_seen_stays(text):
    found = visible(text)
    assert all(unicodedata.category(letter) not in {"Cc", "Cs", "Zl", "Zp"} for letter in found)
    assert found.encode().decode() == found
    assert visible_lines(text).split("\n") == [visible(line) for line in text.split("\n")]
    if text.isprintable():
        assert found == text


def test_a_line_of_megabytes_is_shown_by_its_ends():
    line = shown("beginning " + "[" * 10**6 + " end")
    assert len(line) < LONGEST + 100
    assert line.startswith("beginning [[[")
    assert line.endswith("[[[ end")
    assert "(996,014 characters)" in line
    assert shown("a" * LONGEST) == "a" * LONGEST
