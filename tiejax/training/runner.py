"""The compiled chunk of an ensemble, for all devices of all processes."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tiejax.training import cluster
from tiejax.training.apart import together_from_host
from tiejax.training.chunk import Buffer, advance
from tiejax.training.ensemble import Ensemble, EnsembleState, seed_numbers
from tiejax.training.kept_records import Records
from tiejax.training.layout import SEEDS, Layout
from tiejax.training.windows import FeedWindows

PyTree = Any

# Wider vectors than XLA prefers for CPUs: a quarter faster for these short loops.
XLA_OPTIONS: Mapping[str, Mapping[str, str]] = {"cpu": {"xla_cpu_prefer_vector_width": "512"}}


@dataclasses.dataclass(frozen=True)
class Runner:
    """The compiled chunk of an ensemble. Members are handed in and out as arrays of this process, in their seeds' order."""

    ensemble: Ensemble
    layout: Layout
    numbers: PyTree
    executable: Any
    windows: FeedWindows | None

    def to_devices(self, members: EnsembleState) -> EnsembleState:
        """Deal members out over the devices."""
        return _placed_members(self.ensemble, self.layout, members)

    def to_host(self, placed: EnsembleState) -> EnsembleState:
        """Collect members from all devices of all processes, as numpy arrays: what a checkpoint holds."""
        state, cursor = cluster.collect(placed)
        state = together_from_host(state) if self.ensemble.unrolled else state
        return EnsembleState(jax.tree.map(lambda leaf: leaf[: self.layout.seeds], state), cursor)

    def advance(self, placed: EnsembleState, until: int) -> tuple[EnsembleState, Records, float]:
        """Train placed members up to `until`; return them, still placed, the records made on the way, and the seconds worked.

        The arrays handed in are used up. Raises ValueError if `until` lies beyond `longest_chunk` or is no progress.
        """
        cursor = int(placed.cursor)
        if not cursor < until <= self.ensemble.longest_chunk(cursor):
            raise ValueError(f"until: a chunk from {cursor} cannot reach {until}")
        fed = self.windows.at(cursor) if self.windows else None
        began = time.perf_counter()
        placed, buffers = self.executable(self.numbers, placed, jnp.int32(until), fed)
        dispatched = time.perf_counter()
        if self.windows and until <= self.ensemble.steps:
            self.windows.read_ahead(until)
        numbers = [buffer.number for buffer in buffers.values()]
        # Were the devices done before the host had read, how long they have waited is not known: all of it is counted.
        waited = bool(numbers and numbers[0].is_ready())
        jax.block_until_ready(numbers)
        worked = (dispatched if waited else time.perf_counter()) - began
        return placed, self._records(cluster.collect(buffers)), worked

    def _records(self, buffers: dict[str, Buffer]) -> Records:
        records: dict[str, dict[str, np.ndarray]] = {}
        for name, buffer in buffers.items():
            fields = {field: rows[: buffer.number, : self.layout.seeds] for field, rows in buffer.rows.items()}
            # In the order in which a checkpoint gives them back.
            records[name] = dict(sorted({**fields, "step": buffer.steps[: buffer.number]}.items()))
        return records


class _Placed(NamedTuple):
    """What the chunk of an ensemble is given, in its place: numbers of the seeds, members, the cursor to reach, what is fed."""

    layout: Layout
    windows: FeedWindows | None
    arguments: tuple[PyTree, EnsembleState, jax.Array, PyTree]


def compile_ensemble(
    ensemble: Ensemble, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None = None
) -> Runner:
    """Compile the chunk for all devices: train up to a cursor given at run time, recording on the way."""
    placed = _place(ensemble, seeds, members, conditions)
    platform = jax.default_backend()
    options = {**XLA_OPTIONS.get(platform, {}), **ensemble.xla_options.get(platform, {})}
    executable = _trace(ensemble, placed).lower().compile(options or None)
    return Runner(ensemble, placed.layout, placed.arguments[0], executable, placed.windows)


def trace_ensemble(
    ensemble: Ensemble, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None = None
) -> Any:
    """Return the chunk as jax has traced it, which can be lowered for platforms that are not here."""
    return _trace(ensemble, _place(ensemble, seeds, members, conditions))


def _place(ensemble: Ensemble, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None) -> _Placed:
    layout = Layout.over_all_devices(len(seeds), ensemble.devices, ensemble.at_once)
    numbers, windows = seed_numbers(seeds, conditions), None
    if ensemble.feed is not None:
        windows = FeedWindows(ensemble.feed, layout, list(zip(*(part.tolist() for part in numbers), strict=True)))
    fed = windows.at(int(members.cursor)) if windows else None
    placed = _placed_members(ensemble, layout, members)
    return _Placed(layout, windows, (layout.place(numbers), placed, jnp.int32(0), fed))


def _placed_members(ensemble: Ensemble, layout: Layout, members: EnsembleState) -> EnsembleState:
    return layout.place_apart(members) if ensemble.unrolled else layout.place_members(members)


def _trace(ensemble: Ensemble, placed: _Placed) -> Any:
    by_seed, everywhere = PartitionSpec(SEEDS), PartitionSpec()
    state_spec = jax.tree.map(lambda leaf: leaf.sharding.spec, placed.arguments[1].state)
    placed_spec = EnsembleState(state_spec, everywhere)  # type: ignore[arg-type]
    buffer_spec = Buffer(PartitionSpec(None, SEEDS), everywhere, everywhere)  # type: ignore[arg-type]
    chunk = jax.shard_map(
        functools.partial(_advance_blocks, ensemble, placed.layout.blocks),
        mesh=placed.layout.mesh,
        in_specs=(by_seed, placed_spec, everywhere, placed.layout.fed_spec),
        out_specs=(placed_spec, dict.fromkeys(ensemble.recorders, buffer_spec)),
        check_vma=False,
    )
    return jax.jit(chunk, donate_argnums=1).trace(*placed.arguments)


def _advance_blocks(
    ensemble: Ensemble, blocks: int, numbers: PyTree, members: EnsembleState, until: jax.Array, fed: PyTree
) -> tuple[EnsembleState, dict[str, Buffer]]:
    """Train the members of one device, so many blocks of its seeds one after the other; arguments as of `advance`."""
    if blocks == 1:
        return advance(ensemble, numbers, members, until, fed)

    def split(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(blocks, -1, *leaf.shape[1:])

    def joined(leaf: jax.Array, axis: int) -> jax.Array:
        """Return `[blocks, ..., seeds of a block, ...]` with the seeds of all blocks along one axis, which is this one then."""
        whole = jnp.moveaxis(leaf, 0, axis)
        return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])

    def train(block: PyTree) -> tuple[EnsembleState, dict[str, Buffer]]:
        of_numbers, state, of_feed = block
        return advance(ensemble, of_numbers, EnsembleState(state, members.cursor), until, of_feed)

    (state, cursors), buffers = jax.lax.map(train, jax.tree.map(split, (numbers, members.state, fed)))
    trained = EnsembleState(jax.tree.map(lambda leaf: joined(leaf, 0), state), cursors[0])
    return trained, {
        name: Buffer(jax.tree.map(lambda leaf: joined(leaf, 1), buffer.rows), buffer.steps[0], buffer.number[0])
        for name, buffer in buffers.items()
    }
