"""Phases: the steps in which the ties of an arm are on, and the changes of optimizer states when ties end or begin."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying
from tiejax.training.step import TrainState

NEVER = 2**31 - 1
LEAVES: dict[str, tying.New] = {"input": "source", "output": "target"}


@dataclasses.dataclass(frozen=True)
class Phase:
    """The steps in which an arm's ties are on: begin <= step < end, or, if end < begin, step < end and step >= begin.

    An arm starts from equal leaves if its ties are on at step 0, or end there (end = 0; begin = end = 0: never tied).

    Attributes:
        begin: first step of the ties.
        end: step before whose update the ties end.
        policy: the change of the optimizer's state at the end (`tying.untie`).
        new: the leaf that leaves the tie at the end: `source` or `target`.
        keep: the values that a tie takes when it begins after step 0 (`tying.retie`).

    Raises:
        ValueError: if a step is negative, or begin = end > 0.
    """

    begin: int = 0
    end: int = NEVER
    policy: tying.Policy = "copy"
    new: tying.New = "target"
    keep: tying.Keep = "mean"

    def __post_init__(self) -> None:
        if self.begin < 0 or self.end < 0 or self.begin == self.end > 0:
            raise ValueError(
                f"begin, end: a tie cannot be on from step {self.begin} until step {self.end}; expected two different steps"
            )

    @property
    def starts_equal(self) -> bool:
        """Whether the arm starts from equal leaves."""
        return self.begin == 0 or self.end < self.begin

    def on(self, step: int) -> bool:
        """Return whether the ties are on in the update of this step."""
        return self.begin <= step < self.end if self.begin <= self.end else step < self.end or step >= self.begin

    @property
    def change_steps(self) -> tuple[int, ...]:
        """The steps before whose update a tie ends or begins."""
        return tuple(step for step in (self.begin, self.end) if 0 < step < NEVER)


def phases_of_arms(
    steps: Sequence[int], last: int, policies: Sequence[str], new: Sequence[str]
) -> tuple[np.ndarray, list[Phase]]:
    """Return `arm_ties [arm, 1]` and phases of arms that untie before the update of a step.

    For each arm, steps: the step before whose update it unties; 0 for never tied, from equal leaves, `last` (the number of
    training steps) for always tied, -1 for never tied, from independent leaves. policies: the policy (`tying.untie`), and new:
    the table that leaves the tie, `input` (the ties' source) or `output` (their target); both `""` for arms that do not change.
    """
    phases = [
        Phase(0, NEVER if step in (-1, last) else int(step), policy or "copy", LEAVES[table or "output"])  # type: ignore[arg-type]
        for step, policy, table in zip(steps, policies, new, strict=True)
    ]
    return np.array([[step >= 0] for step in steps]), phases


def phases_on(phases: Sequence[Phase], step: jax.Array) -> jax.Array:
    """Return `Phase.on` of every arm, `[arm]`, at a traced step."""
    begin, end = (jnp.asarray([getattr(phase, name) for phase in phases], jnp.int32) for name in ("begin", "end"))
    started, going = step >= begin, step < end
    return jnp.where(begin <= end, started & going, started | going)


def change_ties(
    phases: Sequence[Phase],
    arm_ties: np.ndarray,
    optimizer: optax.GradientTransformation,
    ties: tying.TiesLike,
    state: TrainState,
    step: jax.Array,
) -> TrainState:
    """Return the members `[seed, arm, ...]` after the changes of ties that are due before this step's update.

    Every policy in use is computed for all members; arms whose ties end with it at this step take the result.
    """
    has_ties = np.asarray(arm_ties.any(axis=1))

    def chosen(arms: np.ndarray, at: list[int], yes: TrainState, no: TrainState) -> TrainState:
        """Return `yes` for those of `arms` whose step in `at` is the current one, `no` for all other arms."""
        now = jnp.asarray(arms) & (jnp.asarray(at, jnp.int32) == step)

        def pick(changed: jax.Array, unchanged: jax.Array) -> jax.Array:
            return jnp.where(now.reshape(1, -1, *(1,) * (changed.ndim - 2)), changed, unchanged)

        return jax.tree.map(pick, yes, no)

    # `copy` does not change the optimizer's state.
    ends = {(phase.policy, phase.new) for phase in phases if 0 < phase.end < NEVER and phase.policy != "copy"}
    for policy, new in sorted(ends):

        def part(member: TrainState, policy: tying.Policy = policy, new: tying.New = new) -> TrainState:
            return TrainState(*tying.untie_switched(optimizer, *member[:2], ties, policy, new, member.use_states), *member[2:])

        ending = has_ties & np.array([(phase.policy, phase.new) == (policy, new) for phase in phases])
        state = chosen(ending, [phase.end for phase in phases], jax.vmap(jax.vmap(part))(state), state)
    for keep in sorted({phase.keep for phase in phases if 0 < phase.begin < NEVER}):

        def join(member: TrainState, keep: tying.Keep = keep) -> TrainState:
            return TrainState(*tying.retie_switched(optimizer, *member[:2], ties, keep), *member[2:])

        beginning = has_ties & np.array([phase.keep == keep for phase in phases])
        state = chosen(beginning, [phase.begin for phase in phases], jax.vmap(jax.vmap(join))(state), state)
    return state
