"""Alias tables (Walker, 1977; Vose, 1991): any distribution over few outcomes, sampled from one 32-bit word by two look-ups.

The high bits of the word choose a cell. Its low bits choose between the two outcomes of the cell: the cell's number, or its
alias. Probabilities are whole multiples of 2^-32.
"""

import numpy as np
from jaxtyping import Float, Int, UInt32

WORD_BITS = 32


def alias_table(
    probability: Float[np.ndarray, "outcomes"], cells: int
) -> tuple[UInt32[np.ndarray, "cells"], Int[np.ndarray, "cells"]]:
    """Return the threshold and the alias of each cell k: low bits below the threshold mean outcome k, the others the alias.

    cells: a power of two, at least the number of outcomes. Raises ValueError if it is not.
    """
    if cells & (cells - 1) or cells < len(probability):
        raise ValueError(f"{cells} cells: a power of two is needed, and at least {len(probability)}")
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
    # `size` itself may not fit 32 bits; where the alias is the cell itself, a word less says the same.
    return np.minimum(threshold, size - 1).astype(np.uint32), np.where(threshold == size, np.arange(cells), alias)


def _words(probability: np.ndarray, cells: int) -> np.ndarray:
    """Return how many of the 2^32 words mean each outcome: rounded down, the words left over to the largest remainders."""
    exact = np.zeros(cells)
    exact[: len(probability)] = probability / probability.sum() * 2.0**WORD_BITS
    words = np.floor(exact).astype(np.int64)
    left = 2**WORD_BITS - int(words.sum())
    words[np.argsort(words - exact, kind="stable")[:left]] += 1
    return words
