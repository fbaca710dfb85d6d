"""Exact risk: expectations over every context of a finite task, with no sampling noise."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

PyTree = Any
Pair = tuple[int, int]


def exact_risk(
    encode: Callable[[PyTree, jax.Array, jax.Array], jax.Array],
    output_table: Callable[[PyTree], jax.Array],
    tokens: Int[np.ndarray, "contexts length"],
    position: Int[np.ndarray, "contexts"],
    target: Float[np.ndarray, "contexts vocabulary"],
    weight: Float[np.ndarray, "splits contexts"],
    pairs: Mapping[str, tuple[Pair, Float[np.ndarray, "contexts"]]],
    block: int = 256,
) -> Callable[[PyTree], dict[str, jax.Array]]:
    r"""Return params -> expected `cross_entropy` (nats) and `accuracy` per split, and the optimality of the output side.

    cross_entropy = -sum_c w_c sum_s p(s | c) ln q(s | c),    accuracy = sum_c w_c p(argmax_s q(s | c) | c).

    encode: (params, tokens [batch, length], position [batch]) -> h [batch, width]; logits are output_table(params) . h.
    weight: probability of each context in each split; rows of NaN, for empty splits, give NaN.
    pairs: name -> (symbols (s1, s2), probability of each context that asks for them). Of each are given, over these contexts,
    `gap_NAME`, the smallest |e1 - e2| |h|; `log_ratio_NAME`, the mean of h . (e1 - e2), which for an optimal model is
    ln[p(s1 | c) / p(s2 | c)]; and `log_ratio_residual_NAME`, the root mean square of the difference.
    Contexts are evaluated `block` at a time, so that memory does not grow with their number (under vmap: `block` a member).
    """
    log_ratio = {
        name: np.log(target[:, first], where=share > 0, out=np.zeros(len(share)))
        - np.log(target[:, second], where=share > 0, out=np.zeros(len(share)))
        for name, ((first, second), share) in pairs.items()
    }

    def measure(params: PyTree) -> dict[str, jax.Array]:
        table = output_table(params)

        def one(context: tuple[jax.Array, jax.Array, jax.Array]) -> dict[str, jax.Array]:
            its_tokens, its_position, its_target = context
            h = encode(params, its_tokens[None], its_position[None])[0]
            logits = table @ h
            rows = {
                "cross_entropy": -jnp.sum(its_target * jax.nn.log_softmax(logits)),
                "accuracy": its_target[jnp.argmax(logits)],
                "norm": jnp.linalg.norm(h),
            }
            return rows | {name: logits[first] - logits[second] for name, ((first, second), _) in pairs.items()}

        inputs = jnp.asarray(tokens), jnp.asarray(position), jnp.asarray(target, table.dtype)
        rows = jax.lax.map(one, inputs, batch_size=min(block, len(tokens)))
        weights = jnp.asarray(weight, table.dtype)
        found = {name: weights @ rows[name] for name in ("cross_entropy", "accuracy")}
        for name, ((first, second), share) in pairs.items():
            probability = jnp.asarray(share, table.dtype)
            residual = rows[name] - jnp.asarray(log_ratio[name], table.dtype)
            found[f"gap_{name}"] = jnp.linalg.norm(table[first] - table[second]) * jnp.min(rows["norm"][share > 0])
            found[f"log_ratio_{name}"] = probability @ rows[name]
            found[f"log_ratio_residual_{name}"] = jnp.sqrt(probability @ jnp.square(residual))
        return found

    return measure
