"""The error that ties raise; does not import jax."""

from typing import Any


def short(value: Any) -> str:
    """Return a value as it is shown in an error: on one line, cut at 80 characters."""
    return " ".join(repr(value).split())[:80]


class TieError(ValueError):
    """Invalid ties: a missing leaf, mismatched shapes or dtypes, two sources of one leaf, a cycle, or values that differ.

    The message names the tie, both paths and, where they matter, shapes and dtypes.
    """
