"""Sentence retrieval: whether the vector of a sentence is nearest to that of its translation."""

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

Fitted = Literal["all", "held_out"]


def nearest(queries: Float[np.ndarray, "n width"], candidates: Float[np.ndarray, "m width"]) -> Int[np.ndarray, "n"]:
    """Return the number of the nearest candidate (L2) of each query."""
    squared = np.sum(candidates**2, axis=1) - 2 * queries @ candidates.T  # and |query|^2, the same for all candidates
    return np.argmin(squared, axis=1)


def translation_accuracy(
    source: Float[np.ndarray, "n width"], target: Float[np.ndarray, "n width"], fitted: Fitted = "all"
) -> float:
    r"""Return the share of sentences i whose nearest neighbour among the targets of source_i + d is target_i.

    d = mean_j (target_j - source_j), over all pairs as published, or (`held_out`) for each half of the pairs, the even and the
    odd ones, over the other half. Source: Chung et al., ICLR 2021, section 5; Pires et al., ACL 2019.
    """
    source, target = np.asarray(source, float), np.asarray(target, float)
    difference = target - source
    if fitted == "all":
        shift = difference.mean(axis=0)[None]
    else:
        halves = [difference[0::2].mean(axis=0), difference[1::2].mean(axis=0)]
        shift = np.stack([halves[1 - number % 2] for number in range(len(source))])
    return float(np.mean(nearest(source + shift, target) == np.arange(len(source))))
