"""A chunk: some steps of one device's members, with their records, as one computation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tiejax.training.apart import apart, each, together
from tiejax.training.ensemble import Ensemble, EnsembleState, SeedKey
from tiejax.training.phases import NEVER

PyTree = Any


class Buffer(NamedTuple):
    """Room for the records that one recorder makes in a chunk.

    rows: leaves `[records_per_chunk, seed, arm, ...]`. steps: `[records_per_chunk]`, of which each was made. number: how
    many there are.
    """

    rows: PyTree
    steps: jax.Array
    number: jax.Array

    @classmethod
    def empty(cls, shapes: PyTree, size: int) -> "Buffer":
        """Return room for `size` records of these shapes."""
        rows = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), shapes)
        return cls(rows, jnp.zeros(size, jnp.int32), jnp.int32(0))

    def record(self, due: jax.Array, step: jax.Array, measure: Callable[[], PyTree]) -> "Buffer":
        """Return the buffer with one record more, made by `measure`, where it is due."""

        def write(rows: PyTree) -> PyTree:
            return jax.tree.map(lambda all_rows, row: all_rows.at[self.number].set(row), rows, measure())

        rows = jax.lax.cond(due, write, lambda rows: rows, self.rows)
        # Where nothing is due, what is written here is overwritten by the next record.
        return Buffer(rows, self.steps.at[self.number].set(step), self.number + due)


def advance(
    ensemble: Ensemble, numbers: tuple[jax.Array, jax.Array], members: EnsembleState, until: jax.Array, fed: Any
) -> tuple[EnsembleState, dict[str, Buffer]]:
    """Train the members of one device until the cursor is at `until`, recording on the way; return both.

    numbers: seeds and conditions, as `seed_numbers` gives them. fed: the window that serves these steps. Unrolled members are
    arrays of their own here, of leaves `[1, ...]`.
    """
    keys = SeedKey(jax.vmap(jax.random.key)(numbers[0]), numbers[1])
    if ensemble.unrolled:
        members = members._replace(state=each(_without_axis, members.state))

    def fed_at(cursor: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[:, cursor % leaf.shape[1]], fed)

    def buffer(name: str) -> Buffer:
        cursor = members.cursor
        shapes = jax.eval_shape(lambda: ensemble.measure(name, keys, members.state, cursor, fed_at(cursor)))
        return Buffer.empty(shapes, ensemble.records_per_chunk)

    def change_ties(state: PyTree, number: jax.Array) -> PyTree:
        if ensemble.unrolled:
            return apart(ensemble.change_ties(together(state), number))
        return ensemble.change_ties(state, number)

    def segment(carry: tuple[EnsembleState, dict[str, Buffer]]) -> tuple[EnsembleState, dict[str, Buffer]]:
        """Record what is due at the cursor, change ties that change there, and train to the next step of either kind."""
        (state, cursor), buffers = carry
        stop = jnp.minimum(until, ensemble.steps)
        for name, recorder in ensemble.recorders.items():

            def measure(name: str = name) -> PyTree:
                return ensemble.measure(name, keys, state, cursor, fed_at(cursor))

            due = (cursor == recorder.due(cursor)) | (cursor == ensemble.steps)
            buffers = buffers | {name: buffers[name].record(due, cursor, measure)}
            stop = jnp.minimum(stop, recorder.due(cursor, 1))
        if ensemble.change_steps:
            after = jnp.asarray([*ensemble.change_steps, NEVER], jnp.int32)
            stop = jnp.minimum(stop, jnp.min(jnp.where(after > cursor, after, NEVER)))
            # What was recorded of this step came before.
            state = jax.lax.cond(jnp.any(after == cursor), change_ties, lambda state, _: state, state, cursor)
        stop = jnp.where(cursor < ensemble.steps, stop, ensemble.steps + 1)
        state = ensemble.train(keys, state, cursor, jnp.minimum(stop, ensemble.steps), fed_at)
        return EnsembleState(state, stop), buffers

    start = members, {name: buffer(name) for name in ensemble.recorders}
    members, buffers = jax.lax.while_loop(lambda carry: carry[0].cursor < until, segment, start)
    if ensemble.unrolled:
        members = members._replace(state=each(_with_axis, members.state))
    return members, buffers


def _without_axis(member: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], member)


def _with_axis(member: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None], member)
