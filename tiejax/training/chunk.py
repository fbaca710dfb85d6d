"""A chunk: several steps of all members with their records, compiled as one computation for all devices of all processes."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tiejax.training import cluster
from tiejax.training.ensemble import Ensemble
from tiejax.training.keys import SeedKey, seed_numbers
from tiejax.training.members import EnsembleState, join_members, join_on_host, split_members
from tiejax.training.phases import NEVER
from tiejax.training.placement import SEEDS, Layout
from tiejax.training.records import Records
from tiejax.training.sources import Feed, FeedWindows

PyTree = Any

# Wider vectors than XLA prefers on CPUs make these short loops a quarter faster.
XLA_OPTIONS: Mapping[str, Mapping[str, str]] = {"cpu": {"xla_cpu_prefer_vector_width": "512"}}


class Buffer(NamedTuple):
    """Buffer for the records that one recorder makes in a chunk.

    rows: leaves `[records_per_chunk, seed, arm, ...]`. steps: the step of each record. number: number of filled rows.
    """

    rows: PyTree
    steps: jax.Array
    number: jax.Array

    def record(self, due: jax.Array, step: jax.Array, measure: Callable[[], PyTree]) -> "Buffer":
        """Return the buffer with the result of `measure` appended if `due` is true."""

        def write(rows: PyTree) -> PyTree:
            return jax.tree.map(lambda all_rows, row: all_rows.at[self.number].set(row), rows, measure())

        rows = jax.lax.cond(due, write, lambda rows: rows, self.rows)
        # If no record is due, the step that is written here is overwritten by the next record's.
        return Buffer(rows, self.steps.at[self.number].set(step), self.number + due)


def advance(
    ensemble: Ensemble, numbers: tuple[jax.Array, jax.Array], members: EnsembleState, until: jax.Array, fed: Any
) -> tuple[EnsembleState, dict[str, Buffer]]:
    """Train the members of one device until the cursor is `until`; return them, and a buffer with the records due per recorder.

    numbers: as from `seed_numbers`. members: `[seed, arm, ...]`; unrolled ones are split, with leaves `[1, ...]`. fed: the
    feed's window for these steps; None without a feed.
    """
    keys = SeedKey(jax.vmap(jax.random.key)(numbers[0]), numbers[1])
    if ensemble.unrolled:
        members = _mapped(lambda leaf: leaf[0], members)

    def fed_at(cursor: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[:, cursor % leaf.shape[1]], fed)

    # Jitted, so that the shapes of records and the records themselves share one trace.
    measures = {name: jax.jit(functools.partial(ensemble.measure, name), inline=True) for name in ensemble.recorders}

    def buffer(name: str) -> Buffer:
        shapes = jax.eval_shape(measures[name], keys, members.state, members.cursor, fed_at(members.cursor))
        _check_record(name, shapes)
        size = ensemble.records_per_chunk
        rows = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), shapes)
        return Buffer(rows, jnp.zeros(size, jnp.int32), jnp.int32(0))

    def change_ties(state: PyTree, number: jax.Array) -> PyTree:
        if ensemble.unrolled:
            return split_members(ensemble.change_ties(join_members(state), number))
        return ensemble.change_ties(state, number)

    def segment(carry: tuple[EnsembleState, dict[str, Buffer]]) -> tuple[EnsembleState, dict[str, Buffer]]:
        """Make the records and changes of ties due at the cursor, and train up to the next step at which any are due."""
        (state, cursor), buffers = carry
        stop = jnp.minimum(until, ensemble.steps)
        for name, recorder in ensemble.recorders.items():

            def measure(name: str = name) -> PyTree:
                return measures[name](keys, state, cursor, fed_at(cursor))

            due = (cursor == recorder.due(cursor)) | (cursor == ensemble.steps)
            buffers = buffers | {name: buffers[name].record(due, cursor, measure)}
            stop = jnp.minimum(stop, recorder.due(cursor, 1))
        if ensemble.change_steps:
            after = jnp.asarray([*ensemble.change_steps, NEVER], jnp.int32)
            stop = jnp.minimum(stop, jnp.min(jnp.where(after > cursor, after, NEVER)))
            # Ties change after the records of this step.
            state = jax.lax.cond(jnp.any(after == cursor), change_ties, lambda state, _: state, state, cursor)
        stop = jnp.where(cursor < ensemble.steps, stop, ensemble.steps + 1)
        state = ensemble.train(keys, state, cursor, jnp.minimum(stop, ensemble.steps), fed_at)
        return EnsembleState(state, stop), buffers

    start = members, {name: buffer(name) for name in ensemble.recorders}
    members, buffers = jax.lax.while_loop(lambda carry: carry[0].cursor < until, segment, start)
    if ensemble.unrolled:
        members = _mapped(lambda leaf: leaf[None], members)
    return members, buffers


def _check_record(name: str, shapes: Any) -> None:
    """Raise ValueError unless a record is a dictionary of arrays that files can hold."""
    if not isinstance(shapes, Mapping) or not all(hasattr(field, "dtype") for field in shapes.values()):
        raise ValueError(f"recorders: {name}: expected a dictionary of arrays, got {jax.tree.structure(shapes)!s:.120}")
    if "step" in shapes:
        raise ValueError(f"recorders: {name}: 'step' is the number of the step in every record; give the field another name")
    for field, shape in shapes.items():
        if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.extended):
            raise ValueError(
                f"recorders: {name}: {field} is {shape.dtype}, which cannot be stored; give its jax.random.key_data"
            )


def _mapped(function: Callable[[jax.Array], jax.Array], members: EnsembleState) -> EnsembleState:
    """Apply a function to every leaf of split members."""
    return members._replace(state=jax.tree.map(function, members.state))


@dataclasses.dataclass(frozen=True)
class Runner:
    """The compiled chunk of an ensemble, `executable`, and what it runs on.

    layout: of the ensemble's seeds on the devices. numbers: seeds and conditions, on the devices. windows: of the ensemble's
    feed; None without a feed.
    """

    ensemble: Ensemble
    layout: Layout
    numbers: PyTree
    executable: Any
    windows: FeedWindows | None

    def to_devices(self, members: EnsembleState) -> EnsembleState:
        """Put members `[seed, arm, ...]` of the host on the devices."""
        return self.layout.place_members(members, self.ensemble.unrolled)

    def to_host(self, placed: EnsembleState) -> EnsembleState:
        """Collect members from all devices of all processes as numpy arrays `[seed, arm, ...]`, the form of checkpoints."""
        state, cursor = cluster.collect(placed)
        state = join_on_host(state) if self.ensemble.unrolled else state
        return EnsembleState(jax.tree.map(lambda leaf: leaf[: self.layout.seeds], state), cursor)

    def advance(self, placed: EnsembleState, until: int) -> tuple[EnsembleState, Records, float]:
        """Train placed members, whose arrays are donated, until the cursor is `until`.

        Returns the members on the devices, the chunk's records, and the seconds during which the devices worked. Raises
        ValueError if `until` is not beyond the cursor, or is beyond `longest_chunk`.
        """
        cursor = int(placed.cursor)
        if not cursor < until <= self.ensemble.longest_chunk(cursor):
            raise ValueError(f"until: a chunk from {cursor} cannot reach {until}; see Ensemble.longest_chunk")
        fed = self.windows.at(cursor) if self.windows else None
        began = time.perf_counter()
        placed, buffers = self.executable(self.numbers, placed, jnp.int32(until), fed)
        dispatched = time.perf_counter()
        if self.windows and until <= self.ensemble.steps:
            self.windows.read_ahead(until)
        numbers = [buffer.number for buffer in buffers.values()]
        # If the devices finish while the host reads the next window, the moment is unknown: all of the reading counts as idle
        # time.
        waited = bool(numbers and numbers[0].is_ready())
        jax.block_until_ready(numbers)
        worked = (dispatched if waited else time.perf_counter()) - began
        return placed, self._records(cluster.collect(buffers)), worked

    def _records(self, buffers: dict[str, Buffer]) -> Records:
        records: dict[str, dict[str, np.ndarray]] = {}
        for name, buffer in buffers.items():
            fields = {field: rows[: buffer.number, : self.layout.seeds] for field, rows in buffer.rows.items()}
            # Sorted, as a checkpoint returns them.
            records[name] = dict(sorted({**fields, "step": buffer.steps[: buffer.number]}.items()))
        return records


# The arguments of a chunk on the devices: seed numbers, members, cursor to reach, window.
Arguments = tuple[PyTree, EnsembleState, jax.Array, PyTree]


def compile_ensemble(
    ensemble: Ensemble, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None = None
) -> Runner:
    """Compile the chunk of an ensemble for all devices; the cursor to reach is given at run time.

    The ensemble keeps what is compiled, so that more seeds of it, as many at a time, train without another compilation.

    members: those of the seeds, from `Ensemble.start` or a checkpoint. conditions: number of each seed's condition; all 0 by
    default.
    """
    layout, windows, arguments = _place(ensemble, seeds, members, conditions)
    leaves, structure = jax.tree.flatten(arguments)
    program = layout, structure, tuple(map(jax.typeof, leaves))
    if program not in ensemble.programs:
        platform = jax.default_backend()
        options = {**XLA_OPTIONS.get(platform, {}), **ensemble.xla_options.get(platform, {})}
        ensemble.programs[program] = _trace(ensemble, layout, arguments).lower().compile(options or None)
    return Runner(ensemble, layout, arguments[0], ensemble.programs[program], windows)


def trace_ensemble(
    ensemble: Ensemble, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None = None
) -> Any:
    """Return the traced chunk (`jax.stages.Traced`), to be lowered for any platform; arguments as in `compile_ensemble`."""
    layout, _, arguments = _place(ensemble, seeds, members, conditions)
    return _trace(ensemble, layout, arguments)


def _place(
    ensemble: Ensemble, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None
) -> tuple[Layout, FeedWindows | None, Arguments]:
    for path, leaf in jax.tree.leaves_with_path(members.state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise ValueError(
                f"{jax.tree_util.keystr(path)} of the members is {leaf.dtype}, which cannot be stored; use a key of raw bits, "
                "as jax.random.PRNGKey returns"
            )
    layout = Layout.over_all_devices(len(seeds), ensemble.devices, ensemble.members.at_once)
    numbers, windows = seed_numbers(seeds, conditions), None
    if isinstance(ensemble.source, Feed):
        windows = FeedWindows(ensemble.source, layout, list(zip(*(part.tolist() for part in numbers), strict=True)))
    fed = windows.at(int(members.cursor)) if windows else None
    placed = layout.place_members(members, ensemble.unrolled)
    return layout, windows, (layout.place(numbers), placed, jnp.int32(0), fed)


def _trace(ensemble: Ensemble, layout: Layout, arguments: Arguments) -> Any:
    by_seed, everywhere = PartitionSpec(SEEDS), PartitionSpec()
    state_spec = jax.tree.map(lambda leaf: leaf.sharding.spec, arguments[1].state)
    placed_spec = EnsembleState(state_spec, everywhere)  # type: ignore[arg-type]
    buffer_spec = Buffer(PartitionSpec(None, SEEDS), everywhere, everywhere)  # type: ignore[arg-type]
    chunk = jax.shard_map(
        functools.partial(_advance_blocks, ensemble, layout.blocks),
        mesh=layout.mesh,
        in_specs=(by_seed, placed_spec, everywhere, layout.fed_spec),
        out_specs=(placed_spec, dict.fromkeys(ensemble.recorders, buffer_spec)),
        check_vma=False,
    )
    return jax.jit(chunk, donate_argnums=1).trace(*arguments)


def _advance_blocks(
    ensemble: Ensemble, blocks: int, numbers: PyTree, members: EnsembleState, until: jax.Array, fed: PyTree
) -> tuple[EnsembleState, dict[str, Buffer]]:
    """Train the members of one device as `advance` does, in `blocks` blocks of seeds one after the other."""
    if blocks == 1:
        return advance(ensemble, numbers, members, until, fed)

    def split(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(blocks, -1, *leaf.shape[1:])

    def joined(leaf: jax.Array, axis: int) -> jax.Array:
        """Merge the block axis of `[blocks, ..., seeds of a block, ...]` into the seed axis, which becomes axis `axis`."""
        whole = jnp.moveaxis(leaf, 0, axis)
        return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])

    def train(block: PyTree) -> tuple[EnsembleState, dict[str, Buffer]]:
        block_numbers, state, block_fed = block
        return advance(ensemble, block_numbers, EnsembleState(state, members.cursor), until, block_fed)

    (state, cursors), buffers = jax.lax.map(train, jax.tree.map(split, (numbers, members.state, fed)))
    trained = EnsembleState(jax.tree.map(lambda leaf: joined(leaf, 0), state), cursors[0])
    return trained, {
        name: Buffer(jax.tree.map(lambda leaf: joined(leaf, 1), buffer.rows), buffer.steps[0], buffer.number[0])
        for name, buffer in buffers.items()
    }
