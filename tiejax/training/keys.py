"""Named streams of randomness: a seed is a name, and every use of it has one of its own."""

import zlib

import jax
from jaxtyping import Array, Key


def stream(key: Key[Array, ""], name: str) -> Key[Array, ""]:
    """Return the stream called `name` of a member's root key, `jax.random.key(seed)`.

    The name itself is folded in, not its place in a list: a stream added later changes none that exists.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
