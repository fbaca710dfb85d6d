"""Blocks of equal length cut from a stream of tokens, and random batches of them.

Source of the blocks: the published code of dynamic layer tying (Hay and Wolf, ICLR 2024).
"""

import numpy as np
from jaxtyping import Int, Integer

from tiejax.text.errors import CorpusError


def blocks(ids: Integer[np.ndarray, " tokens"], context: int, begin: int) -> Integer[np.ndarray, "number context"]:
    """Cut a stream into blocks of `context` tokens, each the token `begin` and then the next context - 1 tokens of the stream.

    An incomplete last block is dropped.

    Raises CorpusError if the stream is shorter than one block.
    """
    if context < 2:
        raise CorpusError(f"context {context}: expected at least 2, for the begin token and one token of text")
    number = len(ids) // (context - 1)
    if number == 0:
        raise CorpusError(
            f"context {context}: a stream of the corpus has {len(ids)} tokens, a block needs {context - 1}; "
            "use more text or a smaller context"
        )
    filled = np.empty((number, context), np.promote_types(ids.dtype, np.min_scalar_type(begin)))
    filled[:, 0] = begin
    filled[:, 1:] = ids[: number * (context - 1)].reshape(number, context - 1)
    return filled


def spread(number: int, most: int | None) -> Int[np.ndarray, " chosen"]:
    """Return the places of `most` of `number` blocks, spread evenly; of all blocks if there are no more, or without `most`."""
    return np.arange(number) if most is None or most >= number else np.arange(most) * number // most


def drawn(
    number: int, batch_size: int, seed: int, group: int, per_group: int, draw: int = 0
) -> Int[np.ndarray, "per_group batch_size"]:
    """Return which of `number` blocks are the `per_group` random batches of one group of steps.

    They are determined by (seed, group, draw), and drawn without replacement, unless the group needs more than exist. The draws
    of a group are independent.
    """
    wanted = per_group * batch_size
    rng = np.random.default_rng([seed, group, draw] if draw else [seed, group])
    return rng.choice(number, wanted, replace=wanted > number).reshape(per_group, batch_size)
