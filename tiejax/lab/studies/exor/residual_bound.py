r"""A bound on the output distance of a pair in any model, optimal or not: |e1 - e2| <= rms / sigma.

Let H hold the state h_c of every context c in which the pair's bit is masked, and w_c its probability. Then

    rms^2 = sum_c w_c [h_c . (e1 - e2)]^2 = |diag(sqrt(w)) H (e1 - e2)|^2 >= sigma^2 |e1 - e2|^2,

where sigma is the smallest singular value of diag(sqrt(w)) H. A pair whose logits hardly differ therefore has output embeddings
that are close, provided that the states span the space well. It follows from algebra: it is checked, not tested over seeds.
The bound can be loose: after a LayerNorm of gain 1 and bias 0 the entries of a state sum to 0, sigma is 0 and there is no
bound, and gains that differ little leave sigma small.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tiejax.lab.studies.exor.contexts import all_contexts, asking_pairs, count_contexts
from tiejax.lab.studies.exor.engines import Engine
from tiejax.statistics.arms import ARMS

MOST_CONTEXTS = 10_000  # all states of a member are held at once
ROUNDING = 1e-9  # relative


def bound(
    states: Float[np.ndarray, "... contexts width"],
    share: Float[np.ndarray, " contexts"],
    difference: Float[np.ndarray, "... width"],
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Return |e1 - e2| and rms / sigma, in float64; the bound is infinite if sigma is 0.

    states: h_c of each context. share: its probability w_c given that the pair's bit is masked. difference: e1 - e2.
    """
    scaled = np.sqrt(share)[:, None] * np.asarray(states, float)
    difference = np.asarray(difference, float)
    rms = np.asarray(np.linalg.norm(np.einsum("...cw,...w->...c", scaled, difference), axis=-1))
    # With fewer contexts than dimensions some directions are not seen at all.
    smallest = np.linalg.svd(scaled, compute_uv=False)[..., -1] if scaled.shape[-2] >= scaled.shape[-1] else np.zeros(rms.shape)
    limit = np.divide(rms, smallest, out=np.full(rms.shape, np.inf), where=smallest > 0)
    return np.asarray(np.linalg.norm(difference, axis=-1)), limit


def check(params: Any, engine: Engine, ordered: bool) -> list[dict[str, Any]] | None:
    """Return the entry `residual_bound` of results.json, or None if there are more than 10,000 contexts.

    It has a row per pair and arm: `members`, the number of finite ones, `holds`, in how many of them the bound holds, and by
    seed `distance` and `bound`, NaN for members that diverged. params: final parameters, leaves `[seed, arm, ...]`.
    """
    task = engine.tasks[0]
    if count_contexts(task, ordered) > MOST_CONTEXTS:
        return None
    contexts = all_contexts(task, ordered)
    inputs = jax.tree.map(jnp.asarray, engine.inputs(contexts))
    of_arms = jax.vmap(lambda member: engine.encode(member, inputs))
    encode = jax.jit(lambda params: jax.lax.map(of_arms, params))
    states = np.asarray(encode(params))
    table = np.asarray(params["head"]["embedding"])
    rows = []
    for pair, ((first, second), share) in asking_pairs(task, contexts).items():
        asked = share > 0
        for arm, name in enumerate(ARMS):
            difference, of_arm = table[:, arm, first] - table[:, arm, second], states[:, arm][:, asked]
            finite = np.isfinite(of_arm).all((1, 2)) & np.isfinite(difference).all(1)
            distance, limit = (np.full(len(finite), np.nan) for _ in range(2))
            distance[finite], limit[finite] = bound(of_arm[finite], share[asked], difference[finite])
            holds = distance[finite] <= limit[finite] * (1 + ROUNDING)
            rows.append(
                {"pair": pair, "arm": name, "members": int(finite.sum()), "holds": int(holds.sum())}
                | {"distance": distance.tolist(), "bound": limit.tolist()}
            )
    return rows
