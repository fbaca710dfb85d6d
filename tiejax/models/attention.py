"""Attention: jax's own, fused where the device has such a kernel."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

HALF = (jnp.bfloat16, jnp.float16)


def has_fused(capability: float | None, dtype: jnp.dtype, width: int, length: int) -> bool:
    """Say whether jax has a fused kernel for heads of this width: cuDNN's, on NVIDIA GPUs in half precision.

    capability: of the GPU, None elsewhere; cuDNN asks for 8.0, for widths that are multiples of 8 up to 128, and, with a mask,
    for even lengths. Source: `jax.nn.dot_product_attention`.
    """
    fits = width % 8 == 0 and width <= 128 and length % 2 == 0
    return capability is not None and capability >= 8.0 and dtype in HALF and fits


def _capability() -> float | None:
    capability = getattr(jax.devices()[0], "compute_capability", None) if jax.default_backend() == "gpu" else None
    try:
        return None if capability is None else float(capability)
    except ValueError:  # other makers' names
        return None


def attend(
    query: Float[Array, "batch queries heads width"],
    key: Float[Array, "batch length heads width"],
    value: Float[Array, "batch length heads width"],
    mask: Bool[Array, "#batch 1 queries length"] | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch queries heads width"]:
    """Return softmax(query key^T / sqrt(width)) value, over the positions that the mask allows.

    The softmax is in float32 or wider. With a `dropout_key`, probabilities are dropped, which no fused kernel of jax does.
    """
    if dropout_key is None and has_fused(_capability(), query.dtype, query.shape[-1], key.shape[1]):
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
