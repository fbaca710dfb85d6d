"""Recorders of an EXor member: distances, sampled losses and gradients by use; at longer intervals, exact risk, which is an
expectation over every context of the task, with no sampling noise.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tiejax import training
from tiejax.geometry.distances import pairwise_distances
from tiejax.geometry.uses import use_gradients
from tiejax.lab.studies.exor import batches
from tiejax.lab.studies.exor.contexts import all_contexts, asking_pairs
from tiejax.lab.studies.exor.engines import Engine
from tiejax.lab.studies.exor.multisets import Sampler
from tiejax.training import SeedKey

PyTree = Any
Pair = tuple[int, int]


def select_condition(by_condition: Sequence[PyTree], seed_key: SeedKey) -> PyTree:
    """Return the entry of the seed's condition; a single entry is not indexed, which would copy it for every seed."""
    if len(by_condition) == 1:
        return by_condition[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[seed_key.condition], *by_condition)


@dataclasses.dataclass(frozen=True, eq=False)  # jax.jit hashes the called object, and arrays are not hashable
class Measures:
    """(params, batch, seed_key, step) -> the cheap measures of a member.

    `distance_TABLE`: distances of all pairs of symbols. `train_*`, `validation_redrawn_*` (training strings, resampled) and
    `validation_frozen_*` (`held_out` strings, sampled once): `loss` (nats) and `accuracy`. `finite`: whether all of these and
    the parameters are finite. `use_*`: the gradient of each use of a table, as in `use_gradients`, one bucket per symbol.
    """

    engine: Engine
    redraw: Sampler
    held_out: Int[np.ndarray, "strings bits"]

    def __call__(self, params: PyTree, batch: Any, seed_key: SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        sampled = self._validation(params, seed_key, step)
        dropout_key = jax.random.fold_in(training.stream(seed_key.key, "dropout"), step)
        sampled["train"] = self.engine.loss(params, batch, dropout_key)[1]
        measured = {
            "distance_input": pairwise_distances(params["embed"]["embedding"]),
            "distance_output": pairwise_distances(params["head"]["embedding"]),
            **{f"{name}_{metric}": value for name, metrics in sampled.items() for metric, value in metrics.items()},
        }
        finite = {"finite": training.all_finite((params, measured))}
        return measured | finite | self._uses(params, batch)

    def _validation(self, params: PyTree, seed_key: SeedKey, step: jax.Array) -> dict[str, dict[str, jax.Array]]:
        """Return loss and accuracy on resampled training strings, and on held-out strings if there are any."""
        tasks = self.engine.tasks
        data_key = training.stream(seed_key.key, "validation")
        visits = self.redraw.visits(data_key, seed_key.key, step, seed_key.condition)
        drawn: dict[str, Any] = {"redrawn": self.engine.batch(visits)}
        if len(self.held_out):
            frozen = select_condition([batches.frozen(task, self.held_out) for task in tasks], seed_key)
            drawn["frozen"] = self.engine.batch(frozen)
        return {f"validation_{name}": self.engine.loss(params, batch, None)[1] for name, batch in drawn.items()}

    def _uses(self, params: PyTree, batch: Any) -> dict[str, jax.Array]:
        """Return the gradients of both uses, unweighted: for tied tables they sum to the gradient of the table."""
        vocabulary = self.engine.tasks[0].vocabulary
        grads = jax.grad(lambda params: self.engine.loss(params, batch, None)[0])(params)
        symbols: Array = jnp.arange(vocabulary)
        uses = use_gradients(grads["embed"]["embedding"], grads["head"]["embedding"], symbols, vocabulary)
        return {f"use_{name}": values for name, values in uses.items()}


class Expectations(NamedTuple):
    """Probabilities over the contexts of a task.

    target: probability of each symbol in each context. weight: that of each context in each split; NaN for empty splits.
    asking: by pair of symbols, the probability of each context whose target is one of the pair.
    """

    target: Float[Array, "contexts vocabulary"]
    weight: Float[Array, "splits contexts"]
    asking: dict[str, Float[Array, " contexts"]]


@dataclasses.dataclass(frozen=True, eq=False)  # jax.jit hashes the called object, and arrays are not hashable
class ExactRisk:
    r"""(params, expectations) -> `cross_entropy` (nats) and `accuracy` per split, and `gap_NAME` of each pair NAME.

    cross_entropy = -sum_c w_c sum_s p(s | c) ln q(s | c),    accuracy = sum_c w_c p(argmax_s q(s | c) | c).
    gap = |e1 - e2| min_c |h_c|, of the output embeddings of the pair (s1, s2), over the contexts c whose target is in the pair.

    encode: (params, block of inputs) -> h [block, width]. outcomes: the symbols that logits are normalised over (default: all).
    inputs: the inputs of `encode`, a tree of arrays [contexts, ...]. pairs: name -> symbols (s1, s2), named as in `asking`.
    Contexts are evaluated `block` at a time (under vmap: `block` per member); only a few numbers per context are kept.
    """

    encode: Callable[[PyTree, Any], jax.Array]
    inputs: Any
    pairs: Mapping[str, Pair]
    block: int
    outcomes: tuple[int, ...] | None = None

    def __call__(self, params: PyTree, expected: Expectations) -> dict[str, jax.Array]:
        rows = self._measure_contexts(params, expected.target)
        risks = {name: expected.weight @ rows[name] for name in ("cross_entropy", "accuracy")}
        table = params["head"]["embedding"]
        for name, (first, second) in self.pairs.items():
            norms = jnp.where(expected.asking[name] > 0, rows["norm"], jnp.inf)
            risks[f"gap_{name}"] = jnp.linalg.norm(table[first] - table[second]) * jnp.min(norms)
        return risks

    def _measure_contexts(
        self, params: PyTree, target: Float[Array, "contexts vocabulary"]
    ) -> dict[str, Float[Array, " contexts"]]:
        """Return cross-entropy, accuracy and |h| for every context."""
        table, bias = params["head"]["embedding"], params["head"].get("bias")

        def measure_block(part: tuple[Any, jax.Array]) -> dict[str, jax.Array]:
            inputs, target = part
            states = self.encode(params, inputs)
            scores = logits = states @ table.T if bias is None else states @ table.T + bias
            if self.outcomes is not None:
                outcomes = np.array(self.outcomes)
                scores, target = logits[:, outcomes], target[:, outcomes]
            return {
                "cross_entropy": -jnp.sum(target * jax.nn.log_softmax(scores), axis=1),
                "accuracy": jnp.take_along_axis(target, jnp.argmax(scores, axis=1)[:, None], axis=1)[:, 0],
                "norm": jnp.linalg.norm(states, axis=1),
            }

        every = jax.tree.map(jnp.asarray, self.inputs), target
        number, block = len(target), min(self.block, len(target))
        if block == number:
            return measure_block(every)

        def blocks(leaf: jax.Array) -> jax.Array:
            padded = jnp.concatenate([leaf, jnp.repeat(leaf[-1:], -number % block, axis=0)])
            return padded.reshape(-1, block, *leaf.shape[1:])

        mapped = jax.lax.map(measure_block, jax.tree.map(blocks, every))
        return {name: values.reshape(-1)[:number] for name, values in mapped.items()}


def exact_recorder(engine: Engine, ordered: bool) -> Callable[..., dict[str, jax.Array]]:
    """Return (params, batch, seed_key, step) -> the exact risk of a member, under the distribution of its condition.

    engine, ordered: as in `exact_risk`.
    """
    risk, expected = exact_risk(engine, ordered)
    return lambda params, batch, seed_key, step: risk(params, select_condition(expected, seed_key))


def exact_risk(engine: Engine, ordered: bool) -> tuple[ExactRisk, list[Expectations]]:
    """Return the exact risk over all contexts of the engine's tasks, and the expectations by task.

    ordered: as in `all_contexts`. Pairs are measured in the order of the first task.
    """
    contexts = [all_contexts(task, ordered) for task in engine.tasks]
    # By task and bit: the likeliest and the least likely symbol, and the contexts in which the bit is masked.
    asking = [asking_pairs(task, rows) for task, rows in zip(engine.tasks, contexts, strict=True)]
    pairs = {name: symbols for name, (symbols, _) in asking[0].items()}
    expected = [
        Expectations(
            jnp.asarray(rows.target),
            jnp.asarray(rows.weight),
            {name: jnp.asarray(share) for name, (_, share) in of_task.items()},
        )
        for rows, of_task in zip(contexts, asking, strict=True)
    ]
    inputs = engine.inputs(contexts[0])
    return ExactRisk(engine.encode, inputs, pairs, engine.contexts_at_once, engine.outcomes), expected
