"""Distance of a model's output side from an optimal one.

An optimal model without output bias has h(rho) . (e1 - e2) = ln[p(s1 | rho) / p(s2 | rho)] in every context rho, where e1 and
e2 are the rows of s1 and s2 in the output table. Symbols that are equally likely in every context therefore have equal rows, if
the states h(rho) span the space. A context asks for the symbols that can occur at its predicted position.

Source: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import entr

from tiejax.geometry.distances import Pair

# If one symbol of a pair is impossible, no finite model has the true log ratio; odds of 99 to 1 are accepted as optimal.
SURE = math.log(99)


class Residual(NamedTuple):
    """Distance of h . (e1 - e2) from the true log ratio, over contexts; NaN if no context asks for the pair."""

    rms: float
    mean: float
    largest: float


class Conditioning(NamedTuple):
    """How well the states span the space; see `conditioning`."""

    condition_number: float
    effective_rank: float


def optimality_residual(
    states: Float[np.ndarray, "contexts width"],
    table: Float[np.ndarray, "vocabulary width"],
    pair: Pair,
    log_ratio: float | Float[np.ndarray, " contexts"],
    weight: Float[np.ndarray, " contexts"] | None = None,
) -> Residual:
    r"""Return how far the output side is from optimal: |h . (e1 - e2) - ln[p(s1 | rho) / p(s2 | rho)]| over contexts.

    It is 0 for an optimal model without output bias. log_ratio: the true log ratio; NaN where a context asks for neither
    symbol. Where it is infinite (one symbol is impossible), no finite model reaches it, and the residual is the shortfall from
    `SURE`: max(0, SURE - sign h . (e1 - e2)), with the sign of the true ratio. weight: weights of the contexts (default:
    equal).

    For two spellings of the same thing, the residual does not show whether the task is solved, because relative frequencies do
    not depend on the context. For a pair that only context distinguishes, it does.
    """
    check_pair(pair, len(table))
    truth = np.broadcast_to(np.asarray(log_ratio, float), len(states))
    weight = np.where(np.isnan(truth), 0, normalised(weight, len(states)))
    if not weight.sum() > 0:
        return Residual(math.nan, math.nan, math.nan)
    used = weight > 0
    truth, share = truth[used], weight[used] / weight.sum()
    logit_gap = np.asarray(states[used], float) @ (np.asarray(table[pair[0]], float) - np.asarray(table[pair[1]], float))
    finite = np.isfinite(truth)
    difference = np.abs(logit_gap - np.where(finite, truth, 0))
    residual = np.where(finite, difference, np.maximum(0, SURE - np.sign(truth) * logit_gap))
    return Residual(math.sqrt(share @ np.square(residual)), float(share @ residual), float(residual.max()))


def conditioning(
    states: Float[np.ndarray, "contexts width"], weight: Float[np.ndarray, " contexts"] | None = None
) -> Conditioning:
    r"""Return the condition number and the effective rank of the states {h}, rows scaled by the square root of their weight.

        sigma_max / sigma_min,    exp(-sum_k q_k ln q_k) with q_k = sigma_k / sum_j sigma_j

    where sigma are the singular values. Output embeddings of conditionally equivalent symbols must be equal only if the states
    span the space; if they do not, the condition number is infinite. The states are not centred, since h itself multiplies
    e1 - e2. Source of the effective rank: Roy and Vetterli, EUSIPCO 2007.
    """
    rows = np.asarray(states, float) * np.sqrt(normalised(weight, len(states)))[:, None]
    sigma = np.linalg.svd(rows, compute_uv=False)
    # A singular value at the level of rounding errors counts as 0.
    precision = np.finfo(states.dtype).eps * rows.shape[1]
    spans = len(sigma) == rows.shape[1] and sigma[-1] > precision * sigma[0]
    effective = math.exp(entr(sigma / sigma.sum()).sum()) if sigma.sum() > 0 else 0.0
    return Conditioning(float(sigma[0] / sigma[-1]) if spans else math.inf, effective)


def check_pair(pair: Pair, vocabulary: int | None = None) -> None:
    """Raise ValueError unless the pair has two different symbols of the vocabulary."""
    largest = math.inf if vocabulary is None else vocabulary - 1
    if pair[0] == pair[1] or not all(0 <= symbol <= largest for symbol in pair):
        raise ValueError(f"pair {pair}: expected two different symbols" + ("" if vocabulary is None else f" in 0..{largest}"))


def normalised(weight: np.ndarray | None, contexts: int) -> Float[np.ndarray, " contexts"]:
    """Return weights that sum to one; equal weights if None is given; raises ValueError if they cannot be normalised."""
    if contexts == 0:
        raise ValueError("contexts: expected at least one, got none")
    values = np.ones(contexts) if weight is None else np.asarray(weight, float)
    if not (np.isfinite(values).all() and (values >= 0).all() and values.sum() > 0):
        raise ValueError("weight: expected finite weights >= 0, at least one of them above 0")
    return values / values.sum()
