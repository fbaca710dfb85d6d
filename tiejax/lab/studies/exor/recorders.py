"""Recorders of an EXor member: distances, sampled losses and gradients by use; at longer intervals, exact risk."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from tiejax import training
from tiejax.geometry.distances import pairwise_distances
from tiejax.geometry.uses import use_gradients
from tiejax.lab.studies.exor import batches
from tiejax.lab.studies.exor.contexts import all_contexts, asking_pairs
from tiejax.lab.studies.exor.engines import Engine, Sample
from tiejax.lab.studies.exor.risk import ExactRisk, Expectations
from tiejax.training import SeedKey

PyTree = Any


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
    redraw: Sample
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
        visits = {"redrawn": self.redraw(data_key, seed_key.key, step, seed_key.condition)}
        if len(self.held_out):
            frozen = select_condition([batches.frozen(task, self.held_out) for task in tasks], seed_key)
            visits["frozen"] = self.engine.take(frozen)
        return {f"validation_{name}": self.engine.loss(params, visit, None)[1] for name, visit in visits.items()}

    def _uses(self, params: PyTree, batch: Any) -> dict[str, jax.Array]:
        """Return the gradients of both uses, unweighted: for tied tables they sum to the gradient of the table."""
        vocabulary = self.engine.tasks[0].vocabulary
        grads = jax.grad(lambda params: self.engine.loss(params, batch, None)[0])(params)
        symbols: Array = jnp.arange(vocabulary)
        uses = use_gradients(grads["embed"]["embedding"], grads["head"]["embedding"], symbols, vocabulary)
        return {f"use_{name}": values for name, values in uses.items()}


@dataclasses.dataclass(frozen=True, eq=False)  # jax.jit hashes the called object, and arrays are not hashable
class RiskByCondition:
    """(params, batch, seed_key, step) -> the exact risk of a member, under the distribution of its condition.

    expected: expectations by condition. sign: by condition and pair, -1 where the second symbol of the pair is the likelier.
    """

    risk: ExactRisk
    expected: Sequence[Expectations]
    sign: Sequence[Mapping[str, float]]

    def __call__(self, params: PyTree, batch: Any, seed_key: SeedKey, step: jax.Array) -> dict[str, jax.Array]:
        risks = self.risk(params, select_condition(self.expected, seed_key))
        sign = select_condition(self.sign, seed_key)
        return risks | {f"log_ratio_{name}": sign[name] * risks[f"log_ratio_{name}"] for name in self.risk.pairs}


def exact_recorder(engine: Engine, ordered: bool) -> RiskByCondition:
    """Return the recorder of the exact risk over all contexts of the engine's tasks. ordered: as in `all_contexts`."""
    contexts = [all_contexts(task, ordered) for task in engine.tasks]
    # By condition and bit: the likeliest and the least likely symbol, and the contexts in which the bit is masked.
    asking = [asking_pairs(task, rows) for task, rows in zip(engine.tasks, contexts, strict=True)]
    expected = [
        Expectations.of(rows.target, rows.weight, {name: share for name, (_, share) in pairs.items()})
        for rows, pairs in zip(contexts, asking, strict=True)
    ]
    # Pairs are measured in the order of the first task; log ratios are reported from the likelier symbol to the other.
    pairs = {name: symbols for name, (symbols, _) in asking[0].items()}
    sign = [{name: 1.0 if by_bit[name][0] == pairs[name] else -1.0 for name in pairs} for by_bit in asking]
    risk = ExactRisk(
        encode=engine.encode,
        output=lambda params: (params["head"]["embedding"], params["head"].get("bias")),
        outcomes=engine.outcomes,
        inputs=engine.inputs(contexts[0]),
        pairs=pairs,
        block=engine.contexts_at_once,
    )
    return RiskByCondition(risk, expected, sign)
