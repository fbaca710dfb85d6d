"""A stream of tokens in blocks of one length, and batches of them drawn at random.

Source of the blocks: the published code of dynamic layer tying (Hay and Wolf, ICLR 2024).
"""

import numpy as np
from jaxtyping import Integer

from tiejax.text.errors import CorpusError


def blocks(ids: Integer[np.ndarray, "tokens"], context: int, begin: int) -> Integer[np.ndarray, "number context"]:
    """Return the stream in blocks: `begin`, then the next context - 1 tokens; what is left over at the end is dropped.

    Raises CorpusError if there is no whole block.
    """
    if context < 2:
        raise CorpusError(f"context {context}: must be 2 at least, for a begin token and one of the text")
    number = len(ids) // (context - 1)
    if number == 0:
        raise CorpusError(f"context {context}: a stream of the corpus has {len(ids)} tokens, a block takes {context - 1}")
    filled = np.empty((number, context), np.promote_types(ids.dtype, np.min_scalar_type(begin)))
    filled[:, 0] = begin
    filled[:, 1:] = ids[: number * (context - 1)].reshape(number, context - 1)
    return filled


def batch(
    blocks: Integer[np.ndarray, "number context"], batch_size: int, seed: int, group: int, per_group: int, draw: int = 0
) -> Integer[np.ndarray, "per_group batch_size context"]:
    """Return the batches of group number `group`, drawn at random by (seed, group, draw) alone.

    No block comes twice in a draw, unless there are fewer than it takes; draws of one group know nothing of each other.
    """
    wanted = per_group * batch_size
    rng = np.random.default_rng([seed, group, draw] if draw else [seed, group])
    chosen = rng.choice(len(blocks), wanted, replace=wanted > len(blocks))
    return np.asarray(blocks[chosen.reshape(per_group, batch_size)])
