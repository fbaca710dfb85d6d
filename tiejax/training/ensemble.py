"""The seed ensemble: arms of a model and seeds of each arm, trained by one executable.

EnsembleState are laid out [seed, arm]. All arms of a seed start from the same initial values and see the same batches, so
that they can be compared in pairs; seeds share nothing. Member s draws from `jax.random.key(s)` alone, so it is the
same member in any company, on any number of devices: seeds are dealt out over all devices of all processes, and no device
waits for another while it trains.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from tiejax import tying
from tiejax.training import cluster
from tiejax.training.keys import stream
from tiejax.training.phases import NEVER, Phase, change_ties
from tiejax.training.phases import on as phases_on
from tiejax.training.sharding import DATA, gather, spec
from tiejax.training.step import Loss, TrainState, make_step

AXIS = "seeds"

PyTree = Any
Records = dict[str, dict[str, np.ndarray]]


class SeedKey(NamedTuple):
    """Whom a seed's members belong to: the seed's root key, and the number of the condition under which they train."""

    key: jax.Array
    condition: jax.Array


class EnsembleState(NamedTuple):
    """All members, and the next step to visit: `steps` is visited to record the end, `steps + 1` means finished."""

    state: TrainState
    cursor: jax.Array


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Measure every member at step 0, every `every` steps, and after the last.

    measure: (params, batch of that step, seed_key, step) -> dict of arrays. It sees the state before the step's update, so
    the record of step t follows t updates.
    """

    every: int
    measure: Callable[[PyTree, Any, SeedKey, jax.Array], dict[str, jax.Array]]


@runtime_checkable
class Feed(Protocol):
    """What the host reads for the steps, in windows of so many steps: window w serves those from w * window on."""

    @property
    def window(self) -> int:
        """The steps of a window."""

    def open(self, seeds: Sequence[int], own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Return the windows from `first` on for these seeds, leaves `[seeds, window, rows, ...]` of numpy arrays.

        parts: the rows of each step are split into so many equal parts, of which those with the numbers `own` are wanted.
        """


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """How members are made, trained and measured.

    init: key -> parameters stored in full.
    draw: (seed_key, step, fed) -> batch. fed: what the feed has for this seed and step, None without a feed.
    loss: (params, batch, key) -> (loss, metrics).
    arm_ties: [arms, resolved ties], which ties each arm has. A tie that is on starts from its source's values.
    phases: when each arm's ties are on (default: from the start to the end); all arms are one executable.
    recorders: by name; their records are kept by that name.
    vmap_members: train the members of a device as one vmapped computation, as suits small models; otherwise one after the other,
        which takes longer to compile.
    devices: how many devices train a member together. Batches then hold a device's part of the rows, and losses and
        measures use `sharding.total`.

    Where seeds are compiled for, `conditions` may number the condition of each (default: 0); a seed may then occur once a
    condition.
    """

    init: Callable[[jax.Array], PyTree]
    sample: Callable[[SeedKey, jax.Array, Any], Any]
    loss: Loss
    optimizer: optax.GradientTransformation
    ties: Sequence[tying.Tie]
    arm_ties: np.ndarray
    steps: int
    recorders: Mapping[str, Recorder]
    max_norm: float | None = None
    records_per_chunk: int = 64
    feed: Feed | None = None
    vmap_members: bool = True
    devices: int = 1
    phases: Sequence[Phase] | None = None

    def __post_init__(self) -> None:
        if self.phases is not None and len(self.phases) != len(self.arm_ties):
            raise ValueError(f"{len(self.phases)} phases do not fit {len(self.arm_ties)} arms")
        if self.phases is not None and (self.arm_ties.any(axis=1) != self.arm_ties.all(axis=1)).any():
            raise ValueError("an arm with phases has all ties or none")
        if self.devices > 1 and (self.max_norm is not None or any(tie.transform == "transpose" for tie in self.ties)):
            raise ValueError("members on several devices are neither clipped nor tied by transposes")

    def start(self, seeds: Sequence[int]) -> EnsembleState:
        """Return the members of these seeds before their first step."""

        equal = self.arm_ties & np.array([[phase.starts_equal] for phase in self._phases])
        by_use = any(phase.policy == "split" and phase.end < NEVER for phase in self._phases)

        def member(key: jax.Array, on: jax.Array) -> TrainState:
            params = self.init(stream(key, "init"))
            params = tying.copy_to_targets(params, params, self.ties, on)
            use_states = self.optimizer.init(tying.only_tied(params, self.ties)) if by_use else None
            return TrainState(params, self.optimizer.init(params), use_states)

        make = jax.vmap(jax.vmap(member, in_axes=(None, 0)), in_axes=(0, None))
        return EnsembleState(jax.jit(make)(seed_keys(seeds).key, jnp.asarray(equal)), jnp.int32(0))

    @property
    def _phases(self) -> Sequence[Phase]:
        return [Phase()] * len(self.arm_ties) if self.phases is None else self.phases

    @property
    def _change_steps(self) -> list[int]:
        """The steps before whose update a tie of some arm ends or begins."""
        return sorted({step for phase in self._phases for step in phase.change_steps})

    def check(self, members: EnsembleState) -> None:
        """Compare the leaves with the ties: raise TieError if a tie that is on joins leaves that differ in a bit."""
        last = int(members.cursor) - 1  # a tie that ends or begins at the cursor does so when the next chunk starts
        was_on = [phase.starts_equal if last < 0 else phase.on(last) for phase in self._phases]
        for arm, on in enumerate(self.arm_ties & np.array(was_on)[:, None]):
            params = jax.tree.map(lambda leaf, arm=arm: leaf[:, arm], members.state.params)
            equal = tying.equal_leaves(params, self.ties)
            for tie, is_on in zip(tying.resolve(self.ties, params), on, strict=True):
                if is_on and not equal[tie.target]:
                    raise tying.TieError(f"{tie}: the leaves of arm {arm} differ although they are tied")

    def _whole(self, params: PyTree) -> PyTree:
        """Return the parameters of a member in full, from what this device holds of them."""
        if self.devices == 1:  # tracing `init` for shapes is not free
            return params
        return gather(params, jax.eval_shape(self.init, jax.random.key(0)), self.devices)

    def _each(self, one: Callable[..., Any], *members: Any) -> Any:
        """Apply a function to every member of the leading axis."""
        if self.vmap_members:
            return jax.vmap(one)(*members)
        number = len(jax.tree.leaves(members)[0])
        found = [one(*jax.tree.map(lambda leaf, place=place: leaf[place], members)) for place in range(number)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def step(
        self, seed_keys: SeedKey, state: TrainState, number: jax.Array, fed: Any = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Train every member for one step: one batch a seed, shared by its arms."""

        def loss(params: PyTree, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            return self.loss(self._whole(params), batch, key)

        one = make_step(loss, self.optimizer, self.ties, self.max_norm)
        on = jnp.asarray(self.arm_ties)
        if self.phases is not None:
            on &= phases_on(self._phases, number)[:, None]

        def seed_step(seed_key: SeedKey, arms: TrainState, fed: Any) -> tuple[TrainState, dict[str, jax.Array]]:
            batch = self.sample(seed_key, number, fed)
            dropout_key = jax.random.fold_in(stream(seed_key.key, "dropout"), number)
            return self._each(lambda state, on: one(state, batch, dropout_key, on), arms, on)

        return self._each(seed_step, seed_keys, state, fed)

    def measure(
        self, name: str, seed_keys: SeedKey, state: TrainState, number: jax.Array, fed: Any = None
    ) -> dict[str, jax.Array]:
        """Apply one recorder to every member; leaves come back [seed, arm, ...]."""
        recorder = self.recorders[name]

        def seed_measure(seed_key: SeedKey, arms: TrainState, fed: Any) -> dict[str, jax.Array]:
            batch = self.sample(seed_key, number, fed)
            return self._each(lambda params: recorder.measure(self._whole(params), batch, seed_key, number), arms.params)

        return self._each(seed_measure, seed_keys, state, fed)

    def longest_chunk(self, cursor: int) -> int:
        """Return the last cursor that one chunk from here may reach: it has room for so many records, and one window."""
        densest = min(recorder.every for recorder in self.recorders.values())
        until = min(self.steps + 1, (cursor // densest + self.records_per_chunk - 1) * densest + 1)
        return until if self.feed is None else min(until, (cursor // self.feed.window + 1) * self.feed.window)

    def compile(self, seeds: Sequence[int], members: EnsembleState, conditions: Sequence[int] | None = None) -> "Runner":
        """Compile the chunk for all devices: train up to a cursor given at run time, recording on the way."""
        if jax.device_count() % self.devices:
            raise ValueError(f"{jax.device_count()} devices cannot be shared out {self.devices} to a member")
        shape = jax.device_count() // self.devices, self.devices
        mesh = jax.make_mesh(shape, (AXIS, DATA), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        layout = _Layout(mesh, len(seeds))
        numbers = _numbers(seeds, conditions)
        seed_keys = layout.place(numbers)
        windows = None if self.feed is None else _Windows(self.feed, layout, numbers[0].tolist())
        placed, fed = layout.place_members(members), windows.at(int(members.cursor)) if windows else None
        split, whole, state = PartitionSpec(AXIS), PartitionSpec(), layout.specs(members.state)
        held = EnsembleState(state, whole)  # type: ignore[arg-type]
        advance = jax.shard_map(
            self._advance,
            mesh=mesh,
            in_specs=(split, held, whole, layout.fed_spec),
            out_specs=(held, PartitionSpec(None, AXIS), whole, whole),
            check_vma=False,
        )
        # Wider vectors than XLA prefers for CPUs: a quarter faster for these short loops.
        options: dict[str, str | bool] | None = (
            {"xla_cpu_prefer_vector_width": "512"} if jax.default_backend() == "cpu" else None
        )
        executable = jax.jit(advance, donate_argnums=1).lower(seed_keys, placed, jnp.int32(0), fed).compile(options)
        return Runner(self, layout, seed_keys, executable, windows)

    def _change_ties(self, state: TrainState, number: jax.Array) -> TrainState:
        return change_ties(self._phases, self.arm_ties, self.optimizer, self.ties, state, number)

    def _advance(
        self, seed_keys: tuple[jax.Array, jax.Array], members: EnsembleState, until: jax.Array, fed: Any
    ) -> tuple[EnsembleState, PyTree, dict[str, jax.Array], dict[str, jax.Array]]:
        """Train the members of one device; return them with rooms for records, their steps, and how many there are."""
        seed_keys = SeedKey(jax.vmap(jax.random.key)(seed_keys[0]), seed_keys[1])

        def fed_at(cursor: jax.Array) -> Any:
            return jax.tree.map(lambda leaf: leaf[:, cursor % leaf.shape[1]], fed)

        def room(name: str) -> PyTree:
            shapes = jax.eval_shape(
                lambda: self.measure(name, seed_keys, members.state, members.cursor, fed_at(members.cursor))
            )
            return jax.tree.map(lambda leaf: jnp.zeros((self.records_per_chunk, *leaf.shape), leaf.dtype), shapes)

        def segment(carry: tuple[EnsembleState, PyTree, PyTree, PyTree]) -> tuple[EnsembleState, PyTree, PyTree, PyTree]:
            (state, cursor), rooms, steps, counts = carry
            stop = jnp.minimum(until, self.steps)
            for name, recorder in self.recorders.items():

                def write(rows: PyTree, name: str = name, count: jax.Array = counts[name]) -> PyTree:
                    row = self.measure(name, seed_keys, state, cursor, fed_at(cursor))
                    return jax.tree.map(lambda all_rows, one: all_rows.at[count].set(one), rows, row)

                due = (cursor % recorder.every == 0) | (cursor == self.steps)
                rooms = rooms | {name: jax.lax.cond(due, write, lambda rows: rows, rooms[name])}
                # Where nothing is due, what is written here is overwritten by the next record.
                steps = steps | {name: steps[name].at[counts[name]].set(cursor)}
                counts = counts | {name: counts[name] + due}
                stop = jnp.minimum(stop, (cursor // recorder.every + 1) * recorder.every)
            if self._change_steps:
                after = jnp.asarray([*self._change_steps, NEVER], jnp.int32)
                stop = jnp.minimum(stop, jnp.min(jnp.where(after > cursor, after, NEVER)))
                # What was recorded of this step came before.
                state = jax.lax.cond(jnp.any(after == cursor), self._change_ties, lambda state, _: state, state, cursor)
            stop = jnp.where(cursor < self.steps, stop, self.steps + 1)

            def train(number: jax.Array, state: TrainState) -> TrainState:
                return self.step(seed_keys, state, number, fed_at(number))[0]

            state = jax.lax.fori_loop(cursor, jnp.minimum(stop, self.steps), train, state)
            return EnsembleState(state, stop), rooms, steps, counts

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

    fed_spec = PartitionSpec(AXIS, None, DATA)

    @property
    def padded(self) -> int:
        return self.seeds + -self.seeds % self.mesh.shape[AXIS]

    def specs(self, state: PyTree) -> PyTree:
        """Return how each leaf `[seed, arm, ...]` of the members' state lies on the mesh."""
        return jax.tree.map(lambda leaf: PartitionSpec(AXIS, None, *spec(leaf.shape[2:], self.mesh.shape[DATA])), state)

    def place(self, tree: PyTree, specs: PyTree | None = None) -> PyTree:
        """Deal every leaf out over the devices: its first axis (the seeds), and what `specs` say."""

        def put(leaf: Any, how: PartitionSpec) -> jax.Array:
            host = np.asarray(leaf)
            padded = np.concatenate([host, np.repeat(host[-1:], self.padded - self.seeds, axis=0)])
            return jax.make_array_from_callback(padded.shape, NamedSharding(self.mesh, how), lambda index: padded[index])

        return jax.tree.map(put, tree, jax.tree.map(lambda leaf: PartitionSpec(AXIS), tree) if specs is None else specs)

    def place_members(self, members: EnsembleState) -> EnsembleState:
        whole = NamedSharding(self.mesh, PartitionSpec())
        cursor = np.asarray(members.cursor, np.int32)
        return EnsembleState(
            self.place(members.state, self.specs(members.state)),
            jax.make_array_from_callback(cursor.shape, whole, lambda index: cursor[index]),
        )


class _Windows:
    """The windows of a feed as arrays on the devices; the next one is read while the devices work on this one.

    Each process reads the seeds, and the part of the rows, that its own devices train.
    """

    def __init__(self, feed: Feed, layout: _Layout, seeds: list[int]) -> None:
        self._feed, self._sharding = feed, NamedSharding(layout.mesh, layout.fed_spec)
        padded = seeds + seeds[-1:] * (layout.padded - len(seeds))
        self._seeds, parts = len(padded), layout.mesh.shape[DATA]
        places = self._sharding.addressable_devices_indices_map((len(padded), 1, parts)).values()
        mine = [(place[0].indices(len(padded)), place[2].indices(parts)) for place in places if place is not None]
        self._first = min(seed[0] for seed, _ in mine)
        own = padded[self._first : max(seed[1] for seed, _ in mine)]
        lowest, highest = min(part[0] for _, part in mine), max(part[1] for _, part in mine)
        self._parts, self._own = parts, range(lowest, highest)
        self._open = lambda first: feed.open(own, self._own, parts, first)
        self._held: dict[int, PyTree] = {}
        self._source: Iterator[PyTree] | None = None
        self._next = 0  # what the source gives next

    def at(self, cursor: int) -> PyTree:
        """Return the window that serves this step."""
        self.read_ahead(cursor)
        number = cursor // self._feed.window
        # Those before it are done with.
        self._held = {number: self._held[number]}
        return self._held[number]

    def read_ahead(self, cursor: int) -> None:
        """Read the window of this step unless it is there; others are kept."""
        number = cursor // self._feed.window
        if number in self._held:
            return
        if self._source is None or number != self._next:
            self._source = self._open(number)
        self._held[number] = self._placed(next(self._source))
        self._next = number + 1

    def _placed(self, window: PyTree) -> PyTree:
        def put(leaf: np.ndarray) -> jax.Array:
            rows = leaf.shape[2] // len(self._own)
            shape = (self._seeds, leaf.shape[1], rows * self._parts, *leaf.shape[3:])

            def part(index: Any) -> np.ndarray:
                low, high, _ = index[0].indices(shape[0])
                first, last, _ = index[2].indices(shape[2])
                own = slice(first - self._own.start * rows, last - self._own.start * rows)
                return leaf[low - self._first : high - self._first, :, own]

            return jax.make_array_from_callback(shape, self._sharding, part)

        return jax.tree.map(put, window)


@dataclasses.dataclass(frozen=True)
class Runner:
    """The compiled chunk of an ensemble. EnsembleState are handed in and out as arrays of this process, in their seeds' order."""

    ensemble: Ensemble
    layout: _Layout
    seed_keys: PyTree
    executable: Any
    windows: _Windows | None

    def to_devices(self, members: EnsembleState) -> EnsembleState:
        """Deal members out over the devices."""
        return self.layout.place_members(members)

    def to_host(self, placed: EnsembleState) -> EnsembleState:
        """Collect members from all devices of all processes, as numpy arrays: what a checkpoint holds."""
        state, cursor = cluster.collect(placed)
        return EnsembleState(jax.tree.map(lambda leaf: leaf[: self.layout.seeds], state), cursor)

    def advance(self, placed: EnsembleState, until: int) -> tuple[EnsembleState, Records, float]:
        """Train placed members up to `until`; return them, still placed, the records made on the way, and the seconds worked.

        The arrays handed in are used up. Raises ValueError if `until` lies beyond `longest_chunk` or is no progress.
        """
        cursor = int(placed.cursor)
        if not cursor < until <= self.ensemble.longest_chunk(cursor):
            raise ValueError(f"a chunk from {cursor} cannot reach {until}")
        fed = self.windows.at(cursor) if self.windows else None
        began = time.perf_counter()
        placed, rooms, steps, counts = self.executable(self.seed_keys, placed, jnp.int32(until), fed)
        dispatched = time.perf_counter()
        if self.windows and until <= self.ensemble.steps:
            self.windows.read_ahead(until)
        # Were the devices done before the host had read, how long they have waited is not known: all of it is counted.
        waited = bool(counts and next(iter(counts.values())).is_ready())
        jax.block_until_ready(counts)
        worked = (dispatched if waited else time.perf_counter()) - began
        rooms, steps, counts = cluster.collect((rooms, steps, counts))
        records = Records()
        for name, fields in rooms.items():
            kept = {field: rows[: counts[name], : self.layout.seeds] for field, rows in fields.items()}
            # In the order in which a checkpoint gives them back.
            records[name] = dict(sorted({**kept, "step": steps[name][: counts[name]]}.items()))
        return placed, records, worked


def all_finite(tree: PyTree) -> jax.Array:
    """Say whether every number in a tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def by_arm(records: Mapping[str, Mapping[str, np.ndarray]], prefixes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return records `[record, seed, arm, ...]` as `[arm, seed, record, ...]` by prefix and field; steps as they are.

    prefixes: recorder -> what its fields' names begin with; a recorder without records is left out.
    """
    return {
        prefix + field: values if field == "step" else np.moveaxis(values, (2, 1, 0), (0, 1, 2))
        for recorder, prefix in prefixes.items()
        for field, values in records.get(recorder, {}).items()
    }


def _numbers(seeds: Sequence[int], conditions: Sequence[int] | None) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(seeds, np.uint32), np.asarray([0] * len(seeds) if conditions is None else conditions, np.int32)


def seed_keys(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> SeedKey:
    """Return the seed_keys of these seeds: root keys `jax.random.key(s)`, and conditions (default: 0)."""
    names, numbers = _numbers(seeds, conditions)
    return SeedKey(jax.vmap(jax.random.key)(names), jnp.asarray(numbers))
