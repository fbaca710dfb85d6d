"""Validation on held-out rows: losses and accuracies at the masked tokens, by buckets of token frequency."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from tiejax.pretraining.loss import Predicted
from tiejax.pretraining.step_plan import StepPlan
from tiejax.text.masking import MaskedRows, Masking
from tiejax.text.packing import Stream, take_rows
from tiejax.training.sharding import DATA, total


class HeldOut(NamedTuple):
    """The batches of one validation, always the same rows; `rows` is a multiple of the devices of a member."""

    tokens: Int[np.ndarray, "batches rows length"]
    segments: Int[np.ndarray, "batches rows length"]


def held_out_rows(stream: Stream, batches: int, plan: StepPlan) -> HeldOut:
    """Return the first rows of a stream as so many batches of as many rows as a step has, the last ones empty if need be."""
    tokens, segments = stream.rows(0, batches * plan.rows)
    shape = batches, plan.rows, stream.row_length
    everywhere = np.arange(plan.rows_of_device * plan.mesh)
    return HeldOut(
        take_rows(tokens.reshape(shape), everywhere, stream.padding), take_rows(segments.reshape(shape), everywhere, 0)
    )


class Validation(NamedTuple):
    """How members are validated on masked rows.

    predict: (parameters, masked rows) -> how every slot is predicted. bucket: of every id, one of so many `buckets`.
    rows: of a device, in every batch.
    """

    predict: Callable[[object, MaskedRows], Predicted]
    masking: Masking
    held_out: HeldOut
    bucket: Int[np.ndarray, "vocabulary"]
    buckets: int
    rows: int

    def measure(self, params: object, key: Key[Array, ""]) -> dict[str, Array]:
        r"""Return loss (nats) and accuracy at the masked tokens, over all batches and by bucket.

        key: decides twins and masks, drawn anew in every batch. A mean over nothing is NaN. In bucket b, with slots i of target
        t_i over all devices: count_b = sum_i [bucket(t_i) = b], loss_b = sum_i [bucket(t_i) = b] nats_i / count_b.
        """
        first = jax.lax.axis_index(DATA) * self.rows

        def sums(batch: tuple[Array, Array, Array]) -> Float[Array, "3 buckets"]:
            """Return by bucket the number of targets, their nats, and how many are predicted right."""
            number, *leaves = batch
            tokens, segments = (jax.lax.dynamic_slice_in_dim(leaf, first, self.rows) for leaf in leaves)
            rows = first + jnp.arange(self.rows)
            masked = self.masking.visit(tokens, segments, rows, jax.random.fold_in(key, number))
            predicted = self.predict(params, masked)
            of_slot = jnp.stack([masked.weight, masked.weight * predicted.cross_entropy, masked.weight * predicted.correct])
            return of_slot @ jax.nn.one_hot(jnp.asarray(self.bucket)[masked.target], self.buckets)

        batches = jnp.arange(len(self.held_out.tokens)), *(jnp.asarray(leaf) for leaf in self.held_out)
        count, nats, right = total(jnp.sum(jax.lax.map(sums, batches), axis=0))
        return {
            "loss": jnp.sum(nats) / jnp.sum(count),
            "accuracy": jnp.sum(right) / jnp.sum(count),
            "bucket_loss": nats / count,
            "bucket_accuracy": right / count,
            "bucket_count": count,
        }
