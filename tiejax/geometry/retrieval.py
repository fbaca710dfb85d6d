"""Sentence retrieval: the share of sentences whose nearest vector is that of their translation."""

import math
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int

Fitted = Literal["all", "held_out"]


def nearest(queries: Float[np.ndarray, "n width"], candidates: Float[np.ndarray, "m width"]) -> Int[np.ndarray, " n"]:
    """Return the index of the nearest candidate (in L2) of each query."""
    squared = np.sum(candidates**2, axis=1) - 2 * queries @ candidates.T  # plus |query|^2, which is the same for all candidates
    return np.argmin(squared, axis=1)


def translation_accuracy(
    source: Float[np.ndarray, "n width"], target: Float[np.ndarray, "n width"], fitted: Fitted = "all"
) -> float:
    r"""Return the share of sentences i for which target_i is the target nearest to source_i + d.

    d = mean_j (target_j - source_j). fitted: `all` takes the mean over all pairs, as published; `held_out` takes, for each half
    of the pairs (even and odd), the mean over the other half.
    NaN if a vector is not finite. Raises ValueError for another value of `fitted`, or if a half is empty.
    Source: Chung et al., ICLR 2021, section 5; Pires et al., ACL 2019.
    """
    if fitted not in get_args(Fitted) or len(source) < (2 if fitted == "held_out" else 1):
        raise ValueError(
            f"fitted: expected all, with a pair or more, or held_out, with two or more, got {fitted!r}, {len(source)}"
        )
    source, target = np.asarray(source, float), np.asarray(target, float)
    if not (np.isfinite(source).all() and np.isfinite(target).all()):
        return math.nan
    difference = target - source
    if fitted == "all":
        shift = difference.mean(axis=0)[None]
    else:
        halves = [difference[0::2].mean(axis=0), difference[1::2].mean(axis=0)]
        shift = np.stack([halves[1 - number % 2] for number in range(len(source))])
    return float(np.mean(nearest(source + shift, target) == np.arange(len(source))))
