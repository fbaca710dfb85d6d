"""Random keys: a root key per seed, and named streams derived from it."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

SeedName = tuple[int, int]  # (seed, number of the condition under which it trains)


class SeedKey(NamedTuple):
    """The root key and condition from which a seed's members draw random numbers.

    Attributes:
        key: the root key, `jax.random.key(seed)`.
        condition: number of the condition under which the seed trains.
    """

    key: jax.Array
    condition: jax.Array


def stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """Return the stream called `name` of a root key.

    The name itself is folded in, not its position in a list, so that a new stream does not change the others.

    Args:
        key: a seed's root key, `jax.random.key(seed)`.
        name: for example `init`, `data` or `dropout`.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def seed_keys(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> SeedKey:
    """Return the root keys `jax.random.key(seed)` of some seeds, stacked as one `SeedKey` of arrays `[seeds]`.

    Args:
        seeds: numbers below 2**32.
        conditions: number of each seed's condition; all 0 by default.
    """
    names, numbers = seed_numbers(seeds, conditions)
    return SeedKey(jax.vmap(jax.random.key)(names), jnp.asarray(numbers))


def seed_numbers(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return seeds (uint32) and conditions (int32) as numpy arrays `[seeds]`, from which a device makes the keys."""
    return np.asarray(seeds, np.uint32), np.asarray([0] * len(seeds) if conditions is None else conditions, np.int32)
