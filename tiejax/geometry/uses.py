r"""Gradients of the two uses of an embedding table, as input and as output, and how they compare.

The gradient of a tied table is the sum g = g_in + g_out of the gradients of its use as input table and as output table. Both
are exact and come from one backward pass, because the tables are separate arguments of the loss.

Published figures for comparison: A. Lopardo et al. 2026 (arXiv:2603.26663) report an output share of about .7 over the first
1,000 steps of OLMo-1B; their log has median ratios output / input 7.4 (steps 1-10), 10.0 (10-100), 3.8 (100-300), 1.8
(300-1,000) and 1.7 (1,000-10,000). They compare the norm of a gradient of activations with the norm of a gradient of weights,
which are different quantities; here both are gradients of the same table.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# (first step, end step (exclusive), published median ratio output / input between them)
PUBLISHED_RATIOS = ((1, 10, 7.4), (10, 100, 10.0), (100, 300, 3.8), (300, 1_000, 1.8), (1_000, 10_000, 1.7))


def use_gradients(
    input_gradient: Float[Array, "vocabulary width"],
    output_gradient: Float[Array, "vocabulary width"],
    bucket: Int[Array, " vocabulary"] | Int[np.ndarray, " vocabulary"],
    buckets: int,
) -> dict[str, Float[Array, ""] | Float[Array, " buckets"]]:
    r"""Return norms, ratio and cosine of the gradients of both uses of a table, over all rows and for each bucket of rows.

    norm = |g|,    ratio = |g_out| / |g_in|,    cosine = <g_in, g_out> / (|g_in| |g_out|)

    with Frobenius norms, in nats per unit of a table entry. bucket: the bucket of each row, 0 to buckets - 1. Keys are `input`,
    `output`, `ratio`, `cosine`, and the same with the prefix `bucket_`. If a use has no gradient, ratio and cosine are NaN or
    infinite.
    """

    wide = jnp.promote_types(input_gradient.dtype, jnp.float32)  # sums in bfloat16 lose most of many rows
    input_gradient, output_gradient = input_gradient.astype(wide), output_gradient.astype(wide)

    def summed(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(jnp.sum(values, axis=1), jnp.asarray(bucket), buckets)

    squares = summed(jnp.square(input_gradient)), summed(jnp.square(output_gradient)), summed(input_gradient * output_gradient)

    def measures(first: jax.Array, second: jax.Array, product: jax.Array) -> dict[str, jax.Array]:
        norms = jnp.sqrt(first), jnp.sqrt(second)
        both = norms[0] * norms[1]
        return {"input": norms[0], "output": norms[1], "ratio": norms[1] / norms[0], "cosine": product / both}

    whole = measures(*(jnp.sum(part) for part in squares))
    return whole | {f"bucket_{name}": values for name, values in measures(*squares).items()}


def over_training(steps: np.ndarray, ratio: np.ndarray, cosine: np.ndarray, arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return medians over records and seeds for step 0, for each published window of steps, and for the steps after them.

    ratio, cosine: `[arm, seed, record]`. A row has `from`, `to` (exclusive; None for the end), `published` (the ratio, or None)
    and for each arm `ratio`, `cosine` and `share`, |g_out| / (|g_in| + |g_out|). Windows without a record are left out.
    """
    windows = [(0, 1, None), *PUBLISHED_RATIOS, (PUBLISHED_RATIOS[-1][1], None, None)]
    rows: list[dict[str, Any]] = []
    for low, high, published in windows:
        inside = (steps >= low) & (steps < (np.inf if high is None else high))
        if inside.any():
            row: dict[str, Any] = {"from": low, "to": high, "published": published}
            for number, name in enumerate(arms):
                median = float(np.median(ratio[number][:, inside]))
                cosines = float(np.median(cosine[number][:, inside]))
                row[str(name)] = {"ratio": median, "share": median / (1 + median), "cosine": cosines}
            rows.append(row)
    return rows
