"""Products of rows in float32; bfloat16 rows use the processor's AMX instructions, which are as exact and faster.

The product of two bfloat16 numbers is exact in float32 unless it is below 1e-38, so only the sums are rounded, as for
float32 rows. Processors without AMX sum bfloat16 products less exactly (errors of 4e-6 instead of 3e-8); on these, rows are
converted to float32 first.
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
    """Return A B^T in float32 for A [first, width] and B [second, width], each in float32 or bfloat16."""
    if first.dtype == second.dtype == BFLOAT16 and has_amx():
        with _on_cpu():
            return np.asarray(_products(first, second))
    return np.asarray(first, np.float32) @ np.asarray(second, np.float32).T


def prepared(rows: Float[np.ndarray, "number width"]) -> Float[np.ndarray | Array, "number width"]:
    """Return rows converted once for many products: a jax array in bfloat16 if AMX is available, otherwise float32."""
    if rows.dtype != BFLOAT16:
        return rows
    if not has_amx():
        return np.asarray(rows, np.float32)
    with _on_cpu():
        return jnp.asarray(rows)


def column_products(
    first: Float[np.ndarray, "rows first"], second: Float[np.ndarray, "rows second"]
) -> list[Float[np.ndarray, "..."]]:
    """Return A^T A, B^T B and A^T B in float32 for bfloat16 rows A and B."""
    with _on_cpu():
        a, b = _transposed(first), _transposed(second)
        # Dispatch all three before waiting for the first.
        return [np.asarray(each) for each in (_products(a, a), _products(b, b), _products(a, b))]


@functools.cache
def has_amx() -> bool:
    """Return whether Linux lists instructions for products of bfloat16 matrices (AMX)."""
    processor = Path("/proc/cpuinfo")
    return processor.is_file() and "amx_bf16" in processor.read_text()


def _on_cpu() -> Any:
    """Return a context in which arrays are placed on the CPU, so that blocks read from a file take no GPU memory."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


@jax.jit
def _products(first: Array, second: Array) -> Array:
    # Contract the last axes of both: other layouts run at the speed of float32.
    return jax.lax.dot_general(first, second, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


# Compiled separately: in one program with the products, XLA would fuse the transposition and choose a slower layout.
@jax.jit
def _transposed(rows: Array) -> Array:
    return rows.T
