"""AdamW for layers that train shared weights each by itself, as torch does where parameters of several layers share storage.

Every layer i keeps moments (m_i, v_i) and a step count t_i of its own, whatever weights it reads. A step takes g_i, the
gradient of the loss with respect to the weights p_o at its place o = reads[i] through layer i alone, other uses held constant:

    n^2 = sum of |g|^2 over the layers that train, each by itself, and over all other parameters;  every g is clipped by n
    m_i <- b_1 m_i + (1 - b_1) g_i,  v_i <- b_2 v_i + (1 - b_2) g_i^2,  t_i <- t_i + 1      for each layer i that trains
    u_i = (m_i / (1 - b_1^t_i)) / (sqrt(v_i / (1 - b_2^t_i)) + eps)
    p_o <- (1 - rate weight_decay) p_o - rate u_i                                           layer after layer, from the first

A layer that does not train keeps its moments and its count, and goes on from them when it trains again.

Source: the published code of dynamic layer tying (Hay and Wolf, ICLR 2024). There a layer that becomes a copy keeps its
parameter objects, which from then on point at the other layer's storage, and autograd, clip_grad_norm_ and AdamW go by objects.
AdamW's loop over parameters is followed here. Its foreach form decays the weights for all layers before it adds any update,
which differs by rate weight_decay of an update.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tiejax import tying
from tiejax.training.layered_adamw import StackAdamW
from tiejax.training.stack import LayeredState, rest_of, stack_of, where_true, with_stack

PyTree = Any


class PerLayerMoments(NamedTuple):
    """Adam's state of every layer, leaves `[layers, ...]`, and of the parameters outside the stack."""

    layers: PyTree
    rest: PyTree


@dataclasses.dataclass(frozen=True)
class PerLayerAdamW(StackAdamW):
    """AdamW whose moments belong to the layers and stay where they are when ties change.

    Gradients are clipped with those of every layer's use by themselves. layers: how many read the stack.
    """

    layers: int

    def init(self, params: PyTree) -> LayeredState:
        """Return the state before the first step of parameters with ties `store`d once."""
        stack = stack_of(params, self.stack)
        of_layers = jax.tree.map(lambda leaf: jnp.zeros((self.layers, *leaf.shape[1:]), leaf.dtype), stack)
        moments = PerLayerMoments(jax.vmap(self._adam.init)(of_layers), self._adam.init(rest_of(params, self.stack)))
        # Nothing of it belongs to a place of the stack.
        return LayeredState(params, None, moments)

    def uses(self, params: PyTree, wiring: tying.Wiring) -> tuple[PyTree, tying.Wiring]:
        """Return the parameters with a place for every layer, so that the gradients of the uses of a place stay apart."""
        stack = jax.tree.map(lambda leaf: leaf[wiring.reads], stack_of(params, self.stack))
        every: Any = jnp.arange(self.layers, dtype=jnp.int32)
        return with_stack(params, self.stack, stack), wiring._replace(reads=every)

    def update(self, grads: PyTree, state: LayeredState, wiring: tying.Wiring) -> LayeredState:
        """Return the state after one step; grads: of every layer's use, zero where it does not train."""
        reads, sends = jnp.asarray(wiring.reads), jnp.asarray(wiring.sends)
        grads, _ = self.clip.update(grads, optax.EmptyState())
        rest, of_rest = self._adam.update(rest_of(grads, self.stack), state.of_rest.rest)
        of_uses, of_layers = jax.vmap(self._adam.update)(stack_of(grads, self.stack), state.of_rest.layers)
        of_layers = jax.tree.map(lambda new, old: where_true(sends, new, old), of_layers, state.of_rest.layers)

        def train(stack: PyTree, layer: tuple[jax.Array, jax.Array, PyTree]) -> tuple[PyTree, None]:
            place, trains, updates = layer

            def at_place(leaf: jax.Array, update: jax.Array) -> jax.Array:
                return leaf.at[place].set(jnp.where(trains, self._step(leaf[place], update), leaf[place]))

            return jax.tree.map(at_place, stack, updates), None

        params = jax.tree.map(self._step, rest_of(state.params, self.stack), rest)
        stack, _ = jax.lax.scan(train, stack_of(state.params, self.stack), (reads, sends, of_uses))
        return LayeredState(with_stack(params, self.stack, stack), None, PerLayerMoments(of_layers, of_rest))
