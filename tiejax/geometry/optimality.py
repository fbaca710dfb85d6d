"""The output side of a model against what the theory says of an optimal one.

An optimal model without output bias has h(rho) . (e1 - e2) = ln[p(s1 | rho) / p(s2 | rho)] in every context rho, e being rows
of the output table. So symbols that are equally likely everywhere have equal rows, if the states h(rho) span the space.
Source: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import entr

from tiejax.geometry.distances import Pair

# Where one symbol of a pair is impossible, no finite model has the true log ratio: it should say at least 99 to 1.
SURE = math.log(99)


class Residual(NamedTuple):
    """Distance of h . (e1 - e2) from the true log ratio over contexts; NaN if none asks for the pair."""

    rms: float
    mean: float
    largest: float


class Conditioning(NamedTuple):
    """How well the states span the space: see `conditioning`."""

    condition_number: float
    effective_rank: float


def optimality_residual(
    states: Float[np.ndarray, "contexts width"],
    table: Float[np.ndarray, "vocabulary width"],
    pair: Pair,
    log_ratio: float | Float[np.ndarray, "contexts"],
    weight: Float[np.ndarray, "contexts"] | None = None,
    sure: float = SURE,
) -> Residual:
    r"""Measure how far the output side is from optimal: |h . (e1 - e2) - ln[p(s1 | rho) / p(s2 | rho)]| over contexts.

    An optimal model without output bias has 0 everywhere. log_ratio: the true one; NaN where a context asks for neither symbol.
    Where it is infinite (one symbol is impossible), no finite model reaches it, and the residual is what the model's ratio
    lacks of `sure`: max(0, sure - sign h . (e1 - e2)), sign that of the true ratio. weight: of contexts (default: equal).

    The residual of a pair that spells one thing says nothing of a task's solution: relative frequencies do without context.
    That of a pair that context tells apart does.
    """
    check_pair(pair, len(table))
    truth = np.broadcast_to(np.asarray(log_ratio, float), len(states))
    weight = np.where(np.isnan(truth), 0, normalised(weight, len(states)))
    if not weight.sum() > 0:
        return Residual(math.nan, math.nan, math.nan)
    asks = weight > 0
    truth, share = truth[asks], weight[asks] / weight.sum()
    said = np.asarray(states[asks], float) @ (np.asarray(table[pair[0]], float) - np.asarray(table[pair[1]], float))
    finite = np.isfinite(truth)
    difference = np.abs(said - np.where(finite, truth, 0))
    residual = np.where(finite, difference, np.maximum(0, sure - np.sign(truth) * said))
    return Residual(math.sqrt(share @ np.square(residual)), float(share @ residual), float(residual.max()))


def conditioning(
    states: Float[np.ndarray, "contexts width"], weight: Float[np.ndarray, "contexts"] | None = None
) -> Conditioning:
    r"""Return the condition number and the effective rank of the states {h}, the rows scaled by the root of their weight.

        sigma_max / sigma_min,    exp(-sum_k q_k ln q_k) with q_k = sigma_k / sum_j sigma_j

    sigma: singular values. Output embeddings of conditionally equivalent symbols must meet only if the states span the
    space; the condition number is infinite if they do not. Not centred: it is h itself that multiplies e1 - e2.
    Source of the effective rank: Roy and Vetterli, EUSIPCO 2007.
    """
    rows = np.asarray(states, float) * np.sqrt(normalised(weight, len(states)))[:, None]
    sigma = np.linalg.svd(rows, compute_uv=False)
    # What rounding leaves of a zero is not a direction.
    precision = np.finfo(states.dtype).eps * rows.shape[1]
    spans = len(sigma) == rows.shape[1] and sigma[-1] > precision * sigma[0]
    effective = math.exp(entr(sigma / sigma.sum()).sum()) if sigma.sum() > 0 else 0.0
    return Conditioning(float(sigma[0] / sigma[-1]) if spans else math.inf, effective)


def check_pair(pair: Pair, vocabulary: int | None = None) -> None:
    """Raise ValueError unless these are two different symbols (of a vocabulary)."""
    largest = math.inf if vocabulary is None else vocabulary - 1
    if pair[0] == pair[1] or not all(0 <= symbol <= largest for symbol in pair):
        raise ValueError(f"pair {pair}: needs two different symbols" + ("" if vocabulary is None else f" in 0..{largest}"))


def normalised(weight: np.ndarray | None, contexts: int) -> Float[np.ndarray, "contexts"]:
    """Return weights that sum to one, equal ones if none are given; raises ValueError if that cannot be."""
    if contexts == 0:
        raise ValueError("contexts: needs at least one, got none")
    values = np.ones(contexts) if weight is None else np.asarray(weight, float)
    if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
        raise ValueError("weight: must be finite, not negative, and not 0 in every context")
    return values / values.sum()
