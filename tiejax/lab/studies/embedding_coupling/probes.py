"""Probes of encoders: retrieval of parallel sentences by layer, and word similarity of their tables."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tiejax.geometry.retrieval import Fitted, translation_accuracy
from tiejax.geometry.word_similarity import similarity_correlation
from tiejax.lab.studies.embedding_coupling.encoders import Arrays, Encoders
from tiejax.lab.studies.embedding_coupling.task_data import ParallelRows, ProbeData
from tiejax.models import LanguageModel
from tiejax.training.placement import member_map
from tiejax.transfer.batches import TaskRows

PyTree = Any
FITTED: tuple[Fitted, ...] = ("all", "held_out")


def probe(encoders: Encoders, seeds: int, data: ProbeData, mesh: int) -> Arrays:
    """Return retrieval accuracies `retrieval_FITTED[start, seed, layer]` and correlations `similarity_TABLE[seed]`.

    seeds: number of seeds, the first ones of the encoders.
    """
    arrays: Arrays = {}
    if data.parallel is not None:
        arrays |= retrieval(encoders, seeds, data.parallel, mesh)
    if data.pairs is not None:
        for name, table in encoders.tables.items():
            arrays[f"similarity_{name}"] = np.array([similarity_correlation(each, data.pairs) for each in table[:seeds]])
    return arrays


def mean_states(model: LanguageModel, params: PyTree, rows: TaskRows) -> Float[Array, "batches layers_and_one rows width"]:
    """Return the mean hidden state of each row's sentence, without [CLS] and [SEP], before the first layer and after each."""

    def batch_means(rows: TaskRows) -> jax.Array:
        segments = jnp.asarray(rows.segments)
        states = model.apply({"params": params}, rows.tokens, segments=segments, every_layer=True, method="encode")
        position, last = jnp.arange(segments.shape[1]), jnp.sum(segments, axis=1, keepdims=True) - 1
        inside = (position > 0) & (position < last)
        number = jnp.maximum(jnp.sum(inside, axis=1), 1)[:, None]
        return jnp.sum(jnp.asarray(states) * inside[..., None], axis=2) / number

    return jax.lax.map(batch_means, rows)


def retrieval(encoders: Encoders, seeds: int, parallel: ParallelRows, mesh: int) -> Arrays:
    """Return the retrieval accuracy by layer, `[start, seed, layer]`, with the mean difference fitted in both ways."""
    both = jax.tree.map(lambda *leaves: np.concatenate(leaves), parallel.source, parallel.target)
    members = encoders.stacked(range(seeds))
    means = member_map(lambda params, rows: mean_states(encoders.model, params, rows), mesh)(members, both)
    by_layer = np.moveaxis(means, 3, 2)  # [seed, start, layers + 1, batches, rows, width]
    halves = np.split(by_layer, 2, axis=3)
    sides = [half.reshape(*half.shape[:3], -1, half.shape[-1])[..., : parallel.number, :] for half in halves]
    arrays: Arrays = {}
    for fitted in FITTED:
        accuracy = np.vectorize(functools.partial(translation_accuracy, fitted=fitted), signature="(n,w),(n,w)->()")
        arrays[f"retrieval_{fitted}"] = np.moveaxis(accuracy(*sides), 1, 0)
    return arrays
