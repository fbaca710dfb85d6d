"""LSTM encoder, one- or two-directional, with torch's two bias vectors."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.models import features_first
from tiejax.models.dropout import Dropout
from tiejax.models.initializers import default_dtype, uniform


class LSTMLayer(nn.Module):
    """One direction of one layer, from a zero state, gates in the order input, forget, cell, output.

    i, f, g, o = W_x x_t + b_x + W_h h_{t-1} + b_h
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g),    h_t = sigmoid(o) tanh(c_t)

    Both bias vectors are trained (Flax's cells have one); every weight starts uniform in +-1/sqrt(hidden).
    """

    hidden: int
    reverse: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "features length batch"]) -> Float[Array, "hidden length batch"]:
        init, dtype = uniform(1 / math.sqrt(self.hidden)), default_dtype()
        input_kernel = self.param("input_kernel", init, (x.shape[0], 4 * self.hidden), dtype)
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, 4 * self.hidden), dtype)
        input_bias = self.param("input_bias", init, (4 * self.hidden,), dtype)
        hidden_bias = self.param("hidden_bias", init, (4 * self.hidden,), dtype)

        def cell(carry: tuple[jax.Array, jax.Array], x_t: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = carry
            gates = input_kernel.T @ x_t + hidden_kernel.T @ h + (input_bias + hidden_bias)[:, None]
            i, f, g, o = jnp.split(gates, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((self.hidden, x.shape[2]), x.dtype)
        _, states = jax.lax.scan(cell, (zeros, zeros), jnp.swapaxes(x, 0, 1), reverse=self.reverse)
        return jnp.swapaxes(states, 0, 1)


class BidirectionalLSTM(nn.Module):
    """Stack of LSTM layers, then Linear(directions * hidden -> width); upper layers read both directions."""

    layers: int
    width: int
    hidden: int
    bidirectional: bool = True
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        position: Int[Array, "batch"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch *length width"]:
        """Return the encoded sequences, or their states at `position` alone."""
        directions = ("forward", "backward") if self.bidirectional else ("forward",)
        x = x.transpose(2, 1, 0)
        for layer in range(self.layers):
            if layer > 0:
                x = Dropout(self.dropout, name=f"dropout_{layer}")(x, deterministic=deterministic)
            states = [
                LSTMLayer(self.hidden, reverse=direction == "backward", name=f"layer_{layer}_{direction}")(x)
                for direction in directions
            ]
            x = jnp.concatenate(states)
        if position is not None:
            x = features_first.at(jnp.swapaxes(x, 0, 1), position)
        return features_first.Linear(self.width, name="projection")(x).T
