"""MLP-Mixer encoder over a fixed number of positions."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.models.initializers import layer_norm, linear
from tiejax.models.transformer import ACTIVATIONS


class MixerLayer(nn.Module):
    """Pre-LN token mixing, then channel mixing, each with a residual.

    x = x + (W_2 act(W_1 LN(x)^T))^T;    x = x + W_4 act(W_3 LN(x))
    """

    token_hidden: int
    channel_hidden: int
    activation: str
    dropout: float

    @nn.compact
    def __call__(self, x: Float[Array, "batch length width"], deterministic: bool) -> Float[Array, "batch length width"]:
        def mix(value: jax.Array, hidden: int, name: str) -> jax.Array:
            size = value.shape[-1]
            value = ACTIVATIONS[self.activation](linear(size, hidden, f"{name}_in")(value))
            value = nn.Dropout(self.dropout, name=f"{name}_hidden_dropout")(value, deterministic=deterministic)
            value = linear(hidden, size, f"{name}_out")(value)
            return nn.Dropout(self.dropout, name=f"{name}_dropout")(value, deterministic=deterministic)

        across = jnp.swapaxes(layer_norm("token_norm")(x), -1, -2)
        x = x + jnp.swapaxes(mix(across, self.token_hidden, "token"), -1, -2)
        return x + mix(layer_norm("channel_norm")(x), self.channel_hidden, "channel")


class Mixer(nn.Module):
    """Stack of mixer layers with independent initial values and no final LayerNorm."""

    layers: int
    token_hidden: int
    channel_hidden: int
    activation: str = "relu"
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "batch length width"], deterministic: bool = True) -> Float[Array, "batch length width"]:
        for layer in range(self.layers):
            x = MixerLayer(self.token_hidden, self.channel_hidden, self.activation, self.dropout, name=f"layer_{layer}")(
                x, deterministic
            )
        return x
