"""Features first, everything else in columns: how small models run fast in ensembles on a CPU.

A product of a small weight matrix with long rows is one good matrix product, in every member of a vmapped ensemble and in the
gradient; with features last it is many bad ones. For the same reason look-ups in small tables are products with
one-hot columns: on a CPU the gradient of a gather is a loop over its rows.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.models.initializers import default_dtype, uniform

SMALL_TABLE = 64


class Linear(nn.Module):
    """Linear map of the first axis, y = W^T x + b, with torch's initial values; parameters as those of `nn.Dense`."""

    features: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "inputs *columns"], chosen: Float[Array, "features batch"] | None = None
    ) -> Float[Array, "*outputs"]:
        """Return [features, *columns]; where one feature is `chosen` (one-hot) an index of the last axis, [*columns]."""
        init = uniform(1 / math.sqrt(x.shape[0]))
        kernel = self.param("kernel", init, (x.shape[0], self.features), default_dtype())
        bias = self.param("bias", init, (self.features,), default_dtype())
        if chosen is None:
            y = kernel.T @ x.reshape(x.shape[0], -1) + bias[:, None]
            return y.reshape(self.features, *x.shape[1:])
        of_chosen = (kernel @ chosen).reshape(x.shape[0], *[1] * (x.ndim - 2), -1)
        return jnp.sum(of_chosen * x, axis=0) + bias @ chosen


def lookup(table: Float[Array, "vocabulary width"], tokens: Int[Array, "batch length"]) -> Float[Array, "batch length width"]:
    """Return the rows of a table that the tokens name."""
    if len(table) > SMALL_TABLE:
        return table[tokens]
    columns = jax.nn.one_hot(tokens.T.ravel(), len(table), axis=0, dtype=table.dtype)
    return (table.T @ columns).reshape(-1, *tokens.T.shape).transpose(2, 1, 0)


def at(x: Float[Array, "length *features batch"], position: Int[Array, "batch"]) -> Float[Array, "*features batch"]:
    """Return x at one position of each sequence, which is the last axis."""
    chosen = jax.nn.one_hot(position, len(x), axis=0, dtype=x.dtype)
    if len(x) > SMALL_TABLE:
        return jnp.sum(x * chosen.reshape(len(x), *[1] * (x.ndim - 2), -1), axis=0)
    # Written out: on a CPU XLA sums over a first axis ten times as slowly as it adds arrays.
    return functools.reduce(jnp.add, (row * here for row, here in zip(x, chosen, strict=True)))
