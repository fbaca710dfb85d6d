"""The seed ensemble: arms of a model and seeds of each arm, trained by one executable.

**Axes.** Members are laid out `[seed, arm]`: every leaf of an `EnsembleState` begins with these two axes. All arms of a seed
start from the same initial values and see the same batches, so that they can be compared in pairs; seeds share nothing. Member
s draws from `jax.random.key(s)` alone, so it is the same member in any company, on any number of devices: seeds are dealt out
over all devices of all processes (`layout.py`), and no device waits for another while it trains. One batch serves all arms of
a seed; arms differ by which ties they have (`arm_ties [arm, tie]`) and when (`phases`).

**Cadence.** The host calls the device once a *chunk* (`chunk.py`, `loop.py`), some seconds of training whose length changes no
result. Within it:

    step     every step       one batch a seed, one update a member
    record   every `every`    a recorder measures all members, before the update of its step and once after the last one
    window   every `window`   what a feed reads on the host for the steps (`windows.py`); a chunk lies within one
    change   where it is due  ties of some arms end or begin before the update of a step (`phases.py`)

A chunk ends before its buffers of records are full or its window is used up. A checkpoint lies between two chunks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying
from tiejax.training.apart import Apart, each, together
from tiejax.training.keys import stream
from tiejax.training.phases import NEVER, Phase, change_ties, phases_on
from tiejax.training.precision import Precision, products_in
from tiejax.training.sharding import gather, leaf_squares
from tiejax.training.step import Loss, TrainState, make_step

PyTree = Any
SeedName = tuple[int, int]  # a seed, and the number of the condition under which it trains


class SeedKey(NamedTuple):
    """What a seed's members are made from: its root key, and the number of the condition under which they train."""

    key: jax.Array
    condition: jax.Array


class EnsembleState(NamedTuple):
    """All members `[seed, arm]`, and the next step to visit: `steps` is visited to record the end, `steps + 1` is finished."""

    state: TrainState
    cursor: jax.Array


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Measure every member at step 0, every `every` steps, and after the last.

    restart: begin to count anew every so many steps, so that records are due at 0, every, 2 every, ... of each such stretch.
    measure: (params, batch of that step, seed_key, step) -> dict of arrays. It sees the state before the step's update, so
    the record of step t follows t updates.
    """

    every: int
    measure: Callable[[PyTree, Any, SeedKey, jax.Array], dict[str, jax.Array]]
    restart: int | None = None

    def due(self, step: Any, ahead: int = 0) -> Any:
        """Return the step of the last record that is due up to this step, or of the one so many records later."""
        if self.restart is None:
            return (step // self.every + ahead) * self.every
        of_stretch = -(-self.restart // self.every)
        number = step // self.restart * of_stretch + step % self.restart // self.every + ahead
        return number // of_stretch * self.restart + number % of_stretch * self.every


@runtime_checkable
class Feed(Protocol):
    """What the host reads for the steps, in windows of so many steps: window w serves those from w * window on."""

    @property
    def window(self) -> int:
        """The steps of a window."""

    def open(self, seeds: Sequence[SeedName], own: range, parts: int, first: int) -> Iterator[PyTree]:
        """Return the windows from `first` on for these seeds, leaves `[seeds, window, rows, ...]` of numpy arrays.

        parts: the rows of each step are split into so many equal parts, of which those with the numbers `own` are wanted.
        """


class DrawAhead(NamedTuple):
    """What is drawn of the batches of many steps at once, where one computation is quicker than many.

    draw: (seed_key, step) -> a tree of arrays, which `sample` is handed for that step. steps: how many are drawn for at a
        time, even where fewer remain.
    """

    draw: Callable[[SeedKey, jax.Array], PyTree]
    steps: int


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """How members are made, trained and measured.

    init: key -> parameters stored in full.
    sample: (seed_key, step, fed) -> batch. fed: what the feed has for this seed and step, or what `draw_ahead` drew for it;
        without either None. Measures are handed None where it was drawn: the batch must be the same.
    loss: (params, batch, key) -> (loss, metrics).
    arm_ties: [arms, resolved ties], which ties each arm has. A tie that is on starts from its source's values.
    phases: when each arm's ties are on (default: from the start to the end); all arms are one executable.
    recorders: by name; their records are kept by that name.
    members: how those of a device are trained: `vmapped` as one computation, as suits the smallest models; `unrolled`, one
        after the other, without at_once or train_steps; or `scanned`, the same compiled once for all, and somewhat slower.
    start_from: the members `[seed, arm]` before their first step, instead of those that `init` makes: already trained ones, or
        arms with different parameters. Ties that are on must hold in it.
    dropout_key: seed_key -> the key of what is dropped (default: the same under every condition, which are so compared in
        pairs).
    at_once: the most seeds that a device trains at a time, a chunk of each block of them after the other (default: all), where
        what a step works on should stay in the cache.
    devices: how many devices train a member together. Batches then hold a device's part of the rows, and losses and
        measures use `sharding.total`.
    xla_options: what XLA is told besides, by the platform that it compiles for (cpu, gpu, tpu).
    precision: of the products of float32 in training; those of measures are always in float32.
    gradient_weights: step -> `[arm, tie, 2]`, how much of the gradient of a tie's source and of its target the shared array
        takes, instead of what the ties say (`tying.symmetrise`).
    train_steps: (keys, members, first, stop) -> the members after the steps from `first` on up to `stop`, where a computation
        does for many steps what `step` does for one. Not with phases, a feed or gradient_weights.
    draw_ahead: what is drawn of batches for many steps at once (default: `sample` makes each by itself). Not with a feed or
        train_steps.

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
    members: Literal["vmapped", "unrolled", "scanned"] = "vmapped"
    at_once: int | None = None
    xla_options: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    devices: int = 1
    phases: Sequence[Phase] | None = None
    start_from: TrainState | None = None
    dropout_key: Callable[[SeedKey], jax.Array] = lambda seed_key: stream(seed_key.key, "dropout")
    precision: Precision = "highest"
    gradient_weights: Callable[[jax.Array], jax.Array] | None = None
    train_steps: Callable[[SeedKey, TrainState, jax.Array, jax.Array], TrainState] | None = None
    draw_ahead: DrawAhead | None = None

    def __post_init__(self) -> None:
        if self.phases is not None and len(self.phases) != len(self.arm_ties):
            raise ValueError(f"phases: {len(self.phases)} do not fit {len(self.arm_ties)} arms")
        if self.phases is not None and (self.arm_ties.any(axis=1) != self.arm_ties.all(axis=1)).any():
            raise ValueError("arm_ties: an arm with phases has all ties or none")
        if self.devices > 1 and any(tie.transform == "transpose" for tie in self.ties):
            raise ValueError("devices: members on several devices are not tied by transposes")
        if self.unrolled and not (self.at_once is self.train_steps is None):
            raise ValueError("members: unrolled ones have neither at_once nor train_steps")
        if self.train_steps is not None and not (self.phases is self.feed is self.gradient_weights is None):
            raise ValueError("train_steps: not with phases, a feed or gradient_weights")
        if self.draw_ahead is not None and not (self.feed is self.train_steps is None):
            raise ValueError("draw_ahead: not with a feed or train_steps")

    @property
    def unrolled(self) -> bool:
        """Whether members train one after the other, as arrays of their own."""
        return self.members == "unrolled"

    @property
    def every_phase(self) -> Sequence[Phase]:
        """The phase of each arm."""
        return [Phase()] * len(self.arm_ties) if self.phases is None else self.phases

    @property
    def change_steps(self) -> list[int]:
        """The steps before whose update a tie of some arm ends or begins."""
        return sorted({step for phase in self.every_phase for step in phase.change_steps})

    def start(self, seeds: Sequence[int]) -> EnsembleState:
        """Return the members of these seeds before their first step."""
        if self.start_from is not None:
            return EnsembleState(self.start_from, jnp.int32(0))
        equal = self.arm_ties & np.array([[phase.starts_equal] for phase in self.every_phase])
        by_use = any(phase.policy == "split" and phase.end < NEVER for phase in self.every_phase)

        def member(key: jax.Array, on: jax.Array) -> TrainState:
            params = self.init(stream(key, "init"))
            params = tying.copy_to_targets(params, params, self.ties, on)
            use_states = self.optimizer.init(tying.only_tied(params, self.ties)) if by_use else None
            return TrainState(params, self.optimizer.init(params), use_states)

        make = jax.vmap(jax.vmap(member, in_axes=(None, 0)), in_axes=(0, None))
        return EnsembleState(jax.jit(make)(seed_keys(seeds).key, jnp.asarray(equal)), jnp.int32(0))

    def check(self, members: EnsembleState) -> None:
        """Compare the leaves with the ties: raise TieError if a tie that is on joins leaves that differ in a bit."""
        last = int(members.cursor) - 1  # a tie that ends or begins at the cursor does so when the next chunk starts
        was_on = [phase.starts_equal if last < 0 else phase.on(last) for phase in self.every_phase]
        for arm, on in enumerate(self.arm_ties & np.array(was_on)[:, None]):
            params = jax.tree.map(lambda leaf, arm=arm: leaf[:, arm], members.state.params)
            equal = tying.equal_leaves(params, self.ties)
            for tie, is_on in zip(tying.resolve(self.ties, params), on, strict=True):
                if is_on and not equal[tie.target]:
                    raise tying.TieError(f"{tie}: the leaves of arm {arm} differ although they are tied")

    def train(self, keys: SeedKey, state: Any, first: jax.Array, stop: jax.Array, fed_at: Callable[[jax.Array], Any]) -> Any:
        """Train every member for the steps from `first` on up to `stop`, as `step` does; fed_at: step -> what is fed."""
        if self.train_steps is not None:
            return self.train_steps(keys, state, first, stop)
        if self.draw_ahead is not None:
            return self._train_drawn(self.draw_ahead, keys, state, first, stop)
        return jax.lax.fori_loop(first, stop, lambda number, now: self.step(keys, now, number, fed_at(number))[0], state)

    def _train_drawn(self, ahead: DrawAhead, keys: SeedKey, state: Any, first: jax.Array, stop: jax.Array) -> Any:
        """Train as `train` does, what is drawn ahead for the next steps being drawn before them."""

        def next_steps(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, cursor = carry
            steps, until = cursor + jnp.arange(ahead.steps, dtype=jnp.int32), jnp.minimum(stop, cursor + ahead.steps)
            drawn = jax.vmap(lambda step: jax.vmap(lambda key: ahead.draw(key, step))(keys))(steps)

            def train_one(number: jax.Array, state: Any) -> Any:
                fed = jax.tree.map(lambda leaf: leaf[number - cursor], drawn)
                return self.step(keys, state, number, fed)[0]

            return jax.lax.fori_loop(cursor, until, train_one, state), until

        return jax.lax.while_loop(lambda carry: carry[1] < stop, next_steps, (state, first))[0]

    def step(
        self, keys: SeedKey, state: TrainState | Apart, number: jax.Array, fed: Any = None
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Train every member `[seed, arm]` for one step: one batch a seed, shared by its arms.

        Members that are handed in as arrays of their own (`apart`), which unrolled ones may be, come back so.
        """

        def loss(params: PyTree, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            return self.loss(self._whole(params), batch, key)

        member_step = make_step(loss, self.optimizer, self.ties, self.max_norm, self._squares)
        on = jnp.asarray(self.arm_ties)
        if self.phases is not None:
            on &= phases_on(self.phases, number)[:, None]
        weights = None if self.gradient_weights is None else self.gradient_weights(number)

        def seed_step(seed_key: SeedKey, arms: Any, fed: Any) -> Any:
            batch = self.sample(seed_key, number, fed)
            dropout_key = jax.random.fold_in(self.dropout_key(seed_key), number)
            return self._each(lambda state, on, weights: member_step(state, batch, dropout_key, on, weights), arms, on, weights)

        with products_in(self.precision):
            trained = self._each(seed_step, keys, state, fed)
        if not self.unrolled:
            return trained
        states, metrics = each(lambda result: result[0], trained), each(lambda result: result[1], trained)
        return states if isinstance(state, list) else together(states), together(metrics)

    def measure(
        self, name: str, keys: SeedKey, state: TrainState | Apart, number: jax.Array, fed: Any = None
    ) -> dict[str, Any]:
        """Apply one recorder to every member; leaves come back `[seed, arm, ...]`."""
        recorder = self.recorders[name]

        def seed_measure(seed_key: SeedKey, arms: Any, fed: Any) -> Any:
            batch = self.sample(seed_key, number, fed)
            return self._each(lambda arm: recorder.measure(self._whole(arm.params), batch, seed_key, number), arms)

        with products_in("highest"):
            measured = self._each(seed_measure, keys, state, fed)
        return together(measured) if self.unrolled else measured

    def change_ties(self, state: TrainState, number: jax.Array) -> TrainState:
        """Return the members with the ties ended and begun that change before this step's update."""
        return change_ties(self.every_phase, self.arm_ties, self.optimizer, self.ties, state, number)

    def longest_chunk(self, cursor: int) -> int:
        """Return the last cursor that one chunk from here may reach: it has room for so many records, and one window."""
        fitting = [recorder.due(cursor, self.records_per_chunk - 1) for recorder in self.recorders.values()]
        until = min([self.steps, *fitting]) + 1
        return until if self.feed is None else min(until, (cursor // self.feed.window + 1) * self.feed.window)

    def _whole(self, params: PyTree) -> PyTree:
        """Return the parameters of a member in full, from what this device holds of them."""
        if self.devices == 1:  # tracing `init` for shapes is not free
            return params
        return gather(params, self._shapes(), self.devices)

    def _squares(self, grads: PyTree) -> PyTree:
        """Return the sum of the squares of each leaf of a member's gradients, from what this device holds of them."""
        if self.devices == 1:
            return tying.leaf_squares(grads)
        return leaf_squares(grads, self._shapes(), self.devices)

    def _shapes(self) -> PyTree:
        """Return the shapes of a member's parameters in full."""
        if self.start_from is None:
            return jax.eval_shape(self.init, jax.random.key(0))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), self.start_from.params)

    def _each(self, function: Callable[..., Any], *members: Any) -> Any:
        """Apply a function to every member of the leading axis, or of a list; return a list where members are unrolled."""
        if self.members == "vmapped":
            return jax.vmap(function)(*members)
        if self.members == "scanned":
            return jax.lax.map(lambda member: function(*member), members)

        def at(part: Any, place: int) -> Any:
            return part[place] if isinstance(part, list) else jax.tree.map(lambda leaf: leaf[place], part)

        number = len(jax.tree.leaves(members[0])[0]) if not isinstance(members[0], list) else len(members[0])
        return [function(*(at(part, place) for part in members)) for place in range(number)]


def seed_keys(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> SeedKey:
    """Return the root keys `jax.random.key(s)` of these seeds, and their conditions (default: 0)."""
    names, numbers = seed_numbers(seeds, conditions)
    return SeedKey(jax.vmap(jax.random.key)(names), jnp.asarray(numbers))


def seed_numbers(seeds: Sequence[int], conditions: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return seeds and conditions as arrays that a device can be handed."""
    return np.asarray(seeds, np.uint32), np.asarray([0] * len(seeds) if conditions is None else conditions, np.int32)


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
