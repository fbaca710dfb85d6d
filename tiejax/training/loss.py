"""Losses of masked language models, computed in at least float32 for any dtype of the logits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

PyTree = Any


def cross_entropy(logits: Float[Array, "*batch vocabulary"], target: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return -ln softmax(logits)[target] in nats, computed in at least float32; raises ValueError for other shapes."""
    if jnp.shape(logits)[:-1] != jnp.shape(target):
        raise ValueError(f"target: expected a token for each of the logits {jnp.shape(logits)}, got {jnp.shape(target)}")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    chosen = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def masked_lm_loss(
    logits_of: Callable[[PyTree, Any, jax.Array | None], jax.Array], params: PyTree, batch: Any, key: jax.Array | None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return the mean cross-entropy over the masked positions.

    Args:
        logits_of: (params, batch, dropout key or None) -> logits `[batch, vocabulary]` at the masked positions.
        params: parameters.
        batch: a batch with the field `target [batch]`: the token at each of these positions, without marks for others such as
            -100. Both may have further axes before the last of the logits.
        key: dropout key; None disables dropout.

    Returns:
        The loss in nats, and the metrics `loss` and `accuracy` (of the argmax over the vocabulary).

    Raises:
        ValueError: if there is not one target for each vector of logits.
    """
    logits = logits_of(params, batch, key)
    loss = jnp.mean(cross_entropy(logits, batch.target))
    accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == batch.target, dtype=loss.dtype)
    return loss, {"loss": loss, "accuracy": accuracy}


def asked_loss(
    logits: Float[Array, "vocabulary contexts"], asked: Float[Array, "vocabulary contexts"]
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    r"""Return the loss and metrics of `masked_lm_loss` for a batch given as shares of (target symbol, context) pairs.

    loss = -sum_c sum_s asked_{s,c} ln softmax(logits_c)_s

    Args:
        logits: `[vocabulary, contexts]`.
        asked: `[vocabulary, contexts]`, the share of each pair in the batch; sums to 1.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # The gradient is softmax - asked, whether or not the maximum is subtracted.
    highest = jax.lax.stop_gradient(jnp.max(logits, axis=0))
    log_total = jnp.log(jnp.sum(jnp.exp(logits - highest), axis=0)) + highest
    loss = jnp.sum(jnp.sum(asked, axis=0) * log_total) - jnp.sum(asked * logits)
    accuracy = jnp.sum(jnp.take_along_axis(asked, jnp.argmax(logits, axis=0)[None], axis=0))
    return loss, {"loss": loss, "accuracy": accuracy}
