"""Alias tables (Walker, 1977; Vose, 1991): samples from a discrete distribution by two look-ups per 32-bit word.

The high bits of the word choose a cell. The low bits choose between the two outcomes of the cell: its index or its alias.
Probabilities are multiples of 2^-32.
"""

import numpy as np
from jaxtyping import Float, Int, UInt32

WORD_BITS = 32


def alias_table(
    probability: Float[np.ndarray, "outcomes"], cells: int
) -> tuple[UInt32[np.ndarray, "cells"], Int[np.ndarray, "cells"]]:
    """Return the threshold and the alias of each cell k: low bits below the threshold select outcome k, others the alias.

    cells: a power of two, at least the number of outcomes; otherwise raises ValueError.
    """
    if cells & (cells - 1) or cells < len(probability):
        raise ValueError(f"cells: expected a power of two >= {len(probability)}, got {cells}")
    words = _words(probability, cells)
    size = 2**WORD_BITS // cells
    threshold, alias = np.full(cells, size), np.arange(cells)
    small = [k for k in range(cells) if words[k] < size]
    large = [k for k in range(cells) if words[k] > size]
    while small:
        poor, rich = small.pop(), large[-1]
        threshold[poor], alias[poor] = words[poor], rich
        words[rich] -= size - words[poor]
        if words[rich] <= size:
            large.pop()
        if words[rich] < size:
            small.append(rich)
    # `size` itself may not fit in 32 bits; where the alias is the cell itself, `size - 1` is equivalent.
    return np.minimum(threshold, size - 1).astype(np.uint32), np.where(threshold == size, np.arange(cells), alias)


def _words(probability: np.ndarray, cells: int) -> np.ndarray:
    """Return the number of 32-bit words for each outcome: rounded down, the remaining words given to the largest remainders."""
    exact = np.zeros(cells)
    exact[: len(probability)] = probability / probability.sum() * 2.0**WORD_BITS
    words = np.floor(exact).astype(np.int64)
    left = 2**WORD_BITS - int(words.sum())
    words[np.argsort(words - exact, kind="stable")[:left]] += 1
    return words
