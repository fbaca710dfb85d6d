"""Escaping of invisible characters in text of unknown origin."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiejax.system.visible import LONGEST, cut, visible, visible_line, visible_lines


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
        # Joiners in Hindi and Persian words.
        ("क्\u200dष \u0645\u06cc\u200c\u062e", "क्\u200dष \u0645\u06cc\u200c\u062e"),
    ],
)
def test_invisible_characters_are_escaped(text, expected):
    assert visible(text) == expected


@given(st.text(max_size=30))
def test_no_invisible_characters_are_left_and_visible_ones_stay(text):
    found = visible(text)
    assert all(unicodedata.category(letter) not in {"Cc", "Cs", "Zl", "Zp"} for letter in found)
    assert found.encode().decode() == found
    assert visible_lines(text).split("\n") == [visible(line) for line in text.split("\n")]
    if text.isprintable():
        assert found == text


def test_long_lines_are_shortened_in_the_middle():
    line = visible_line("beginning " + "[" * 10**6 + " end")
    assert len(line) < LONGEST + 100
    assert line.startswith("beginning [[[")
    assert line.endswith("[[[ end")
    assert "(996,014 characters)" in line
    assert visible_line("a" * LONGEST) == "a" * LONGEST


def test_long_values_are_cut():
    assert cut("a" * 80) == "a" * 80
    assert cut("a" * 81) == "a" * 77 + "..."
    assert cut([1, 2]) == "[1, 2]"
