"""Attention: jax's own fused kernel where the device has one, else a softmax with a derivative of its own."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

HALF = (jnp.bfloat16, jnp.float16)


def has_fused(capability: float | None, dtype: jnp.dtype, width: int, queries: int, length: int) -> bool:
    """Say whether jax has a fused kernel for heads of this width: cuDNN's, on NVIDIA GPUs in half precision.

    capability: of the GPU, None elsewhere; cuDNN asks for 8.0, for widths that are multiples of 8 up to 128, and, for
    gradients, for even numbers of queries and of positions. Source: `jax.nn.dot_product_attention`.
    """
    fits = width % 8 == 0 and width <= 128 and queries % 2 == length % 2 == 0
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
    causal: bool = False,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "batch queries heads width"]:
    """Return softmax(query key^T / sqrt(width)) value, over the positions that the mask allows, one at least to a query.

    causal: no query sees a position behind its own, as many queries as positions being given; a fused kernel is told so, and
    does not compute what nobody sees. The softmax is in float32 or wider. With a `dropout_key`, probabilities are dropped,
    which no fused kernel of jax does.
    """
    (queries, length), kind = (query.shape[1], key.shape[1]), (query.dtype, query.shape[-1])
    if dropout_key is None and has_fused(_capability(), *kind, queries, length):
        for_all = None if mask is None else _for_all(query.shape[2])(mask, jax.lax.stop_gradient(query))
        return jax.nn.dot_product_attention(query, key, value, mask=for_all, is_causal=causal, implementation="cudnn")
    if causal:
        before = jnp.tril(jnp.ones((queries, length), bool))
        mask = before[None, None] if mask is None else mask & before
    if dropout_key is not None:
        return nn.dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            broadcast_dropout=False,
            dropout_rng=dropout_key,
            dropout_rate=dropout,
            deterministic=False,
            force_fp32_for_softmax=query.dtype in HALF,
        )
    bias = None if mask is None else jnp.where(mask, 0, jnp.finfo(_wide(query)).min)
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (query / math.sqrt(query.shape[-1]), key, value))
    return jnp.swapaxes(_attend(*heads_first, bias), 1, 2)


def _for_all(heads: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return (mask, query) -> the mask of every head and row, and, where members are vmapped, of every member.

    cuDNN's rule for vmapped members takes no other masks.
    """

    @jax.custom_batching.custom_vmap
    def broadcast(mask: jax.Array, query: jax.Array) -> jax.Array:
        return jnp.broadcast_to(mask, (query.shape[0], heads, *mask.shape[-2:]))

    @broadcast.def_vmap
    def of_members(members: int, batched: list[bool], mask: jax.Array, query: jax.Array) -> tuple[jax.Array, bool]:
        each = [
            leaf if is_batched else jnp.broadcast_to(leaf, (members, *leaf.shape))
            for leaf, is_batched in zip((mask, query), batched, strict=True)
        ]
        rows = each[1].shape[1]
        masks = jnp.broadcast_to(each[0], (members, rows, *mask.shape[-3:]))
        flat = broadcast(masks.reshape(-1, *masks.shape[2:]), each[1].reshape(-1, *each[1].shape[2:]))
        return flat.reshape(members, rows, *flat.shape[1:]), True

    return broadcast


@jax.custom_vjp
def _attend(
    query: Float[Array, "batch heads queries width"],
    key: Float[Array, "batch heads length width"],
    value: Float[Array, "batch heads length width"],
    bias: Float[Array, "#batch 1 queries length"] | None,
) -> Float[Array, "batch heads queries width"]:
    """Return o = p value, p = softmax(query key^T + bias).

    With g the gradient of o: dvalue = p^T g, ds = p (g value^T - sum(g o)), the sum over the width, dquery = ds key,
    dkey = ds^T query. What it keeps of the scores is p alone, and sum(g o), which is sum(p dp), takes no pass over them.
    """
    return _attend_forward(query, key, value, bias)[0]


def _attend_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    scores = _product("bhqw,bhkw->bhqk", query, key)
    share = jax.nn.softmax(scores if bias is None else scores + bias).astype(value.dtype)
    attended = jnp.einsum("bhqk,bhkw->bhqw", share, value)
    return attended, (query, key, value, share, attended)


def _attend_backward(kept: tuple[jax.Array, ...], of_attended: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    query, key, value, share, attended = kept
    of_share = _product("bhqw,bhkw->bhqk", of_attended, value)
    along = jnp.sum(of_attended.astype(of_share.dtype) * attended, axis=-1, keepdims=True)
    of_scores = (share * (of_share - along)).astype(query.dtype)
    of_value = jnp.einsum("bhqk,bhqw->bhkw", share, of_attended)
    return jnp.einsum("bhqk,bhkw->bhqw", of_scores, key), jnp.einsum("bhqk,bhqw->bhkw", of_scores, query), of_value, None


_attend.defvjp(_attend_forward, _attend_backward)


def _wide(x: jax.Array) -> jnp.dtype:
    """Return the type of sums over x: float32 or wider."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _product(axes: str, one: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.einsum(axes, one, other, preferred_element_type=_wide(one))
