"""Attention: jax's fused kernel where the device supports it, otherwise a softmax with a custom derivative."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tiejax.models.layers import drop_probability, keep_mask

HALF = (jnp.bfloat16, jnp.float16)


def has_fused(capability: float | None, dtype: jnp.dtype, width: int, queries: int, length: int) -> bool:
    """Return whether cuDNN has a fused kernel for heads of this width, on NVIDIA GPUs in half precision.

    capability: the compute capability of the GPU, None on other devices. cuDNN requires 8.0, widths that are multiples of 8 up
    to 128 and, for gradients, even numbers of queries and of positions. Source: `jax.nn.dot_product_attention`.
    """
    fits = width % 8 == 0 and width <= 128 and queries % 2 == length % 2 == 0
    return capability is not None and capability >= 8.0 and dtype in HALF and fits


def _capability() -> float | None:
    capability = getattr(jax.devices()[0], "compute_capability", None) if jax.default_backend() == "gpu" else None
    try:
        return None if capability is None else float(capability)
    except ValueError:  # GPUs of other vendors report names, not numbers
        return None


def attend(
    query: Float[Array, "batch queries heads width"],
    key: Float[Array, "batch length heads width"],
    value: Float[Array, "batch length heads width"],
    mask: Bool[Array, "#batch 1 queries length"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch queries heads width"]:
    """Return softmax(query key^T / sqrt(width)) value over the positions that the mask allows, at least one for each query.

    causal: a query does not see later positions; there must be as many queries as positions. A fused kernel skips the masked
    part. The softmax is in float32 or wider. With a `dropout_key`, attention weights are dropped, which jax's fused kernels do
    not support.
    """
    (queries, length), kind = (query.shape[1], key.shape[1]), (query.dtype, query.shape[-1])
    if dropout_key is None and has_fused(_capability(), *kind, queries, length):
        for_all = None if mask is None else _for_all(query.shape[2])(mask, jax.lax.stop_gradient(query))
        return jax.nn.dot_product_attention(query, key, value, mask=for_all, is_causal=causal, implementation="cudnn")
    if causal:
        before = jnp.tril(jnp.ones((queries, length), bool))
        mask = before[None, None] if mask is None else mask & before
    bias = None if mask is None else jnp.where(mask, 0, jnp.finfo(_wide(query)).min)
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (query / math.sqrt(query.shape[-1]), key, value))
    keep = None if dropout_key is None else keep_mask(dropout_key, dropout, (query.shape[0], query.shape[2], queries, length))
    return jnp.swapaxes(_attend(1 / (1 - drop_probability(dropout)), *heads_first, bias, keep), 1, 2)


def _for_all(heads: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function (mask, query) -> mask that broadcasts the mask to every head and row and, under vmap, to every member.

    cuDNN's batching rule accepts only such masks.
    """

    @jax.custom_batching.custom_vmap
    def broadcast(mask: jax.Array, query: jax.Array) -> jax.Array:
        return jnp.broadcast_to(mask, (query.shape[0], heads, *mask.shape[-2:]))

    @broadcast.def_vmap
    def over_members(members: int, batched: list[bool], mask: jax.Array, query: jax.Array) -> tuple[jax.Array, bool]:
        each = [
            leaf if is_batched else jnp.broadcast_to(leaf, (members, *leaf.shape))
            for leaf, is_batched in zip((mask, query), batched, strict=True)
        ]
        rows = each[1].shape[1]
        masks = jnp.broadcast_to(each[0], (members, rows, *mask.shape[-3:]))
        flat = broadcast(masks.reshape(-1, *masks.shape[2:]), each[1].reshape(-1, *each[1].shape[2:]))
        return flat.reshape(members, rows, *flat.shape[1:]), True

    return broadcast


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    scale: float,
    query: Float[Array, "batch heads queries width"],
    key: Float[Array, "batch heads length width"],
    value: Float[Array, "batch heads length width"],
    bias: Float[Array, "#batch 1 queries length"] | None,
    keep: Bool[Array, "batch heads queries length"] | None,
) -> Float[Array, "batch heads queries width"]:
    """Return o = (k p) value, p = softmax(query key^T + bias), k = scale where `keep` is true, else 0; k = 1 if `keep` is None.

    With g the gradient of o: dvalue = (k p)^T g, ds = p (k (g value^T) - sum(g o)) with the sum over the width,
    dquery = ds key, dkey = ds^T query. Of the arrays as large as the scores,
    only p is saved. sum(g o) equals sum(p dp), with dp = k (g value^T), but needs no pass over such an array.
    """
    return _attend_forward(scale, query, key, value, bias, keep)[0]


def _attend_forward(
    scale: float, query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None, keep: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    scores = _product("bhqw,bhkw->bhqk", query, key)
    share = jax.nn.softmax(scores if bias is None else scores + bias).astype(value.dtype)
    attended = jnp.einsum("bhqk,bhkw->bhqw", _scaled(share, keep, scale), value)
    return attended, (query, key, value, share, keep, attended)


def _scaled(x: jax.Array, keep: jax.Array | None, scale: float) -> jax.Array:
    return x if keep is None else jnp.where(keep, x * scale, 0).astype(x.dtype)


def _attend_backward(
    scale: float, saved: tuple[Any, ...], attended_grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, None]:
    query, key, value, share, keep, attended = saved
    share_grad = _scaled(_product("bhqw,bhkw->bhqk", attended_grad, value), keep, scale)
    along = jnp.sum(attended_grad.astype(share_grad.dtype) * attended, axis=-1, keepdims=True)
    scores_grad = (share * (share_grad - along)).astype(query.dtype)
    value_grad = jnp.einsum("bhqk,bhqw->bhkw", _scaled(share, keep, scale), attended_grad)
    query_grad, key_grad = jnp.einsum("bhqk,bhkw->bhqw", scores_grad, key), jnp.einsum("bhqk,bhqw->bhkw", scores_grad, query)
    return query_grad, key_grad, value_grad, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _wide(x: jax.Array) -> jnp.dtype:
    """Return the dtype for sums over x: float32 or wider."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _product(axes: str, one: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.einsum(axes, one, other, preferred_element_type=_wide(one))
