"""MLP-Mixer encoder over a fixed number of positions."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiejax.models import features_first
from tiejax.models.layers import Dropout, layer_norm
from tiejax.models.transformer import ACTIVATIONS


class MixerLayer(nn.Module):
    """Pre-LN token mixing and channel mixing, each with a residual connection.

    x = x + (W_2 act(W_1 LN(x)^T))^T;    x = x + W_4 act(W_3 LN(x))
    """

    token_hidden: int
    channel_hidden: int
    activation: str
    dropout: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "width length batch"], position: Int[Array, " batch"] | None, deterministic: bool
    ) -> Float[Array, "width *length batch"]:
        """Return the layer's output at every position, or at one `position` of each sequence."""

        def mix(value: jax.Array, hidden: int, name: str, chosen: jax.Array | None = None) -> jax.Array:
            size = value.shape[0]
            value = ACTIVATIONS[self.activation](features_first.Linear(hidden, name=f"{name}_in")(value))
            value = Dropout(self.dropout, name=f"{name}_hidden_dropout")(value, deterministic=deterministic)
            value = features_first.Linear(size, name=f"{name}_out")(value, chosen)
            return Dropout(self.dropout, name=f"{name}_dropout")(value, deterministic=deterministic)

        across = jnp.swapaxes(layer_norm("token_norm", axis=0)(x), 0, 1)
        if position is None:
            x = x + jnp.swapaxes(mix(across, self.token_hidden, "token"), 0, 1)
        else:
            chosen = jax.nn.one_hot(position, x.shape[1], axis=0, dtype=x.dtype)
            x = features_first.at(jnp.swapaxes(x, 0, 1), position) + mix(across, self.token_hidden, "token", chosen)
        return x + mix(layer_norm("channel_norm", axis=0)(x), self.channel_hidden, "channel")


class Mixer(nn.Module):
    """Stack of mixer layers with independent initial values and no final LayerNorm.

    Attributes:
        layers: Number of layers.
        token_hidden: Hidden width of token mixing (across positions).
        channel_hidden: Hidden width of channel mixing.
        activation: Activation of both kinds of mixing, a key of `ACTIVATIONS`.
        dropout: Probability of dropout.
    """

    layers: int
    token_hidden: int
    channel_hidden: int
    activation: str = "relu"
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        position: Int[Array, " batch"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch *length width"]:
        """Return the encoded sequences or, given `position`, only their states there; the last layer computes no others."""
        x = x.transpose(2, 1, 0)
        for layer in range(self.layers):
            wanted = position if layer == self.layers - 1 else None
            x = MixerLayer(self.token_hidden, self.channel_hidden, self.activation, self.dropout, name=f"layer_{layer}")(
                x, wanted, deterministic
            )
        return x.T
