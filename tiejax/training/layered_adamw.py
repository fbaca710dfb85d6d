"""AdamW for parameters with a stack of layers, with moments per slot of the stack or per layer.

`LayeredAdamW`: a slot has moments of the summed gradient of all layers that train it.

`PerLayerAdamW`: each layer trains shared weights by itself, as in torch when parameters of several layers share storage. Layer
i has its own moments (m_i, v_i) and step count t_i. A step takes g_i, the gradient of the loss with respect to the weights p_o
in its slot o = reads[i] through layer i only, other uses held constant:

    n^2 = sum of |g|^2 over the layers that train, each by itself, and over all other parameters;  every g is clipped by n
    m_i <- b_1 m_i + (1 - b_1) g_i,  v_i <- b_2 v_i + (1 - b_2) g_i^2,  t_i <- t_i + 1      for each layer i that trains
    u_i = (m_i / (1 - b_1^t_i)) / (sqrt(v_i / (1 - b_2^t_i)) + eps)
    p_o <- (1 - rate weight_decay) p_o - rate u_i                                           layer by layer, from the first

A layer that does not train keeps its moments and count, and continues from them when it trains again.

Source: the published code of dynamic layer tying (Hay and Wolf, ICLR 2024). There a layer that becomes a copy keeps its
parameter objects, which then point at the other layer's storage, and autograd, clip_grad_norm_ and AdamW treat each object
separately. This module follows AdamW's loop over parameters. Its foreach form decays the weights for all layers before it adds
any update; the results differ by rate * weight_decay times an update.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import tying
from tiejax.training.optimizer import BETAS, leaves_at
from tiejax.training.stack import LayeredState, rest_of, stack_of, where_true, with_stack

PyTree = Any
Step = Callable[[jax.Array, jax.Array], jax.Array]
EPS = 1e-8  # Adam's epsilon


@dataclasses.dataclass(frozen=True)
class StackAdamW:
    """Base of AdamW for parameters with a stack; subclasses decide what owns the stack's moments.

    p -= rate (m / (sqrt(v) + eps) + weight_decay p), with bias-corrected moments m, v.

    rate: learning rate of a step that is given no other, or a pair of that and the rate of `tables`. weight_decay: factor of
    the decay. clip: transformation that clips the gradients before they enter the moments. stack: path of the stack in the
    parameters. tables: paths of the leaves outside the stack that train at the second rate of a pair.
    """

    rate: float | tuple[float, float]
    weight_decay: float
    clip: optax.GradientTransformation
    stack: str
    tables: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(*BETAS, EPS)

    def _steps_at(self, rate: Any) -> tuple[Step, Step]:
        """Return the functions (parameter, Adam's update) -> parameter after a step, that of `tables` second.

        rate: learning rate, or an array of that and the rate of `tables`, possibly traced (default: `self.rate`).
        """
        rate = self.rate if rate is None else rate

        def at(rate: Any) -> Step:
            return lambda param, update: param - jnp.asarray(rate, param.dtype) * (update + self.weight_decay * param)

        return (at(rate[0]), at(rate[1])) if np.ndim(rate) else (at(rate), at(rate))

    def _rest_after(self, rest: PyTree, updates: PyTree, steps: tuple[Step, Step]) -> PyTree:
        """Return the parameters outside the stack after a step; steps: those of `_steps_at`."""
        return jax.tree.map(
            lambda table, param, update: steps[table](param, update), leaves_at(rest, self.tables), rest, updates
        )


@dataclasses.dataclass(frozen=True)
class LayeredAdamW(StackAdamW):
    """AdamW with moments and a step count per slot of the stack.

    The moments are of the summed gradient of the layers that train the slot; clipping counts tied arrays once.
    """

    def init(self, params: PyTree) -> LayeredState:
        """Return the state before the first step of parameters whose tied leaves are stored once (`tying.store`)."""
        stack_state = jax.vmap(self._adam.init)(stack_of(params, self.stack))
        return LayeredState(params, stack_state, self._adam.init(rest_of(params, self.stack)))

    def uses(self, params: PyTree, wiring: tying.Wiring) -> tuple[PyTree, tying.Wiring]:
        """Return the parameters to differentiate for `update`, and the wiring with which they compute the same model.

        Both are unchanged: the gradients of all uses of a slot are summed.
        """
        return params, wiring

    def update(self, grads: PyTree, state: LayeredState, wiring: tying.Wiring, rate: Any = None) -> LayeredState:
        """Return the state after one step; slots that no layer trains are unchanged.

        grads: gradients of the parameters that `uses` returned. wiring: the wiring of `state.params`. rate: as in `_steps_at`.
        """
        step, _ = steps = self._steps_at(rate)
        trained = jnp.asarray(wiring.trained) > 0
        grads, _ = self.clip.update(grads, optax.EmptyState())
        rest, rest_state = self._adam.update(rest_of(grads, self.stack), state.rest_state)
        stack, stack_state = jax.vmap(self._adam.update)(stack_of(grads, self.stack), state.stack_state)
        params, old = self._rest_after(rest_of(state.params, self.stack), rest, steps), stack_of(state.params, self.stack)
        stack = jax.tree.map(lambda param, update: where_true(trained, step(param, update), param), old, stack)
        params = with_stack(params, self.stack, stack)
        stack_state = jax.tree.map(lambda new, old: where_true(trained, new, old), stack_state, state.stack_state)
        return LayeredState(params, stack_state, rest_state)


class PerLayerMoments(NamedTuple):
    """Adam's state per layer, leaves `[layers, ...]`, and that of the parameters outside the stack."""

    layers: PyTree
    rest: PyTree


@dataclasses.dataclass(frozen=True)
class PerLayerAdamW(StackAdamW):
    """AdamW with moments and a step count per layer, which stay with the layer when ties change (equations: module docstring).

    Clipping counts the gradient of each layer's use separately. layers: number of layers that read the stack.
    """

    layers: int

    def init(self, params: PyTree) -> LayeredState:
        """Return the state before the first step of parameters whose tied leaves are stored once (`tying.store`)."""
        stack = stack_of(params, self.stack)
        zeros = jax.tree.map(lambda leaf: jnp.zeros((self.layers, *leaf.shape[1:]), leaf.dtype), stack)
        moments = PerLayerMoments(jax.vmap(self._adam.init)(zeros), self._adam.init(rest_of(params, self.stack)))
        return LayeredState(params, None, moments)  # no part of the state moves with the slots

    def uses(self, params: PyTree, wiring: tying.Wiring) -> tuple[PyTree, tying.Wiring]:
        """Return the parameters with a slot per layer, so that the gradients of a slot's uses stay separate."""
        stack = jax.tree.map(lambda leaf: leaf[wiring.reads], stack_of(params, self.stack))
        every: Any = jnp.arange(self.layers, dtype=jnp.int32)
        return with_stack(params, self.stack, stack), wiring._replace(reads=every)

    def update(self, grads: PyTree, state: LayeredState, wiring: tying.Wiring, rate: Any = None) -> LayeredState:
        """Return the state after one step.

        grads: gradients of every layer's use, zero for layers that do not train. rate: as in `_steps_at`.
        """
        step, _ = steps = self._steps_at(rate)
        reads, sends = jnp.asarray(wiring.reads), jnp.asarray(wiring.sends)
        grads, _ = self.clip.update(grads, optax.EmptyState())
        rest, rest_state = self._adam.update(rest_of(grads, self.stack), state.rest_state.rest)
        updates, layer_states = jax.vmap(self._adam.update)(stack_of(grads, self.stack), state.rest_state.layers)
        layer_states = jax.tree.map(lambda new, old: where_true(sends, new, old), layer_states, state.rest_state.layers)

        def train(stack: PyTree, layer: tuple[jax.Array, jax.Array, PyTree]) -> tuple[PyTree, None]:
            slot, trains, layer_updates = layer

            def at_slot(leaf: jax.Array, update: jax.Array) -> jax.Array:
                return leaf.at[slot].set(jnp.where(trains, step(leaf[slot], update), leaf[slot]))

            return jax.tree.map(at_slot, stack, layer_updates), None

        params = self._rest_after(rest_of(state.params, self.stack), rest, steps)
        stack, _ = jax.lax.scan(train, stack_of(state.params, self.stack), (reads, sends, updates))
        return LayeredState(with_stack(params, self.stack, stack), None, PerLayerMoments(layer_states, rest_state))


LayeredOptimizer = LayeredAdamW | PerLayerAdamW
