"""Exact risk: expectations over every context of a finite task, with no sampling noise."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

PyTree = Any
Pair = tuple[int, int]


class Expectations(NamedTuple):
    """Probabilities over the contexts of a task.

    target: probability of each symbol in each context. weight: probability of each context in each split; NaN for empty splits.
    asking: for each pair of symbols, the probability of each context whose target is one of the pair.
    """

    target: Float[Array, "contexts vocabulary"]
    weight: Float[Array, "splits contexts"]
    asking: dict[str, Float[Array, "contexts"]]

    @classmethod
    def of(cls, target: np.ndarray, weight: np.ndarray, asking: Mapping[str, np.ndarray]) -> "Expectations":
        """Return the expectations with arrays in JAX's default float type."""
        return cls(jnp.asarray(target), jnp.asarray(weight), {name: jnp.asarray(share) for name, share in asking.items()})


@dataclasses.dataclass(frozen=True, eq=False)  # jax.jit hashes the called object, and arrays are not hashable
class ExactRisk:
    r"""(params, expectations) -> `cross_entropy` (nats) and `accuracy` per split, and the optimality of the output table.

    cross_entropy = -sum_c w_c sum_s p(s | c) ln q(s | c),    accuracy = sum_c w_c p(argmax_s q(s | c) | c).

    encode: (params, block of inputs) -> h [block, width]. output: params -> the output table and the bias of the logits, or
    None without a bias. outcomes: the symbols that logits are normalised over (default: all).
    inputs: the inputs of `encode`, a tree of arrays [contexts, ...]. pairs: name -> symbols (s1, s2), named as in `asking`.
    Contexts are evaluated `block` at a time (under vmap: `block` per member); only a few numbers per context are kept.
    """

    encode: Callable[[PyTree, Any], jax.Array]
    output: Callable[[PyTree], tuple[jax.Array, jax.Array | None]]
    inputs: Any
    pairs: Mapping[str, Pair]
    block: int
    outcomes: tuple[int, ...] | None = None

    def __call__(self, params: PyTree, expected: Expectations) -> dict[str, jax.Array]:
        table, bias = self.output(params)
        rows = self._measure_contexts(params, table, bias, expected.target)
        risks = {name: expected.weight @ rows[name] for name in ("cross_entropy", "accuracy")}
        for name in self.pairs:
            risks |= self._optimality(name, table, rows, expected)
        return risks

    def _measure_contexts(
        self,
        params: PyTree,
        table: Float[Array, "vocabulary width"],
        bias: Float[Array, "vocabulary"] | None,
        target: Float[Array, "contexts vocabulary"],
    ) -> dict[str, Float[Array, "contexts"]]:
        """Return cross-entropy, accuracy, |h| and the logit difference of each pair, for every context."""

        def measure_block(part: tuple[Any, jax.Array]) -> dict[str, jax.Array]:
            inputs, target = part
            states = self.encode(params, inputs)
            logits = states @ table.T if bias is None else states @ table.T + bias
            scores = logits
            if self.outcomes is not None:
                outcomes = np.array(self.outcomes)
                scores, target = logits[:, outcomes], target[:, outcomes]
            rows = {
                "cross_entropy": -jnp.sum(target * jax.nn.log_softmax(scores), axis=1),
                "accuracy": jnp.take_along_axis(target, jnp.argmax(scores, axis=1)[:, None], axis=1)[:, 0],
                "norm": jnp.linalg.norm(states, axis=1),
            }
            return rows | {name: logits[:, first] - logits[:, second] for name, (first, second) in self.pairs.items()}

        every = jax.tree.map(jnp.asarray, self.inputs), target
        number, block = len(target), min(self.block, len(target))
        if block == number:
            return measure_block(every)

        def blocks(leaf: jax.Array) -> jax.Array:
            padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], -number % block, axis=0)])
            return padded.reshape(-1, block, *leaf.shape[1:])

        mapped = jax.lax.map(measure_block, jax.tree.map(blocks, every))
        return {name: values.reshape(-1)[:number] for name, values in mapped.items()}

    def _optimality(
        self,
        name: str,
        table: Float[Array, "vocabulary width"],
        rows: Mapping[str, Float[Array, "contexts"]],
        expected: Expectations,
    ) -> dict[str, Float[Array, ""]]:
        r"""Compare the output embeddings of a pair (s1, s2) with their optimum, over the contexts whose target is in the pair.

        `gap_NAME`: the smallest |e1 - e2| |h|. `log_ratio_NAME`: the mean difference of the logits, h . (e1 - e2) plus that of
        the biases, which for an optimal model is ln[p(s1 | c) / p(s2 | c)]. `log_ratio_residual_NAME`: the root mean square
        difference between the two.
        """
        first, second = self.pairs[name]
        share = expected.asking[name]
        asks = share > 0
        best = jnp.where(asks, jnp.log(expected.target[:, first]) - jnp.log(expected.target[:, second]), 0)
        apart = jnp.linalg.norm(table[first] - table[second])
        return {
            f"gap_{name}": apart * jnp.min(jnp.where(asks, rows["norm"], jnp.inf)),
            f"log_ratio_{name}": share @ rows[name],
            f"log_ratio_residual_{name}": jnp.sqrt(share @ jnp.square(rows[name] - best)),
        }
