"""Random keys: a root key per seed, and named streams derived from it."""

import collections
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

SeedName = tuple[int, int]  # (seed, number of the condition under which it trains)


class SeedKey(NamedTuple):
    """What the members of a seed draw random numbers from: its key, `jax.random.key(seed)`, and the number of its condition."""

    key: jax.Array
    condition: jax.Array


def stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """Return the stream called `name` of a root key.

    The name itself (for example `init`, `data` or `dropout`) is folded in, not its position in a list, so that a new stream
    does not change the others.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def check_seeds(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> None:
    """Check the seeds of an ensemble; conditions: number of each seed's condition, all 0 by default.

    Raises ValueError if the seeds are not a list of integers from 0 to 2**32 - 1, if there is not one condition per seed, or if
    a seed is repeated under the same condition.
    """
    try:
        array = np.asarray(seeds)
    except (TypeError, ValueError):
        array = np.zeros(())
    # Integers that are too large for numpy's types are objects.
    are_integers = array.dtype.kind in "iu" or (array.dtype == object and all(isinstance(one, int) for one in array.flat))
    if array.ndim != 1 or not array.size or not are_integers:
        raise ValueError(f"seeds: expected a list of integers, such as range(10), got {repr(seeds)[:80]}")
    names = [int(seed) for seed in array]
    outside = [seed for seed in names if not 0 <= seed < 2**32]
    if outside:
        raise ValueError(f"seeds: expected integers from 0 to 2**32 - 1, got {outside[0]}")
    if conditions is not None and len(conditions) != len(names):
        raise ValueError(f"conditions: {len(conditions)} for {len(names)} seeds; expected one per seed")
    counts = collections.Counter(zip(names, [0] * len(names) if conditions is None else map(int, conditions), strict=True))
    repeated = [seed for (seed, _), count in counts.items() if count > 1]
    if repeated:
        raise ValueError(
            f"seeds: expected distinct seeds, but {repeated[0]} is repeated; its members would be the same ones twice"
        )


def seed_keys(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> SeedKey:
    """Return the root keys `jax.random.key(seed)` of some seeds, stacked as one `SeedKey` of arrays `[seeds]`.

    conditions: number of each seed's condition; all 0 by default.
    """
    names, numbers = seed_numbers(seeds, conditions)
    return SeedKey(jax.vmap(jax.random.key)(names), jnp.asarray(numbers))


def seed_numbers(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return seeds (uint32) and conditions (int32) as numpy arrays `[seeds]`, from which a device makes the keys."""
    return np.asarray(seeds, np.uint32), np.asarray([0] * len(seeds) if conditions is None else conditions, np.int32)
