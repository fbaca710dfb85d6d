"""LSTM encoder, uni- or bidirectional, with torch's two bias vectors."""

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.models import features_first
from tiejax.models.layers import Dropout, default_dtype, uniform


class LSTMWeights(nn.Module):
    """Parameters of one direction of one layer in torch's form, concatenated into one matrix.

    Gates are in the order input, forget, cell, output. Both bias vectors are trained (Flax's cells have one). Every parameter
    is initialised uniformly in +-1/sqrt(hidden).
    """

    hidden: int

    @nn.compact
    def __call__(self, features: int) -> Float[Array, "gates inputs"]:
        """Return (W_x | W_h | b_x + b_h), [4 hidden, features + hidden + 1]: its product with (x; h; 1) gives the gates."""
        init, dtype, gates = uniform(1 / math.sqrt(self.hidden)), default_dtype(), 4 * self.hidden
        input_kernel = self.param("input_kernel", init, (features, gates), dtype)
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, gates), dtype)
        input_bias = self.param("input_bias", init, (gates,), dtype)
        hidden_bias = self.param("hidden_bias", init, (gates,), dtype)
        return jnp.concatenate([input_kernel, hidden_kernel, (input_bias + hidden_bias)[None]]).T


class BidirectionalLSTM(nn.Module):
    """Stack of LSTM layers, then Linear(directions * hidden -> width); upper layers read both directions.

    Attributes:
        layers: Number of layers.
        width: Width of the output.
        hidden: Width of the state of each direction.
        bidirectional: Whether each layer also reads the sequence backwards.
        dropout: Probability of dropout between layers.
        unrolled: Unroll the steps along the sequence: fewer kernels on an accelerator, longer compilation.
    """

    layers: int
    width: int
    hidden: int
    bidirectional: bool = True
    dropout: float = 0.0
    unrolled: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        position: Int[Array, " batch"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch *length width"]:
        """Return the encoded sequences or, given `position`, only their states there."""
        directions = ("forward", "backward") if self.bidirectional else ("forward",)
        x = x.transpose(1, 2, 0)
        for layer in range(self.layers):
            if layer > 0:
                x = Dropout(self.dropout, name=f"dropout_{layer}")(x, deterministic=deterministic)
            weights = [LSTMWeights(self.hidden, name=f"layer_{layer}_{name}")(x.shape[1]) for name in directions]
            # The second direction reads backwards. Computing both at once takes half as many small products.
            read = jnp.stack([x, x[::-1]][: len(directions)], axis=1)
            states = recurrence(read, jnp.stack(weights), self.unrolled)
            x = jnp.concatenate([states[:, 0], *(states[::-1, other] for other in range(1, len(directions)))], axis=1)
        x = jnp.swapaxes(x, 0, 1) if position is None else features_first.at(x, position)
        return features_first.Linear(self.width, name="projection")(x).T


class Step(NamedTuple):
    """Values of one step of the recurrence that are saved for its gradient.

    read: (x_t; h_{t-1}; 1). cell: c_{t-1}. activations: activations of the gates i, f, g and o. squashed: tanh(c_t).
    """

    read: Float[Array, "directions inputs batch"]
    cell: Float[Array, "directions hidden batch"]
    activations: tuple[jax.Array, ...]
    squashed: Float[Array, "directions hidden batch"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def recurrence(
    x: Float[Array, "length directions features batch"],
    weights: Float[Array, "directions gates inputs"],
    unrolled: bool = False,
) -> Float[Array, "length directions hidden batch"]:
    """Return the states h of LSTMs that start from a zero state, for each direction with its weights (`LSTMWeights`).

    i, f, g, o = W_x x_t + b_x + W_h h_{t-1} + b_h
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g),    h_t = sigmoid(o) tanh(c_t)

    The custom derivative saves each activation once and computes the gradients of all gates in one pass; autodiff saves them
    twice and concatenates them. `jax.jvp` is not supported. Biases are part of the matrix product, so a reduced
    precision of matrix products applies to them as well.
    """
    return _forward(x, weights, unrolled)[0]


def _forward(x: jax.Array, weights: jax.Array, unrolled: bool) -> tuple[jax.Array, tuple[Step, jax.Array]]:
    def step(before: tuple[jax.Array, jax.Array], x_t: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, Step]]:
        h, c = before
        read = jnp.concatenate([x_t, h, jnp.ones_like(h[:, :1])], axis=1)
        i, f, g, o = jnp.split(weights @ read, 4, axis=1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        cell = f * c + i * g
        squashed = jnp.tanh(cell)
        return (o * squashed, cell), (o * squashed, Step(read, c, (i, f, g, o), squashed))

    zeros = jnp.zeros((x.shape[1], weights.shape[1] // 4, x.shape[-1]), x.dtype)
    _, (states, steps) = jax.lax.scan(step, (zeros, zeros), x, unroll=unrolled)
    return states, (steps, weights)


def _backward(unrolled: bool, saved: tuple[Step, jax.Array], states_grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    steps, weights = saved
    features, hidden = steps.read.shape[2] - steps.cell.shape[2] - 1, steps.cell.shape[2]
    transposed = jnp.swapaxes(weights, 1, 2)

    Carry = tuple[jax.Array, jax.Array, jax.Array]

    def step(after: Carry, at: tuple[jax.Array, Step]) -> tuple[Carry, jax.Array]:
        (h_grad, c_grad, weights_grad), (state_grad, step) = after, at
        h_grad = h_grad + state_grad
        c_grad = c_grad + h_grad * step.activations[3] * (1 - step.squashed * step.squashed)
        gate_grads = _gate_grads(step, h_grad, c_grad)
        read_grad = transposed @ gate_grads
        weights_grad = weights_grad + gate_grads @ jnp.swapaxes(step.read, 1, 2)
        before = read_grad[:, features : features + hidden], c_grad * step.activations[1], weights_grad
        return before, read_grad[:, :features]

    zeros = jnp.zeros_like(states_grad[0])
    start = zeros, zeros, jnp.zeros_like(weights)
    (_, _, weights_grad), x_grad = jax.lax.scan(step, start, (states_grad, steps), reverse=True, unroll=unrolled)
    return x_grad, weights_grad


def _gate_grads(step: Step, h_grad: jax.Array, c_grad: jax.Array) -> Float[Array, "directions gates batch"]:
    """Return the gradients with respect to all gates before their activations.

    For i, f, g they are dc_t times g, c_{t-1}, i; for o, dh_t tanh(c_t); each times the derivative of its activation. Gates are
    selected by index, not concatenated, because XLA computes a concatenation element by element on a CPU.
    """
    gate = jax.lax.broadcasted_iota(jnp.int32, (4, 1, 1), 0)

    def each(i: jax.Array, f: jax.Array, g: jax.Array, o: jax.Array) -> Float[Array, "directions 4 hidden batch"]:
        i, f, g, o = (leaf[:, None] for leaf in (i, f, g, o))
        return jnp.where(gate == 0, i, jnp.where(gate == 1, f, jnp.where(gate == 2, g, o)))

    i, _, g, _ = step.activations
    activation = each(*step.activations)
    derivative = jnp.where(gate == 2, 1 - activation * activation, activation * (1 - activation))
    gate_grads = each(c_grad, c_grad, c_grad, h_grad) * each(g, step.cell, i, step.squashed) * derivative
    return gate_grads.reshape(len(h_grad), -1, h_grad.shape[-1])


recurrence.defvjp(_forward, _backward)
