"""Masking on the device: twins and masks drawn again at every visit of a row.

First words are replaced by their twins, then tokens are masked; the targets are the tokens after the replacement. Every row has
its own random key, so that a batch is the same on any number of devices.
Source: Bertolotti and Cazzola, ICML 2024, large-scale experiments; masking as in BERT.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Key, UInt32
from scipy import special

from tiejax.text.twins import Twins

MASKED = 0.15
BY_MASK, BY_RANDOM = 0.8, 0.1


class MaskedRows(NamedTuple):
    """A batch of rows whose masked tokens are listed in a fixed number of slots.

    slot: positions in the flattened rows. weight: 1 for used slots, else 0. target: the token before masking.
    overflow: number of masked tokens without a slot, which have no loss.
    """

    tokens: Int[Array, "rows length"]
    segments: Int[Array, "rows length"]
    row: Int[Array, " rows"]
    slot: Int[Array, " slots"]
    target: Int[Array, " slots"]
    weight: Float[Array, " slots"]
    overflow: Int[Array, ""]


def below(bits: UInt32[Array, "..."], probability: Any) -> Bool[Array, "..."]:
    """Return where random numbers in [0, 1), from the first 24 of 32 random bits, are below a probability."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24 < probability


def slots_for(places: int | float, variance: int | float = 0, most: int | None = None) -> int:
    """Return a number of slots that a batch exceeds with probability below 10^-12.

    places, variance: mean and variance over batches of the number of tokens that can be masked. most: its maximum.
    """
    highest = math.ceil(places + 7 * math.sqrt(variance))
    highest = highest if most is None else min(highest, most)
    return min(highest, math.ceil(special.bdtrik(1 - 1e-12, highest, MASKED)) + 1) if highest else 0


@dataclasses.dataclass(frozen=True)
class Masking:
    """The random replacement of words by their twins, and of tokens by the mask.

    special: tokens that are never masked. mask: the id of the mask token. slots: number of slots of a batch.
    whole_sentences: replace all tokens of a sentence by twins or none (see `twins.cipher`); random tokens then come from both
    languages.
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
        row: Integer[Array, " rows"],
        key: Key[Array, ""],
    ) -> MaskedRows:
        """Draw twins and masks for rows. row: index of each row in the whole batch; with `key` it determines all draws."""
        words = jax.vmap(lambda number: jax.random.bits(jax.random.fold_in(key, number), (4, tokens.shape[1]), jnp.uint32))(row)
        swap, masked, by, bits = jnp.moveaxis(words, 1, 0)
        if self.whole_sentences:  # sentence k takes the draw of position k: a row has fewer sentences than positions
            swap = jnp.take_along_axis(swap, segments.astype(jnp.int32), axis=1)
        twin, probability = (jnp.asarray(table) for table in self.twins.tables())
        original = tokens.astype(jnp.int32)
        target = jnp.where(below(swap, probability[original]), twin[original], original)
        ordinary = jnp.asarray(~np.isin(np.arange(self.twins.vocabulary), self.special))
        asked = below(masked, MASKED) & ordinary[target] & (segments > 0)
        # The remainder favours the first ids, by one part in 2^32 / size.
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
