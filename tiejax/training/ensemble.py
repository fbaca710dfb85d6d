"""The seed ensemble: several arms of a model, several seeds of each arm, trained by one executable.

**Axes.** Members are laid out `[seed, arm]`: every leaf of an `EnsembleState` begins with these two axes. (Metrics are
`[arm, seed, record]`; `by_arm` transposes.) All arms of a seed start from the same initial values and see the same batches, so
that arms can be compared in pairs; seeds share nothing. The members of seed s draw from `jax.random.key(s)` alone, so they
do not depend on which other seeds are trained, or on the number of devices. Seeds are distributed over all devices of all
processes (`placement.py`), which do not wait for one another during training. One batch serves all arms of a seed. Arms
differ in which ties they have (`arm_ties [arm, tie]`) and when (`phases`).

**Cadence.** The host calls the devices once per *chunk* (`chunk.py`, `loop.py`): a few seconds of training, whose length does
not affect results. Within a chunk:

    step     every step       one batch per seed, one update per member
    record   every `every`    a recorder measures all members before the update of its step, and once after the last update
    window   every `window`   a feed reads data on the host (`sources.py`); a chunk lies within one window
    change   at its step      ties of some arms end or begin before the update of a step (`phases.py`)

A chunk ends before its record buffers are full and before its window ends. Checkpoints are written between chunks.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying
from tiejax.training.choices import Precision
from tiejax.training.keys import SeedKey, seed_keys, stream
from tiejax.training.members import EnsembleState, Scanned, SplitMembers, Unrolled, Vmapped, join_members, map_split
from tiejax.training.phases import NEVER, Phase, change_ties, phases_on
from tiejax.training.placement import gather, leaf_squares
from tiejax.training.sources import DrawAhead, Feed
from tiejax.training.step import Loss, TrainState, check_norm, make_step, products_in
from tiejax.tying.tie import apply_transform, leaves_by_path
from tiejax.tying.ties import check_links

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A measurement of every member at step 0, every `every` steps, and after the last step.

    Attributes:
        every: steps between records.
        measure: (params, batch of the step, seed_key, step) -> dict of arrays. It sees the state before the step's update, so
            the record of step t follows t updates.
        restart: restart the count of steps every `restart` steps, so that within each such stretch, records are due after
            0, every, 2 every, ... steps. By default, the count never restarts.
    """

    every: int
    measure: Callable[[PyTree, Any, SeedKey, jax.Array], dict[str, jax.Array]]
    restart: int | None = None

    def due(self, step: Any, ahead: int = 0) -> Any:
        """Return the latest record step <= `step`, advanced by `ahead` records."""
        if self.restart is None:
            return (step // self.every + ahead) * self.every
        records_per_stretch = -(-self.restart // self.every)
        number = step // self.restart * records_per_stretch + step % self.restart // self.every + ahead
        return number // records_per_stretch * self.restart + number % records_per_stretch * self.every


def _are_close(tie: tying.Tie, params: PyTree, rtol: float) -> bool:
    leaves = leaves_by_path(params)[0]
    source, target = (np.asarray(leaf, float) for leaf in (apply_transform(tie, leaves[tie.source]), leaves[tie.target]))
    return np.allclose(source, target, rtol=0, atol=rtol * np.abs(target).max(initial=0))


def _checked(arm_ties: Any) -> np.ndarray:
    """Return `arm_ties` as an array; raises ValueError if it is not boolean, `[arm, tie]`."""
    expected = "arm_ties: expected booleans [arm, tie], such as [[False], [True]] for two arms and one tie, got"
    try:
        array = np.array(arm_ties)  # a copy: the caller may change it
    except ValueError:  # rows of different lengths
        raise ValueError(f"{expected} {repr(arm_ties)[:80]}") from None
    if array.ndim != 2 or not len(array) or array.dtype != bool:
        raise ValueError(f"{expected} {array.dtype} of shape {array.shape}")
    return array


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """How members are initialised, trained and measured.

    Attributes:
        init: key -> parameters, with both leaves of every tie.
        sample: (seed_key, step, fed) -> batch. `fed` is the source's data for this seed and step, None without a source;
            for recorders, it is also None if the source is a `DrawAhead`.
        loss: (params, batch, key) -> (loss, metrics).
        optimizer: any element-wise optax transformation.
        ties: the tie or ties of some or all arms.
        arm_ties: booleans `[arm, resolved tie]`: the ties of each arm, or `[arm, 1]` for all ties together. A tie that is on
            starts from its source's values.
        steps: number of training steps.
        recorders: name -> recorder; records are returned under the same name.
        max_norm: clip gradients to this global norm, in which a tied pair counts once; None does not clip.
        records_per_chunk: capacity of a chunk's buffer for one recorder.
        source: where a step's data comes from: a `Feed` or a `DrawAhead`; by default `sample` makes each batch by itself.
        members: how a device trains its members: `Vmapped`, `Scanned` or `Unrolled`.
        xla_options: compiler options by platform (cpu, gpu, tpu), in addition to `chunk.XLA_OPTIONS`.
        devices: number of devices that train one member together. If there are several, a batch is a device's part of the
            rows, and losses and measures use `placement.total`.
        phases: when the ties of each arm are on; from the first step to the last by default.
        dropout_key: seed_key -> dropout key; by default the same under every condition, so that conditions can be compared
            in pairs.
        first_step: the step of a longer training that is counted as 0 here, for the random keys of dropout.
        precision: precision of float32 matrix products in training; recorders compute them in float32.
        gradient_weights: step -> `[arm, tie, 2]`: the weights of the gradients of a tie's source and target in the shared
            gradient, instead of the weights of the ties (`tying.symmetrise`).

    Raises:
        ValueError: if fields contradict each other.
    """

    init: Callable[[jax.Array], PyTree]
    sample: Callable[[SeedKey, jax.Array, Any], Any]
    loss: Loss
    optimizer: optax.GradientTransformation
    ties: tying.TiesLike
    arm_ties: np.ndarray
    steps: int
    recorders: Mapping[str, Recorder]
    max_norm: float | None = None
    records_per_chunk: int = 64
    source: Feed | DrawAhead | None = None
    members: Vmapped | Scanned | Unrolled = dataclasses.field(default_factory=Vmapped)
    xla_options: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    devices: int = 1
    phases: Sequence[Phase] | None = None
    dropout_key: Callable[[SeedKey], jax.Array] = lambda seed_key: stream(seed_key.key, "dropout")
    first_step: int = 0
    precision: Precision = "highest"
    gradient_weights: Callable[[jax.Array], jax.Array] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ties", tying.as_ties(self.ties))
        object.__setattr__(self, "arm_ties", _checked(self.arm_ties))
        if self.phases is not None and len(self.phases) != len(self.arm_ties):
            raise ValueError(f"phases: {len(self.phases)} for {len(self.arm_ties)} arms; expected one per arm")
        if self.phases is not None and (self.arm_ties.any(axis=1) != self.arm_ties.all(axis=1)).any():
            raise ValueError("arm_ties: an arm with phases must have all ties or none")
        if self.steps < 0 or self.records_per_chunk < 1:
            raise ValueError(f"expected steps >= 0 and records_per_chunk >= 1, got {self.steps} and {self.records_per_chunk}")
        if self.max_norm is not None:
            object.__setattr__(self, "max_norm", float(self.max_norm))
            check_norm(self.max_norm)
        object.__setattr__(self, "steps", operator.index(self.steps))
        if self.source is not None:
            name = "steps" if isinstance(self.source, DrawAhead) else "window"
            if (number := getattr(self.source, name)) < 1:
                raise ValueError(f"source: expected {name} >= 1, got {number}")
        for name, recorder in self.recorders.items():
            if recorder.every < 1 or (recorder.restart is not None and recorder.restart < 1):
                raise ValueError(
                    f"recorders: {name}: expected every and restart >= 1, got {recorder.every}, {recorder.restart}"
                )
        if self.devices > 1 and not all(tying.keeps_places(tie.transform) for tie in tying.as_ties(self.ties)):
            raise ValueError("devices: ties that move entries, such as a transpose, need one device per member")

    @property
    def unrolled(self) -> bool:
        """Whether a device trains its members one after the other, as separate arrays."""
        return isinstance(self.members, Unrolled)

    @functools.cached_property
    def resolved(self) -> tying.Ties:
        """The resolved ties, without tracing `init` if there are none."""
        return tying.resolve_full(self.ties, self._shapes) if self.ties else tying.Ties()

    @functools.cached_property
    def programs(self) -> dict[Any, Any]:
        """The chunks compiled so far, by what `compile_ensemble` compiled them for."""
        return {}

    @property
    def every_phase(self) -> Sequence[Phase]:
        """The phase of each arm; by default, its ties are on at all steps."""
        return [Phase()] * len(self.arm_ties) if self.phases is None else self.phases

    @property
    def change_steps(self) -> list[int]:
        """The steps before whose update a tie of some arm ends or begins."""
        return sorted({step for phase in self.every_phase for step in phase.change_steps})

    def start(self, seeds: Sequence[int]) -> EnsembleState:
        """Return the members of these seeds before their first step; ValueError or TieError if ties and arms do not fit."""
        number = len(self.resolved)
        if self.arm_ties.shape[1] not in (1, number):
            raise ValueError(
                f"arm_ties: expected one column for each of the {number} resolved ties, or one for all, got "
                f"{self.arm_ties.shape[1]}"
            )
        if number > 1 and self.arm_ties.shape[1] > 1:
            for row in self.arm_ties:
                check_links(row, self.ties, leaves_by_path(self._shapes)[0], "arm_ties")
        equal = self.arm_ties & np.array([[phase.starts_equal] for phase in self.every_phase])
        return EnsembleState(self._make(seed_keys(seeds).key, jnp.asarray(equal)), jnp.int32(0))

    @functools.cached_property
    def _make(self) -> Callable[[jax.Array, jax.Array], TrainState]:
        """(keys `[seed]`, booleans `[arm, tie]`) -> members; leaves of ties that are on have their source's values."""
        by_use = any(phase.policy == "split" and phase.end < NEVER for phase in self.every_phase)

        def member(key: jax.Array, on: jax.Array) -> TrainState:
            params = self.init(stream(key, "init"))
            params = tying.copy_to_targets(params, params, self.resolved, on)
            use_states = self.optimizer.init(tying.only_tied(params, self.ties)) if by_use else None
            return TrainState(params, self.optimizer.init(params), use_states)

        return jax.jit(jax.vmap(jax.vmap(member, in_axes=(None, 0)), in_axes=(0, None)))

    def check(self, members: EnsembleState, rtol: float = 0) -> None:
        """Raise tying.TieError unless the leaves of every tie that is on are equal, up to `rtol` of their largest value.

        Members before the first step, which may be those of another ensemble, need equal leaves of ties that are on at it.
        """
        last = max(0, int(members.cursor) - 1)  # ties that change at the cursor's step change when the next chunk starts
        was_on = [phase.on(last) for phase in self.every_phase]
        params = jax.device_get(members.state.params)
        for arm, on in enumerate(self.arm_ties & np.array(was_on)[:, None]):
            for seed in range(len(jax.tree.leaves(params)[0])):
                member = jax.tree.map(lambda leaf, at=(seed, arm): leaf[at], params)
                equal, resolved = tying.equal_leaves(member, self.ties), tying.resolve(self.ties, member)
                for tie, is_on in zip(resolved, np.broadcast_to(on, len(resolved)), strict=True):
                    if is_on and not (equal[tie.target] or (rtol and _are_close(tie, member, rtol))):
                        raise tying.TieError(f"{tie}: the leaves of arm {arm} differ although they are tied")

    def train(self, keys: SeedKey, state: Any, first: jax.Array, stop: jax.Array, fed_at: Callable[[jax.Array], Any]) -> Any:
        """Return all members, in the form of `state`, after the steps first, ..., stop - 1, each as in `step`.

        fed_at: step -> the feed's data `[seed, ...]` for the step, None without a feed.
        """
        if isinstance(self.source, DrawAhead):
            return self._train_drawn(self.source, keys, state, first, stop)
        return jax.lax.fori_loop(first, stop, lambda number, now: self.step(keys, now, number, fed_at(number))[0], state)

    def _train_drawn(self, ahead: DrawAhead, keys: SeedKey, state: Any, first: jax.Array, stop: jax.Array) -> Any:
        """Train as `train` does, alternating between drawing for `ahead.steps` steps and training for them."""

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
        self, keys: SeedKey, state: TrainState | SplitMembers, number: jax.Array, fed: Any = None
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Train all members for one step, on one batch per seed, shared by its arms.

        keys: of the seeds. state: members `[seed, arm, ...]`; unrolled ones may be split. number: the step. fed: the source's
        data `[seed, ...]` for it. Returns the members, in the form of `state`, and the metrics `[seed, arm]` of the loss.
        """

        def loss(params: PyTree, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            return self.loss(self._whole(params), batch, key)

        member_step = make_step(loss, self.optimizer, self.resolved, self.max_norm, self._squares)
        on = jnp.asarray(self.arm_ties)
        if self.phases is not None:
            on &= phases_on(self.phases, number)[:, None]
        weights = None if self.gradient_weights is None else self.gradient_weights(number)

        def seed_step(seed_key: SeedKey, arms: Any, fed: tuple[Any]) -> Any:
            batch = self.sample(seed_key, number, *fed)
            dropout_key = jax.random.fold_in(self.dropout_key(seed_key), self.first_step + number)

            def arm_step(state: TrainState, on: Any, weights: Any) -> tuple[TrainState, dict[str, jax.Array]]:
                return member_step(state, batch, dropout_key, on, weights)

            return self.members.map(arm_step, arms, on, weights)

        with products_in(self.precision):
            trained = self.members.map(seed_step, keys, state, (fed,))  # in a tuple: a list would count as split members
        if not self.unrolled:
            return trained
        states, metrics = map_split(lambda result: result[0], trained), map_split(lambda result: result[1], trained)
        return states if isinstance(state, list) else join_members(states), join_members(metrics)

    def measure(
        self, name: str, keys: SeedKey, state: TrainState | SplitMembers, number: jax.Array, fed: Any = None
    ) -> Mapping[str, Any]:
        """Apply the recorder `name` to all members; arguments as in `step`, returned leaves are `[seed, arm, ...]`."""
        recorder = self.recorders[name]

        def seed_measure(seed_key: SeedKey, arms: Any, fed: tuple[Any]) -> Any:
            batch = self.sample(seed_key, number, *fed)
            return self.members.map(lambda arm: recorder.measure(self._whole(arm.params), batch, seed_key, number), arms)

        with products_in("highest"):
            measured = self.members.map(seed_measure, keys, state, (fed,))
        return join_members(measured) if self.unrolled else measured

    def change_ties(self, state: TrainState, number: jax.Array) -> TrainState:
        """Return the members after ending and beginning the ties that change before this step's update."""
        return change_ties(self.every_phase, self.arm_ties, self.optimizer, self.ties, state, number)

    def longest_chunk(self, cursor: int) -> int:
        """Return the last cursor that a chunk from `cursor` can reach, limited by record buffers and the feed's window."""
        # A recorder that is not due at the cursor leaves its buffer for the records after it.
        fitting = [
            recorder.due(cursor, self.records_per_chunk - (recorder.due(cursor) == cursor))
            for recorder in self.recorders.values()
        ]
        until = min([self.steps, *fitting]) + 1
        if not isinstance(self.source, Feed):
            return until
        return min(until, (cursor // self.source.window + 1) * self.source.window)

    def _whole(self, params: PyTree) -> PyTree:
        """Return the whole parameters of a member from this device's parts."""
        if self.devices == 1:  # skips tracing `init` for the shapes
            return params
        return gather(params, self._shapes, self.devices)

    def _squares(self, grads: PyTree) -> PyTree:
        """Return the sum of squares of each leaf of a member's gradients from this device's parts."""
        if self.devices == 1:
            return tying.leaf_squares(grads)
        return leaf_squares(grads, self._shapes, self.devices)

    @functools.cached_property
    def _shapes(self) -> PyTree:
        """Return the shapes of a member's whole parameters."""
        return jax.eval_shape(self.init, jax.random.key(0))
