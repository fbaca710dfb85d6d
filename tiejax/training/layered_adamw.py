"""AdamW for parameters with a stack whose ties change: the moments of the stack belong to its places."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from tiejax import tying
from tiejax.training.optimizer import BETAS
from tiejax.training.stack import LayeredState, rest_of, stack_of, where_true, with_stack

PyTree = Any
EPS = 1e-8  # of Adam


@runtime_checkable
class LayeredOptimizer(Protocol):
    """What trains a stack, whose path in the parameters is `stack`."""

    @property
    def stack(self) -> str: ...

    def init(self, params: PyTree) -> LayeredState:
        """Return the state before the first step of parameters with ties `store`d once."""

    def uses(self, params: PyTree, wiring: tying.Wiring) -> tuple[PyTree, tying.Wiring]:
        """Return the parameters whose gradients `update` asks for, and the wiring that makes them the same model."""

    def update(self, grads: PyTree, state: LayeredState, wiring: tying.Wiring) -> LayeredState:
        """Return the state after one step; grads: of the parameters of `uses`. wiring: of the parameters of the state."""


@dataclasses.dataclass(frozen=True)
class StackAdamW:
    """AdamW for parameters with a stack, but for whose the moments of the stack are.

    p -= rate (m / (sqrt(v) + eps) + weight_decay p), m and v bias-corrected moments. clip: of the gradients. stack: path of the
    stack in the parameters.
    """

    rate: float
    weight_decay: float
    clip: optax.GradientTransformation
    stack: str

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(*BETAS, EPS)

    def _step(self, param: jax.Array, update: jax.Array) -> jax.Array:
        return param - self.rate * (update + self.weight_decay * param)


@dataclasses.dataclass(frozen=True)
class LayeredAdamW(StackAdamW):
    """AdamW whose moments belong to the places of the stack, every place with a step count of its own.

    They are of the summed gradient of the layers that train the place; gradients are clipped with tied arrays counted once.
    """

    def init(self, params: PyTree) -> LayeredState:
        """Return the state before the first step of parameters with ties `store`d once."""
        of_stack = jax.vmap(self._adam.init)(stack_of(params, self.stack))
        return LayeredState(params, of_stack, self._adam.init(rest_of(params, self.stack)))

    def uses(self, params: PyTree, wiring: tying.Wiring) -> tuple[PyTree, tying.Wiring]:
        """Return both as they are: gradients of the uses of a place are summed."""
        return params, wiring

    def update(self, grads: PyTree, state: LayeredState, wiring: tying.Wiring) -> LayeredState:
        """Return the state after one step; a place that nobody trains is left untouched."""
        trained = jnp.asarray(wiring.trained) > 0
        grads, _ = self.clip.update(grads, optax.EmptyState())
        rest, of_rest = self._adam.update(rest_of(grads, self.stack), state.of_rest)
        stack, of_stack = jax.vmap(self._adam.update)(stack_of(grads, self.stack), state.of_stack)

        def step_of_place(param: jax.Array, update: jax.Array) -> jax.Array:
            return where_true(trained, self._step(param, update), param)

        params = jax.tree.map(self._step, rest_of(state.params, self.stack), rest)
        params = with_stack(params, self.stack, jax.tree.map(step_of_place, stack_of(state.params, self.stack), stack))
        kept = jax.tree.map(lambda new, old: where_true(trained, new, old), of_stack, state.of_stack)
        return LayeredState(params, kept, of_rest)
