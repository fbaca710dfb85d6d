"""Parts of the input stage of a language model: initial tables, and positions that restart in every segment."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Integer


def table_init(std: float, padding: int | None = None) -> jax.nn.initializers.Initializer:
    """Return an initializer N(0, std^2) for a table whose row `padding`, if given, is 0."""
    normal = jax.nn.initializers.normal(std)

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        table = normal(key, shape, dtype)
        return table if padding is None else table.at[padding].set(0)

    return init


def restarting_positions(segments: Integer[Array, "batch length"]) -> Int[Array, "batch length"]:
    """Return the position of each token within its segment; a segment is a run of equal numbers."""
    place = jnp.arange(segments.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], axis=1)
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
