"""Batches of spelled and masked EXor strings, computed on the device as pure functions of keys and step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from tiejax.lab.studies.exor.task import SPLIT_SEED, EXor


class MaskedSequences(NamedTuple):
    """Masked sequences, the position of each mask, and the symbol it replaced."""

    tokens: Int[Array, "batch length"]
    position: Int[Array, " batch"]
    target: Int[Array, " batch"]


def sequences(
    task: EXor,
    rows: Int[np.ndarray, "strings bits"],
    batch_size: int | None,
    data_key: Key[Array, ""],
    order_key: Key[Array, ""],
    step: Int[Array, ""],
) -> MaskedSequences:
    """Return the batch of a step: visits to strings, each of which samples a spelling of each bit and a bit to mask.

    batch_size: strings per batch (default: all strings). Smaller batches run through a sequence of shuffled epochs, so that
    every string is visited equally often; a batch may span two epochs.
    """
    chosen = visited(len(rows), batch_size, order_key, step)
    return visit(task, jnp.asarray(rows)[chosen], jax.random.fold_in(data_key, step))


def visited(number: int, batch_size: int | None, order_key: jax.Array, step: jax.Array) -> jax.Array | np.ndarray:
    """Return the indices of a step's strings: all `number` strings, or the next `batch_size` of shuffled epochs."""
    size = batch_size or number
    if size == number:
        return np.arange(number)
    # start = step * size could overflow int32 in a long run: divide it by the epoch's length in two parts.
    epoch, start = _multiply_divmod(step, size, number)
    two_epochs = jnp.concatenate([jax.random.permutation(jax.random.fold_in(order_key, epoch + k), number) for k in (0, 1)])
    return jax.lax.dynamic_slice(two_epochs, (start,), (size,))


def _multiply_divmod(step: jax.Array, size: int, number: int) -> tuple[jax.Array, jax.Array]:
    """Return divmod(step * size, number) without forming the product, for size < number < 2^16."""
    rest = (step % number).astype(jnp.uint32) * size  # below 2^32
    epoch = step // number * size + (rest // number).astype(jnp.int32)
    return epoch, (rest % number).astype(jnp.int32)


def visit(task: EXor, strings: Int[Array, "batch bits"], key: Key[Array, ""]) -> MaskedSequences:
    """Sample a spelling of every bit, append the parity, and mask one bit, uniform over the bits."""
    spelling_key, mask_key = jax.random.split(key)
    batch, bits = strings.shape
    uniform = jax.random.uniform(spelling_key, (batch, bits), jnp.float32)
    zero = _spell(task.zero, uniform)
    one = len(task.zero) + _spell(task.one, uniform)
    spelled = jnp.where(strings == 0, zero, one)
    parity = jnp.where(strings.sum(1) % 2 == 0, task.even, task.odd)

    position = jax.random.randint(mask_key, (batch,), 0, bits, jnp.int32)
    masked = jnp.arange(bits) == position[:, None]
    target = jnp.sum(jnp.where(masked, spelled, 0), axis=1)
    tokens = jnp.concatenate([jnp.where(masked, task.mask, spelled), parity[:, None]], axis=1)
    return MaskedSequences(tokens.astype(jnp.int32), position, target.astype(jnp.int32))


def _spell(probabilities: tuple[float, ...], uniform: jax.Array) -> jax.Array:
    """Invert the cumulative distribution: spelling k where uniform lies in [c_{k-1}, c_k)."""
    # The last used spelling takes the rest of the unit interval, so that rounding never yields an unused one.
    last = max(k for k, p in enumerate(probabilities) if p > 0)
    cumulative = np.cumsum(probabilities)[:last].astype(np.float32)
    return jnp.sum(uniform[..., None] >= cumulative, axis=-1, dtype=jnp.int32)


def frozen(task: EXor, rows: Int[np.ndarray, "strings bits"]) -> MaskedSequences:
    """Return one visit to every string, with spellings and masks sampled with the published data seed, 14."""
    return visit(task, jnp.asarray(rows), jax.random.key(SPLIT_SEED))
