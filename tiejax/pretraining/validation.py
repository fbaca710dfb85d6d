"""Validation on held-out rows: loss and accuracy of masked tokens, in total and by bucket of token frequency."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer, Key

from tiejax.pretraining.loss import Predicted
from tiejax.pretraining.step_plan import StepPlan
from tiejax.text.masking import MaskedRows, Masking
from tiejax.text.packing import Stream
from tiejax.training.placement import DATA, total


class HeldOut(NamedTuple):
    """The fixed batches for validation; `rows` is a multiple of the number of devices of a member.

    Rows are stored without padding, since they can be a whole split: row r of a batch is
    `ids[starts[batch, r] :][:lengths[batch, r]]`, likewise its segments. length: of a row with padding, the token `padding`.
    """

    ids: Integer[np.ndarray, " tokens"]
    segments: Integer[np.ndarray, " tokens"]
    starts: Int[np.ndarray, "batches rows"]
    lengths: Int[np.ndarray, "batches rows"]
    length: int
    padding: int

    def batch(
        self, number: Int[Array, ""], first: Int[Array, ""] | int, rows: int
    ) -> tuple[Integer[Array, "rows length"], Integer[Array, "rows length"]]:
        """Return tokens and segments of `rows` rows of batch `number`, starting at row `first`."""
        starts, lengths = (
            jax.lax.dynamic_slice_in_dim(jnp.asarray(leaf)[number], first, rows)[:, None]
            for leaf in (self.starts, self.lengths)
        )
        within = jnp.arange(self.length)
        tokens, segments = (jnp.asarray(leaf).at[starts + within].get(mode="clip") for leaf in (self.ids, self.segments))
        filled = within < lengths
        return jnp.where(filled, tokens, self.padding), jnp.where(filled, segments, 0)


def batches_of_epoch(stream: Stream, plan: StepPlan) -> int:
    """Return the number of batches of `plan.rows` rows in the first epoch of a stream."""
    return -(-(len(stream.packing(0).starts) - 1) // plan.rows)


def held_out_rows(stream: Stream, batches: int, plan: StepPlan) -> HeldOut:
    """Return the first rows of a stream as `batches` batches of `plan.rows` rows, padded with empty rows for the devices."""
    ids, segments = [], []
    lengths = np.zeros((batches, plan.rows_of_device * plan.mesh), np.int32)
    for number in range(batches):  # one batch at a time, since a whole split with padding may not fit into memory
        tokens, row_segments = stream.rows(number * plan.rows, plan.rows)
        filled = row_segments > 0
        ids.append(tokens[filled])
        segments.append(row_segments[filled])
        lengths[number, : plan.rows] = filled.sum(axis=1)
    starts = np.cumsum(lengths) - lengths.ravel()
    if starts[-1] >= 2**31:
        raise ValueError(
            f"validation_batches: {starts[-1]:,} tokens are too many for one validation, expected fewer than {2**31:,}; "
            "use fewer batches"
        )
    starts = starts.astype(np.int32).reshape(lengths.shape)
    return HeldOut(np.concatenate(ids), np.concatenate(segments), starts, lengths, stream.row_length, stream.padding)


class Validation(NamedTuple):
    """Validation of members on masked rows.

    predict: (parameters, masked rows) -> predictions of all slots. bucket: of every id, out of `buckets`. rows: of a batch on
    one device.
    """

    predict: Callable[[object, MaskedRows], Predicted]
    masking: Masking
    held_out: HeldOut
    bucket: Int[np.ndarray, " vocabulary"]
    buckets: int
    rows: int

    def measure(self, params: object, key: Key[Array, ""]) -> dict[str, Array]:
        r"""Return loss (nats) and accuracy at the masked tokens, over all batches and by bucket.

        key: random key of the twins and masks, drawn independently in every batch. For bucket b and slots i with target t_i,
        over all devices: count_b = sum_i [bucket(t_i) = b], loss_b = sum_i [bucket(t_i) = b] nats_i / count_b. The mean of an
        empty bucket is NaN.
        """
        first = jax.lax.axis_index(DATA) * self.rows

        def sums(number: Int[Array, ""]) -> Float[Array, "3 buckets"]:
            """Return for each bucket the number of targets, their total loss in nats, and the number of correct predictions."""
            tokens, segments = self.held_out.batch(number, first, self.rows)
            rows = first + jnp.arange(self.rows)
            masked = self.masking.visit(tokens, segments, rows, jax.random.fold_in(key, number))
            predicted = self.predict(params, masked)
            slot_values = jnp.stack([masked.weight, masked.weight * predicted.cross_entropy, masked.weight * predicted.correct])
            return slot_values @ jax.nn.one_hot(jnp.asarray(self.bucket)[masked.target], self.buckets)

        batches = jnp.arange(len(self.held_out.starts))
        count, nats, right = total(jnp.sum(jax.lax.map(sums, batches), axis=0))
        return {
            "loss": jnp.sum(nats) / jnp.sum(count),
            "accuracy": jnp.sum(right) / jnp.sum(count),
            "bucket_loss": nats / count,
            "bucket_accuracy": right / count,
            "bucket_count": count,
        }
