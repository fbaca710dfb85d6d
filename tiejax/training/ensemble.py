"""The seed ensemble: variants of a model and seeds of each variant, trained by one executable.

Members are laid out [seed, variant]. All variants of a seed start from the same initial values and see the same batches, so
that they can be compared in pairs; seeds share nothing. Member s draws from `jax.random.key(s)` alone, so it is the
same member in any company.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying
from tiejax.training.keys import stream
from tiejax.training.step import Loss, TrainState, make_step

PyTree = Any
Records = dict[str, dict[str, np.ndarray]]


class Members(NamedTuple):
    """All members, and the next step to visit: `steps` is visited to record the end, `steps + 1` means finished."""

    state: TrainState
    cursor: jax.Array


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Measure every member at step 0, every `every` steps, and after the last.

    measure: (params, batch of that step, root key of the seed, step) -> dict of arrays. It sees the state before the step's
    update, so the record of step t follows t updates.
    """

    every: int
    measure: Callable[[PyTree, Any, jax.Array, jax.Array], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """How members are made, trained and measured.

    init: key -> parameters stored in full.
    draw: (root key of a seed, step) -> batch.
    loss: (params, batch, key) -> (loss, metrics).
    switches: [variants, resolved ties], which ties each variant has on. A tie that is on starts from its source's values.
    recorders: by name; their records are kept by that name.
    """

    init: Callable[[jax.Array], PyTree]
    draw: Callable[[jax.Array, jax.Array], Any]
    loss: Loss
    optimizer: optax.GradientTransformation
    ties: Sequence[tying.Tie]
    switches: np.ndarray
    steps: int
    recorders: Mapping[str, Recorder]
    max_norm: float | None = None
    records_per_chunk: int = 64

    def start(self, seeds: Sequence[int]) -> Members:
        """Return the members of these seeds before their first step."""

        def member(key: jax.Array, on: jax.Array) -> TrainState:
            params = self.init(stream(key, "init"))
            params = tying.copy_to_targets(params, params, self.ties, on)
            return TrainState(params, self.optimizer.init(params))

        make = jax.vmap(jax.vmap(member, in_axes=(None, 0)), in_axes=(0, None))
        return Members(jax.jit(make)(root_keys(seeds), jnp.asarray(self.switches)), jnp.int32(0))

    def check(self, members: Members) -> None:
        """Compare the leaves with the ties: raise TieError if a tie that is on joins leaves that differ in a bit."""
        for variant, on in enumerate(self.switches):
            params = jax.tree.map(lambda leaf, variant=variant: leaf[:, variant], members.state.params)
            equal = tying.equal_leaves(params, self.ties)
            for tie, is_on in zip(tying.resolve(self.ties, params), on, strict=True):
                if is_on and not equal[tie.target]:
                    raise tying.TieError(f"{tie}: the leaves of variant {variant} differ although they are tied")

    def step(self, keys: jax.Array, state: TrainState, number: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        """Train every member for one step: one batch a seed, shared by its variants."""
        one = make_step(self.loss, self.optimizer, self.ties, self.max_norm)

        def seed_step(key: jax.Array, variants: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
            batch = self.draw(key, number)
            dropout_key = jax.random.fold_in(stream(key, "dropout"), number)
            on = jnp.asarray(self.switches)
            return jax.vmap(one, in_axes=(0, None, None, 0))(variants, batch, dropout_key, on)

        return jax.vmap(seed_step)(keys, state)

    def measure(self, name: str, keys: jax.Array, state: TrainState, number: jax.Array) -> dict[str, jax.Array]:
        """Apply one recorder to every member; leaves come back [seed, variant, ...]."""
        recorder = self.recorders[name]

        def seed_measure(key: jax.Array, variants: TrainState) -> dict[str, jax.Array]:
            batch = self.draw(key, number)
            return jax.vmap(lambda params: recorder.measure(params, batch, key, number))(variants.params)

        return jax.vmap(seed_measure)(keys, state)

    def longest_chunk(self, cursor: int) -> int:
        """Return the last cursor that one chunk from here may reach without more records than it has room for."""
        densest = min(recorder.every for recorder in self.recorders.values())
        return min(self.steps + 1, (cursor // densest + self.records_per_chunk - 1) * densest + 1)

    def compile(self, seeds: Sequence[int], members: Members) -> "Advance":
        """Compile the chunk: train up to a cursor that is given at run time, recording on the way."""
        keys = root_keys(seeds)
        jitted = jax.jit(self._advance, donate_argnums=1)
        executable = jitted.lower(keys, members, jnp.int32(0)).compile()

        def advance(members: Members, until: int) -> tuple[Members, Records]:
            if not int(members.cursor) < until <= self.longest_chunk(int(members.cursor)):
                raise ValueError(f"a chunk from {int(members.cursor)} cannot reach {until}")
            members, buffers, counts = executable(keys, members, jnp.int32(until))
            kept = {
                name: {field: np.asarray(rows)[: int(counts[name])] for field, rows in buffers[name].items()}
                for name in buffers
            }
            return members, kept

        return advance

    def _advance(self, keys: jax.Array, members: Members, until: jax.Array) -> tuple[Members, PyTree, PyTree]:
        def measured(name: str, state: TrainState, number: jax.Array) -> dict[str, jax.Array]:
            return {"step": number, **self.measure(name, keys, state, number)}

        def room(name: str) -> PyTree:
            shapes = jax.eval_shape(lambda: measured(name, members.state, members.cursor))
            return jax.tree.map(lambda leaf: jnp.zeros((self.records_per_chunk, *leaf.shape), leaf.dtype), shapes)

        def segment(carry: tuple[Members, PyTree, PyTree]) -> tuple[Members, PyTree, PyTree]:
            (state, cursor), buffers, counts = carry
            stop = jnp.minimum(until, self.steps)
            for name, recorder in self.recorders.items():

                def write(buffer: PyTree, name: str = name, count: jax.Array = counts[name]) -> PyTree:
                    rows = measured(name, state, cursor)
                    return jax.tree.map(lambda all_rows, row: all_rows.at[count].set(row), buffer, rows)

                due = (cursor % recorder.every == 0) | (cursor == self.steps)
                buffers = buffers | {name: jax.lax.cond(due, write, lambda buffer: buffer, buffers[name])}
                counts = counts | {name: counts[name] + due}
                stop = jnp.minimum(stop, (cursor // recorder.every + 1) * recorder.every)
            stop = jnp.where(cursor < self.steps, stop, self.steps + 1)
            state = jax.lax.fori_loop(
                cursor, jnp.minimum(stop, self.steps), lambda number, state: self.step(keys, state, number)[0], state
            )
            return Members(state, stop), buffers, counts

        start = members, {name: room(name) for name in self.recorders}, {name: jnp.int32(0) for name in self.recorders}
        return jax.lax.while_loop(lambda carry: carry[0].cursor < until, segment, start)


Advance = Callable[[Members, int], tuple[Members, Records]]


def root_keys(seeds: Sequence[int]) -> jax.Array:
    """Return `jax.random.key(s)` for each seed s."""
    return jax.vmap(jax.random.key)(jnp.asarray(np.asarray(seeds, dtype=np.uint32)))
