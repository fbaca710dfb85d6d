"""Layers with features on the first axis and everything else in columns, which is fast for ensembles of small models on a CPU.

The product of a small weight matrix with long rows is one efficient matrix product, in every member of a vmapped ensemble and
in the gradient; with features last it is many inefficient ones. For the same reason, look-ups in small tables are products with
one-hot columns: on a CPU the gradient of a gather is a loop over its rows.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.models.layers import default_dtype, uniform

SMALL_TABLE = 64


class Linear(nn.Module):
    """Linear map of the first axis, y = W^T x + b, with torch's initial values and the parameters of `nn.Dense`."""

    features: int

    @nn.compact
    def __call__(
        self, x: Float[Array, " inputs *columns"], chosen: Float[Array, "features batch"] | None = None
    ) -> Float[Array, "*outputs"]:
        """Return [features, *columns] or, given a one-hot `chosen`, one feature for each index of the last axis, [*columns]."""
        init = uniform(1 / math.sqrt(x.shape[0]))
        kernel = self.param("kernel", init, (x.shape[0], self.features), default_dtype())
        bias = self.param("bias", init, (self.features,), default_dtype())
        if chosen is None:
            y = kernel.T @ x.reshape(x.shape[0], -1) + bias[:, None]
            return y.reshape(self.features, *x.shape[1:])
        chosen_kernel = (kernel @ chosen).reshape(x.shape[0], *[1] * (x.ndim - 2), -1)
        return jnp.sum(chosen_kernel * x, axis=0) + bias @ chosen


def lookup(table: Float[Array, "vocabulary width"], tokens: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
    """Return the rows of a table for the given tokens."""
    if len(table) > SMALL_TABLE:
        return table[tokens]
    columns = jax.nn.one_hot(tokens.T.ravel(), len(table), axis=0, dtype=table.dtype)
    return (table.T @ columns).reshape(-1, *tokens.T.shape).transpose(2, 1, 0)


def at(x: Float[Array, "length *features batch"], position: Int[Array, " batch"]) -> Float[Array, "*features batch"]:
    """Return x at one position of each sequence; sequences are the last axis."""
    chosen = jax.nn.one_hot(position, len(x), axis=0, dtype=x.dtype)
    if len(x) > SMALL_TABLE:
        return jnp.sum(x * chosen.reshape(len(x), *[1] * (x.ndim - 2), -1), axis=0)
    # Unrolled: on a CPU, XLA sums over a first axis ten times more slowly than it adds arrays.
    return functools.reduce(jnp.add, (row * weight for row, weight in zip(x, chosen, strict=True)))
