"""Masked-LM losses, in float32 or wider whatever the dtype of the computation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

PyTree = Any


def cross_entropy(logits: Float[Array, "batch vocabulary"], target: Int[Array, "batch"]) -> Float[Array, "batch"]:
    """Return -ln softmax(logits)[target], in nats, in float32 or wider whatever the dtype of the logits."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    chosen = jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def masked_lm_loss(
    logits_of: Callable[[PyTree, Any, jax.Array | None], jax.Array], params: PyTree, batch: Any, key: jax.Array | None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return the mean cross-entropy over the masked positions, with metrics `loss` (nats) and `accuracy`.

    logits_of: (params, batch, dropout key or None) -> logits at the masked positions. Accuracy: of the argmax over all symbols.
    """
    logits = logits_of(params, batch, key)
    loss = jnp.mean(cross_entropy(logits, batch.target))
    accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == batch.target, dtype=loss.dtype)
    return loss, {"loss": loss, "accuracy": accuracy}


def asked_loss(
    logits: Float[Array, "vocabulary contexts"], asked: Float[Array, "vocabulary contexts"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    r"""Return the same loss and metrics for contexts that are asked for each symbol with a known share of the batch.

    loss = -sum_c sum_s asked_{s,c} ln softmax(logits_c)_s, where `asked` sums to 1.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # The maximum takes no part in the gradient, which is softmax - asked with or without it.
    highest = jax.lax.stop_gradient(jnp.max(logits, axis=0))
    log_total = jnp.log(jnp.sum(jnp.exp(logits - highest), axis=0)) + highest
    loss = jnp.sum(jnp.sum(asked, axis=0) * log_total) - jnp.sum(asked * logits)
    accuracy = jnp.sum(jnp.take_along_axis(asked, jnp.argmax(logits, axis=0)[None], axis=0))
    return loss, {"loss": loss, "accuracy": accuracy}
