"""Masking: rows of tokens with twins and masks drawn afresh at every visit, on the device.

In this order: a word is replaced by its twin, then tokens are masked; targets are the replaced tokens. Every row has a
key of its own, so that a batch is the same on any number of devices.
Source: Bertolotti and Cazzola, ICML 2024, large-scale experiments; masking as in BERT.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Key, UInt32
from scipy import stats

from tiejax.text.twins import Twins

MASKED = 0.15
BY_MASK, BY_RANDOM = 0.8, 0.1


class MaskedRows(NamedTuple):
    """A batch of rows, with their masked places in a fixed number of slots.

    slot: places in the flattened rows. weight: 1 for a slot that is used, else 0. target: the token that was there.
    overflow: masked tokens beyond the last slot, which nothing is asked of.
    """

    tokens: Int[Array, "rows length"]
    segments: Int[Array, "rows length"]
    row: Int[Array, "rows"]
    slot: Int[Array, "slots"]
    target: Int[Array, "slots"]
    weight: Float[Array, "slots"]
    overflow: Int[Array, ""]


def below(bits: UInt32[Array, "..."], probability: Any) -> Bool[Array, "..."]:
    """Say where 32 random bits fall below a probability, to 2^-24."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24 < probability


def slots_for(places: int | float, variance: int | float = 0, most: int | None = None) -> int:
    """Return how many slots hold the masked ones of so many places: more are masked less often than once in 10^12 batches.

    places, variance: mean and variance of the number of places that can be masked, from batch to batch. most: there are.
    """
    highest = math.ceil(places + 7 * math.sqrt(variance))
    highest = highest if most is None else min(highest, most)
    return min(highest, int(stats.binom.isf(1e-12, highest, MASKED)) + 1)


@dataclasses.dataclass(frozen=True)
class Masking:
    """How twins and masks are written into rows.

    special: tokens that are never masked. mask: the token that stands for a masked one. slots: of one batch.
    whole_sentences: a sentence is written in twins as a whole, or not at all (`text.cipher`); tokens drawn at random are
    then of either language.
    """

    twins: Twins
    special: tuple[int, ...]
    mask: int
    slots: int
    whole_sentences: bool = False

    def visit(
        self,
        tokens: Integer[Array, "rows length"],
        segments: Integer[Array, "rows length"],
        row: Integer[Array, "rows"],
        key: Key[Array, ""],
    ) -> MaskedRows:
        """Return one visit of the rows. row: their numbers in the batch, which with the key decide every draw."""
        words = jax.vmap(lambda number: jax.random.bits(jax.random.fold_in(key, number), (4, tokens.shape[1]), jnp.uint32))(row)
        swap, masked, by, bits = jnp.moveaxis(words, 1, 0)
        if self.whole_sentences:  # a row has no more sentences than places: the draw of place k is that of sentence k
            swap = jnp.take_along_axis(swap, segments.astype(jnp.int32), axis=1)
        twin, probability = (jnp.asarray(table) for table in self.twins.tables())
        original = tokens.astype(jnp.int32)
        target = jnp.where(below(swap, probability[original]), twin[original], original)
        ordinary = jnp.asarray(~np.isin(np.arange(self.twins.vocabulary), self.special))
        asked = below(masked, MASKED) & ordinary[target] & (segments > 0)
        # The remainder prefers the first ids by one part in 2^32 / size.
        ids = self.twins.vocabulary if self.whole_sentences else self.twins.size
        random = (bits % ids).astype(jnp.int32)
        shown = jnp.where(below(by, BY_MASK), self.mask, jnp.where(below(by, BY_MASK + BY_RANDOM), random, target))
        number = jnp.sum(asked)
        slot = jnp.nonzero(asked.ravel(), size=self.slots, fill_value=0)[0].astype(jnp.int32)
        used = jnp.arange(self.slots) < number
        return MaskedRows(
            jnp.where(asked, shown, target),
            segments.astype(jnp.int32),
            row.astype(jnp.int32),
            slot,
            target.ravel()[slot],
            used.astype(jnp.float32),
            jnp.maximum(number - self.slots, 0),
        )
