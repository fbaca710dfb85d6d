"""The seed ensemble: variants of a model and seeds of each variant, trained by one executable.

Members are laid out [seed, variant]. All variants of a seed start from the same initial values and see the same batches, so
that they can be compared in pairs; seeds share nothing. Member s draws from `jax.random.key(s)` alone, so it is the
same member in any company, on any number of devices: seeds are dealt out over all devices of all processes, and no device
waits for another while it trains.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from tiejax import tying
from tiejax.training import cluster
from tiejax.training.keys import stream
from tiejax.training.step import Loss, TrainState, make_step

AXIS = "seeds"

PyTree = Any
Records = dict[str, dict[str, np.ndarray]]


class Subject(NamedTuple):
    """Whom a seed's members belong to: the seed's root key, and the number of the condition under which they train."""

    key: jax.Array
    condition: jax.Array


class Members(NamedTuple):
    """All members, and the next step to visit: `steps` is visited to record the end, `steps + 1` means finished."""

    state: TrainState
    cursor: jax.Array


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Measure every member at step 0, every `every` steps, and after the last.

    measure: (params, batch of that step, subject, step) -> dict of arrays. It sees the state before the step's update, so
    the record of step t follows t updates.
    """

    every: int
    measure: Callable[[PyTree, Any, Subject, jax.Array], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """How members are made, trained and measured.

    init: key -> parameters stored in full.
    draw: (subject, step) -> batch.
    loss: (params, batch, key) -> (loss, metrics).
    switches: [variants, resolved ties], which ties each variant has on. A tie that is on starts from its source's values.
    recorders: by name; their records are kept by that name.

    Where seeds are compiled for, `conditions` may number the condition of each (default: 0); a seed may then occur once a
    condition.
    """

    init: Callable[[jax.Array], PyTree]
    draw: Callable[[Subject, jax.Array], Any]
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
        return Members(jax.jit(make)(subjects(seeds).key, jnp.asarray(self.switches)), jnp.int32(0))

    def check(self, members: Members) -> None:
        """Compare the leaves with the ties: raise TieError if a tie that is on joins leaves that differ in a bit."""
        for variant, on in enumerate(self.switches):
            params = jax.tree.map(lambda leaf, variant=variant: leaf[:, variant], members.state.params)
            equal = tying.equal_leaves(params, self.ties)
            for tie, is_on in zip(tying.resolve(self.ties, params), on, strict=True):
                if is_on and not equal[tie.target]:
                    raise tying.TieError(f"{tie}: the leaves of variant {variant} differ although they are tied")

    def step(self, whom: Subject, state: TrainState, number: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        """Train every member for one step: one batch a seed, shared by its variants."""
        one = make_step(self.loss, self.optimizer, self.ties, self.max_norm)

        def seed_step(subject: Subject, variants: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
            batch = self.draw(subject, number)
            dropout_key = jax.random.fold_in(stream(subject.key, "dropout"), number)
            on = jnp.asarray(self.switches)
            return jax.vmap(one, in_axes=(0, None, None, 0))(variants, batch, dropout_key, on)

        return jax.vmap(seed_step)(whom, state)

    def measure(self, name: str, whom: Subject, state: TrainState, number: jax.Array) -> dict[str, jax.Array]:
        """Apply one recorder to every member; leaves come back [seed, variant, ...]."""
        recorder = self.recorders[name]

        def seed_measure(subject: Subject, variants: TrainState) -> dict[str, jax.Array]:
            batch = self.draw(subject, number)
            return jax.vmap(lambda params: recorder.measure(params, batch, subject, number))(variants.params)

        return jax.vmap(seed_measure)(whom, state)

    def longest_chunk(self, cursor: int) -> int:
        """Return the last cursor that one chunk from here may reach without more records than it has room for."""
        densest = min(recorder.every for recorder in self.recorders.values())
        return min(self.steps + 1, (cursor // densest + self.records_per_chunk - 1) * densest + 1)

    def compile(self, seeds: Sequence[int], members: Members, conditions: Sequence[int] | None = None) -> "Runner":
        """Compile the chunk for all devices: train up to a cursor given at run time, recording on the way."""
        mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
        layout = _Layout(mesh, len(seeds))
        whom = layout.place(_numbers(seeds, conditions))
        placed = layout.place_members(members)
        split, whole = PartitionSpec(AXIS), PartitionSpec()
        held = Members(split, whole)  # type: ignore[arg-type]
        advance = jax.shard_map(
            self._advance,
            mesh=mesh,
            in_specs=(split, held, whole),
            out_specs=(held, PartitionSpec(None, AXIS), whole, whole),
            check_vma=False,
        )
        # Wider vectors than XLA prefers for CPUs: a quarter faster for these short loops.
        options: dict[str, str | bool] | None = (
            {"xla_cpu_prefer_vector_width": "512"} if jax.default_backend() == "cpu" else None
        )
        executable = jax.jit(advance, donate_argnums=1).lower(whom, placed, jnp.int32(0)).compile(options)
        return Runner(self, layout, whom, executable)

    def _advance(
        self, whom: tuple[jax.Array, jax.Array], members: Members, until: jax.Array
    ) -> tuple[Members, PyTree, dict[str, jax.Array], dict[str, jax.Array]]:
        """Train the members of one device; return them with rooms for records, their steps, and how many there are."""
        subjects = Subject(jax.vmap(jax.random.key)(whom[0]), whom[1])

        def room(name: str) -> PyTree:
            shapes = jax.eval_shape(lambda: self.measure(name, subjects, members.state, members.cursor))
            return jax.tree.map(lambda leaf: jnp.zeros((self.records_per_chunk, *leaf.shape), leaf.dtype), shapes)

        def segment(carry: tuple[Members, PyTree, PyTree, PyTree]) -> tuple[Members, PyTree, PyTree, PyTree]:
            (state, cursor), rooms, steps, counts = carry
            stop = jnp.minimum(until, self.steps)
            for name, recorder in self.recorders.items():

                def write(rows: PyTree, name: str = name, count: jax.Array = counts[name]) -> PyTree:
                    row = self.measure(name, subjects, state, cursor)
                    return jax.tree.map(lambda all_rows, one: all_rows.at[count].set(one), rows, row)

                due = (cursor % recorder.every == 0) | (cursor == self.steps)
                rooms = rooms | {name: jax.lax.cond(due, write, lambda rows: rows, rooms[name])}
                # Where nothing is due, what is written here is overwritten by the next record.
                steps = steps | {name: steps[name].at[counts[name]].set(cursor)}
                counts = counts | {name: counts[name] + due}
                stop = jnp.minimum(stop, (cursor // recorder.every + 1) * recorder.every)
            stop = jnp.where(cursor < self.steps, stop, self.steps + 1)
            state = jax.lax.fori_loop(
                cursor, jnp.minimum(stop, self.steps), lambda number, state: self.step(subjects, state, number)[0], state
            )
            return Members(state, stop), rooms, steps, counts

        rooms = {name: room(name) for name in self.recorders}
        steps = {name: jnp.zeros(self.records_per_chunk, jnp.int32) for name in self.recorders}
        counts = {name: jnp.int32(0) for name in self.recorders}
        start = members, rooms, steps, counts
        return jax.lax.while_loop(lambda carry: carry[0].cursor < until, segment, start)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Seeds over the devices of a mesh: padded to a multiple of their number by copies of the last, which nobody reads."""

    mesh: jax.sharding.Mesh
    seeds: int

    def place(self, tree: PyTree) -> PyTree:
        """Deal the first axis of every leaf out over the devices."""
        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))

        def put(leaf: Any) -> jax.Array:
            host = np.asarray(leaf)
            padded = np.concatenate([host, np.repeat(host[-1:], -len(host) % self.mesh.size, axis=0)])
            return jax.make_array_from_callback(padded.shape, sharding, lambda index: padded[index])

        return jax.tree.map(put, tree)

    def place_members(self, members: Members) -> Members:
        whole = NamedSharding(self.mesh, PartitionSpec())
        cursor = np.asarray(members.cursor, np.int32)
        return Members(
            self.place(members.state), jax.make_array_from_callback(cursor.shape, whole, lambda index: cursor[index])
        )


@dataclasses.dataclass(frozen=True)
class Runner:
    """The compiled chunk of an ensemble. Members are handed in and out as arrays of this process, in their seeds' order."""

    ensemble: Ensemble
    layout: _Layout
    whom: PyTree
    executable: Any

    def place(self, members: Members) -> Members:
        """Deal members out over the devices."""
        return self.layout.place_members(members)

    def fetch(self, placed: Members) -> Members:
        """Collect members from all devices of all processes, as numpy arrays: what a checkpoint holds."""
        state, cursor = cluster.collect(placed)
        return Members(jax.tree.map(lambda leaf: leaf[: self.layout.seeds], state), cursor)

    def advance(self, placed: Members, until: int) -> tuple[Members, Records]:
        """Train placed members up to `until`; return them, still placed, and the records made on the way.

        The arrays handed in are used up. Raises ValueError if `until` lies beyond `longest_chunk` or is no progress.
        """
        cursor = int(placed.cursor)
        if not cursor < until <= self.ensemble.longest_chunk(cursor):
            raise ValueError(f"a chunk from {cursor} cannot reach {until}")
        placed, rooms, steps, counts = self.executable(self.whom, placed, jnp.int32(until))
        rooms, steps, counts = cluster.collect((rooms, steps, counts))
        records = Records()
        for name, fields in rooms.items():
            kept = {field: rows[: counts[name], : self.layout.seeds] for field, rows in fields.items()}
            # In the order in which a checkpoint gives them back.
            records[name] = dict(sorted({**kept, "step": steps[name][: counts[name]]}.items()))
        return placed, records


def _numbers(seeds: Sequence[int], conditions: Sequence[int] | None) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(seeds, np.uint32), np.asarray([0] * len(seeds) if conditions is None else conditions, np.int32)


def subjects(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> Subject:
    """Return the subjects of these seeds: root keys `jax.random.key(s)`, and conditions (default: 0)."""
    names, numbers = _numbers(seeds, conditions)
    return Subject(jax.vmap(jax.random.key)(names), jnp.asarray(numbers))
