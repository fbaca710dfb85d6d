"""Lines of output that a page shows, compared with what its code prints."""

import re

import numpy as np

NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def words(text: str) -> str:
    """Return a text with a sign in place of every number."""
    return NUMBER.sub("#", text)


def check_shown(page: list[str], printed: list[str]) -> None:
    """Training on another machine may change numbers by some percent."""
    shown, output = "\n".join(page), "\n".join(printed)
    assert words(shown) == words(output)
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (shown, output)]
    np.testing.assert_allclose(*numbers, rtol=0.05, atol=0.005)
