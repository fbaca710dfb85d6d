"""Attention: jax's own, fused where the device has such a kernel."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

HALF = (jnp.bfloat16, jnp.float16)


def has_fused(backend: str, dtype: jnp.dtype, width: int) -> bool:
    """Say whether jax has a fused kernel for heads of this width: cuDNN's, on NVIDIA GPUs in half precision.

    cuDNN takes widths that are multiples of 8, up to 128. Source: `jax.nn.dot_product_attention`.
    """
    return backend == "gpu" and dtype in HALF and width % 8 == 0 and width <= 128


def attend(
    query: Float[Array, "batch queries heads width"],
    key: Float[Array, "batch length heads width"],
    value: Float[Array, "batch length heads width"],
    mask: Bool[Array, "batch 1 queries length"] | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch queries heads width"]:
    """Return softmax(query key^T / sqrt(width)) value, over the positions that the mask allows.

    The softmax is in float32 or wider. With a `dropout_key`, probabilities are dropped, which no fused kernel of jax does.
    """
    if dropout_key is None and has_fused(jax.default_backend(), query.dtype, query.shape[-1]):
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
    return nn.dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        broadcast_dropout=False,
        dropout_rng=dropout_key,
        dropout_rate=dropout,
        deterministic=dropout_key is None,
        force_fp32_for_softmax=query.dtype in HALF,
    )
