"""Rounding of whole numbers."""


def next_multiple(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step
