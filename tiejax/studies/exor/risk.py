"""Exact risk: expectations over every context of a finite task, with no sampling noise."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

PyTree = Any
Pair = tuple[int, int]


class Expectations(NamedTuple):
    """What is averaged over the contexts of a task.

    target: probability of each symbol in each context. weight: probability of each context in each split; rows of NaN, for
    empty splits, give NaN. asking: for each pair of symbols, the probability of each context that asks for it.
    """

    target: Float[Array, "contexts vocabulary"]
    weight: Float[Array, "splits contexts"]
    asking: dict[str, Float[Array, "contexts"]]

    @classmethod
    def of(cls, target: np.ndarray, weight: np.ndarray, asking: Mapping[str, np.ndarray]) -> "Expectations":
        """Return them as jax's default floats."""
        return cls(jnp.asarray(target), jnp.asarray(weight), {name: jnp.asarray(share) for name, share in asking.items()})


def exact_risk(
    encode: Callable[[PyTree, Any], jax.Array],
    output_table: Callable[[PyTree], jax.Array],
    inputs: Any,
    pairs: Mapping[str, Pair],
    block: int,
) -> Callable[[PyTree, Expectations], dict[str, jax.Array]]:
    r"""Return (params, expectations) -> `cross_entropy` (nats) and `accuracy` per split, and the optimality of the output side.

    cross_entropy = -sum_c w_c sum_s p(s | c) ln q(s | c),    accuracy = sum_c w_c p(argmax_s q(s | c) | c).

    encode: (params, block of inputs) -> h [block, width]; logits are output_table(params) . h.
    inputs: what is encoded, a tree of arrays [contexts, ...]. pairs: name -> symbols (s1, s2), named as in `asking`. Of each
    are given, over the contexts that ask for it, `gap_NAME`, the smallest |e1 - e2| |h|; `log_ratio_NAME`, the mean of
    h . (e1 - e2), which for an optimal model is ln[p(s1 | c) / p(s2 | c)]; and `log_ratio_residual_NAME`, the root mean
    square of the difference. Contexts are evaluated `block` at a time (under vmap: `block` a member); of each, no more than
    the few numbers above is kept.
    """
    number = len(jax.tree.leaves(inputs)[0])
    block = min(block, number)

    def blocks(leaf: jax.Array) -> jax.Array:
        padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], -number % block, axis=0)])
        return padded.reshape(-1, block, *leaf.shape[1:])

    def measure(params: PyTree, expected: Expectations) -> dict[str, jax.Array]:
        table = output_table(params)

        def of_block(part: tuple[Any, jax.Array]) -> dict[str, jax.Array]:
            its_inputs, target = part
            states = encode(params, its_inputs)
            logits = states @ table.T
            rows = {
                "cross_entropy": -jnp.sum(target * jax.nn.log_softmax(logits), axis=1),
                "accuracy": jnp.take_along_axis(target, jnp.argmax(logits, axis=1)[:, None], axis=1)[:, 0],
                "norm": jnp.linalg.norm(states, axis=1),
            }
            return rows | {name: logits[:, first] - logits[:, second] for name, (first, second) in pairs.items()}

        every = jax.tree.map(jnp.asarray, inputs), expected.target
        if block == number:
            rows = of_block(every)
        else:
            mapped = jax.lax.map(of_block, jax.tree.map(blocks, every))
            rows = {name: values.reshape(-1)[:number] for name, values in mapped.items()}
        found = {name: expected.weight @ rows[name] for name in ("cross_entropy", "accuracy")}
        for name, (first, second) in pairs.items():
            share = expected.asking[name]
            asks = share > 0
            best = jnp.where(asks, jnp.log(expected.target[:, first]) - jnp.log(expected.target[:, second]), 0)
            apart = jnp.linalg.norm(table[first] - table[second])
            found[f"gap_{name}"] = apart * jnp.min(jnp.where(asks, rows["norm"], jnp.inf))
            found[f"log_ratio_{name}"] = share @ rows[name]
            found[f"log_ratio_residual_{name}"] = jnp.sqrt(share @ jnp.square(rows[name] - best))
        return found

    return measure
