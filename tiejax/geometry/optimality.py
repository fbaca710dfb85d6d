"""Distance of a model's output side from an optimal one.

An optimal model without output bias has h(rho) . (e1 - e2) = ln[p(s1 | rho) / p(s2 | rho)] in every context rho, where e1 and
e2 are the rows of s1 and s2 in the output table. Symbols that are equally likely in every context therefore have equal rows, if
the states h(rho) span the space. A context asks for the symbols that can occur at its predicted position.

Source: Bertolotti and Cazzola, ICML 2024 (PMLR 235:3584-3610).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tiejax.geometry.distances import Pair

# If one symbol of a pair is impossible, no finite model has the true log ratio; odds of 99 to 1 are accepted as optimal.
SURE = math.log(99)


def optimality_residual(
    states: Float[np.ndarray, "contexts width"],
    table: Float[np.ndarray, "vocabulary width"],
    pair: Pair,
    log_ratio: float | Float[np.ndarray, " contexts"],
    weight: Float[np.ndarray, " contexts"],
) -> float:
    r"""Return how far the output side is from optimal: the root mean square of h . (e1 - e2) - ln[p(s1 | rho) / p(s2 | rho)].

    It is 0 for an optimal model without output bias. log_ratio: the true log ratio; NaN where a context asks for neither
    symbol. Where it is infinite (one symbol is impossible), no finite model reaches it, and the difference is the shortfall
    from `SURE`: max(0, SURE - sign h . (e1 - e2)), with the sign of the true ratio. weight: of each context. NaN if no context
    with weight asks for the pair.

    For two spellings of the same thing, the residual does not show whether the task is solved, because relative frequencies do
    not depend on the context. For a pair that only context distinguishes, it does.
    """
    truth = np.broadcast_to(np.asarray(log_ratio, float), len(states))
    weight = np.where(np.isnan(truth), 0, weight)
    if not weight.sum() > 0:
        return math.nan
    used = weight > 0
    truth, share = truth[used], weight[used] / weight.sum()
    logit_gap = np.asarray(states[used], float) @ (np.asarray(table[pair[0]], float) - np.asarray(table[pair[1]], float))
    finite = np.isfinite(truth)
    difference = np.abs(logit_gap - np.where(finite, truth, 0))
    residual = np.where(finite, difference, np.maximum(0, SURE - np.sign(truth) * logit_gap))
    return math.sqrt(share @ np.square(residual))


def condition_number(states: Float[np.ndarray, "contexts width"], weight: Float[np.ndarray, " contexts"]) -> float:
    """Return sigma_max / sigma_min of the states {h}, rows scaled by the square root of their weight.

    Output embeddings of conditionally equivalent symbols must be equal only if the states span the space; if they do not, it is
    infinite. The states are not centred, since h itself multiplies e1 - e2.
    """
    rows = np.asarray(states, float) * np.sqrt(weight)[:, None]
    sigma = np.linalg.svd(rows, compute_uv=False)
    # A singular value at the level of rounding errors counts as 0.
    precision = float(jnp.finfo(jnp.promote_types(states.dtype, jnp.bfloat16)).eps) * rows.shape[1]
    spans = len(sigma) == rows.shape[1] and sigma[-1] > precision * sigma[0]
    return float(sigma[0] / sigma[-1]) if spans else math.inf
