"""Products of rows in float32: of bfloat16 rows by the processor's own instructions, which is as exact and faster.

The product of two bfloat16 numbers is a float32 without any rounding, unless it is below 1e-38, so that only the sums round,
as those of float32 do. Processors without AMX sum bfloat16 products less exactly (4e-6 where float32 is off by 3e-8): there
rows are multiplied in float32.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tiejax.geometry.table_rows import BFLOAT16


def row_products(
    first: Float[np.ndarray | Array, "first width"], second: Float[np.ndarray | Array, "second width"]
) -> Float[np.ndarray, "first second"]:
    """Return A B^T in float32 of A [first, width] and B [second, width], each of them float32 or bfloat16."""
    if first.dtype == second.dtype == BFLOAT16 and has_amx():
        with _on_the_processor():
            return np.asarray(_products(first, second))
    return np.asarray(first, np.float32) @ np.asarray(second, np.float32).T


def prepared(rows: Float[np.ndarray, "number width"]) -> Float[np.ndarray | Array, "number width"]:
    """Return rows for many products, converted once: bfloat16 ones as an array of jax, or as float32."""
    if rows.dtype != BFLOAT16:
        return rows
    if not has_amx():
        return np.asarray(rows, np.float32)
    with _on_the_processor():
        return jnp.asarray(rows)


def column_products(
    first: Float[np.ndarray, "rows first"], second: Float[np.ndarray, "rows second"]
) -> list[Float[np.ndarray, "..."]]:
    """Return A^T A, B^T B and A^T B in float32 of bfloat16 rows A and B."""
    with _on_the_processor():
        a, b = _transposed(first), _transposed(second)
        # All three are asked for before the first is waited for.
        return [np.asarray(each) for each in (_products(a, a), _products(b, b), _products(a, b))]


@functools.cache
def has_amx() -> bool:
    """Say whether the processor multiplies bfloat16 matrices itself, as far as Linux tells."""
    told = Path("/proc/cpuinfo")
    return told.is_file() and "amx_bf16" in told.read_text()


def _on_the_processor() -> Any:
    """Return a context in which none of a GPU's memory is taken for blocks that are read from a file."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


@jax.jit
def _products(first: Array, second: Array) -> Array:
    # Contracted along the last axes of both: any other order is computed at the rate of float32.
    return jax.lax.dot_general(first, second, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


# By itself: in one program with the products it would be made a part of them, and they take another, slower order.
@jax.jit
def _transposed(rows: Array) -> Array:
    return rows.T
