"""Low-rank adaptation (LoRA) of layers that share weights: what makes each layer differ from the weights that it shares.

Layer i computes with the kernels W_o + A_i B_i and the vectors (biases, scales and offsets of LayerNorms) v_o + d_i, where o =
owner[i] is the slot whose weights it shares, A_i is [inputs, r] and B_i is [r, outputs]. A kernel of fewer than r inputs or
outputs has the rank that it can have, so that from the largest rank on every layer is free.

Sources: E. Hu et al., LoRA, ICLR 2022 (arXiv:2106.09685); S. Bae et al., Relaxed Recursive Transformers, ICLR 2025
(arXiv:2410.20672), which adapts layers that share weights, and starts from a truncated singular value decomposition.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

PyTree = Any


def ranks(stack: PyTree, rank: int) -> PyTree:
    """Return the rank of the adaptation of each leaf of a stack, `[slots, ...]`: at most `rank`, and 0 for vectors."""
    return jax.tree.map(lambda leaf: min(rank, *leaf.shape[1:]) if leaf.ndim == 3 else 0, stack)


def initial(key: jax.Array, stack: PyTree, layers: int, rank: int) -> PyTree:
    """Return an adaptation that changes nothing: A_i from N(0, 1 / inputs), B_i and d_i zero.

    stack: weights of layers, or their shapes, leaves `[slots, ...]`. The result is its tree with
    `{"a": [layers, inputs, r], "b": [layers, r, outputs]}` for each kernel and `[layers, n]` for each vector.
    """
    leaves, structure = jax.tree.flatten(stack)
    keys = jax.random.split(key, len(leaves))
    parts = [
        _initial_leaf(key, leaf, layers, rank)
        for key, leaf, rank in zip(keys, leaves, jax.tree.leaves(ranks(stack, rank)), strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def _initial_leaf(key: jax.Array, leaf: Any, layers: int, rank: int) -> PyTree:
    if leaf.ndim != 3:
        return jnp.zeros((layers, *leaf.shape[1:]), leaf.dtype)
    _, inputs, outputs = leaf.shape
    a = jax.random.normal(key, (layers, inputs, rank), leaf.dtype) * inputs**-0.5
    return {"a": a, "b": jnp.zeros((layers, rank, outputs), leaf.dtype)}


def adapted(weights: PyTree, adaptation: PyTree) -> PyTree:
    """Return the weights with which a layer computes: W + A B for kernels, v + d for vectors.

    Args:
        weights: weights of one layer, kernels `[inputs, outputs]` and vectors `[n]`, or of several layers, with a leading axis.
        adaptation: of this layer, without the leading axis of `initial`, or of the same layers.
    """

    def changed(leaf: jax.Array | np.ndarray, change: Any) -> jax.Array | np.ndarray:
        return leaf + (change["a"] @ change["b"] if isinstance(change, dict) else change)

    return jax.tree.map(changed, weights, adaptation)


def from_layers(stack: PyTree, owner: Int32[np.ndarray, " layers"], rank: int) -> tuple[PyTree, PyTree]:
    """Return the means of the layers that will share weights, and the adaptation closest to the differences from the means.

    A_i B_i is the truncated singular value decomposition of the difference W_i - mean, U_r S_r^{1/2} and S_r^{1/2} V_r^T, the
    closest of this rank in the Frobenius norm (Eckart and Young, 1936). Other shared weights than the mean can leave out less.

    stack: weights of separate layers, leaves `[layers, ...]`. owner: the layer whose slot each layer will use. rank: of every
    kernel's adaptation. Returns the stack with a slot for each distinct owner, in ascending order, and the adaptation, which is
    None for rank 0.
    """
    slots = np.unique(owner, return_inverse=True)[1]
    count = slots.max() + 1

    def mean(leaf: Any) -> np.ndarray:
        values = np.asarray(leaf)
        return np.stack([values[slots == slot].mean(0, dtype=np.float64) for slot in range(count)]).astype(values.dtype)

    shared = jax.tree.map(mean, stack)
    if not rank:
        return shared, None

    def change(leaf: Any, mean: np.ndarray, rank: int) -> PyTree:
        left = np.asarray(leaf, np.float64) - mean[slots]
        if left.ndim != 3:
            return left.astype(mean.dtype)
        u, s, v = np.linalg.svd(left, full_matrices=False)
        root = np.sqrt(s[:, :rank])
        return {
            "a": (u[:, :, :rank] * root[:, None]).astype(mean.dtype),
            "b": (root[..., None] * v[:, :rank]).astype(mean.dtype),
        }

    return shared, jax.tree.map(change, stack, shared, ranks(stack, rank))
