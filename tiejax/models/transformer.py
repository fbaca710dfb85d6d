"""Post-LN transformer encoder without positional information, its layers stacked and applied under an owner vector."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from tiejax.models.initializers import default_dtype, layer_norm, linear, uniform

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5))),  # exact; jax.nn.gelu's erfc is slower on a CPU
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class EncoderLayer(nn.Module):
    """One post-LN layer: x = LN(x + attention(x)); x = LN(x + W_2 act(W_1 x)), as torch's TransformerEncoderLayer."""

    width: int
    heads: int
    feed_forward: int
    activation: str
    dropout: float

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        position: Int[Array, "batch"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch queries width"]:
        """Return the layer's output at every position, or at one `position` of each sequence."""

        def drop(value: jax.Array, name: str) -> jax.Array:
            return nn.Dropout(self.dropout, name=name)(value, deterministic=deterministic)

        # Query, key and value start as one Xavier-uniform matrix [3 width, width], biases as zeros.
        xavier = uniform(math.sqrt(6 / (4 * self.width)))
        qkv = nn.Dense(3 * self.width, kernel_init=xavier, param_dtype=default_dtype(), name="qkv")(x)
        heads = qkv.reshape(*x.shape[:-1], 3, self.heads, self.width // self.heads)
        query, key, value = jnp.moveaxis(heads, -3, 0)
        if position is not None:
            chosen = jax.nn.one_hot(position, x.shape[1], dtype=x.dtype)
            x = jnp.einsum("bl,blw->bw", chosen, x)[:, None]
            query = jnp.einsum("bl,blhc->bhc", chosen, query)[:, None]
        attended = nn.dot_product_attention(
            query,
            key,
            value,
            dropout_rng=self.make_rng("dropout") if self.dropout and not deterministic else None,
            broadcast_dropout=False,
            dropout_rate=self.dropout,
            deterministic=deterministic,
        ).reshape(x.shape)
        out = nn.Dense(self.width, kernel_init=uniform(1 / math.sqrt(self.width)), param_dtype=default_dtype(), name="out")(
            attended
        )
        x = layer_norm("attention_norm")(x + drop(out, "attention_dropout"))

        hidden = ACTIVATIONS[self.activation](linear(self.width, self.feed_forward, "feed_forward_in")(x))
        out = linear(self.feed_forward, self.width, "feed_forward_out")(drop(hidden, "hidden_dropout"))
        return layer_norm("feed_forward_norm")(x + drop(out, "feed_forward_dropout"))


class Transformer(nn.Module):
    """Encoder of `layers` post-LN layers with no positions and no final LayerNorm.

    Weights are stacked: every leaf of `layers` is `[height, ...]`. Layer i computes with the weights at `owner[i]`
    (default: its own) and, where `sends[i]` is false, sends them no gradient.

    identical_layers: start all layers as copies of one, as torch's TransformerEncoder does.
    height: number of layers whose weights are stored; `layers` by default.
    rematerialise: scan over the layers and recompute each in the backward pass, so that neither its activations nor a gradient
        per layer use is held: for deep stacks. Otherwise layers are unrolled, which is faster for a few (by 45 % at
        two layers of width 32 in an ensemble of 64).
    """

    layers: int
    width: int
    heads: int
    feed_forward: int
    activation: str = "gelu"
    dropout: float = 0.0
    identical_layers: bool = True
    height: int | None = None
    rematerialise: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        owner: Int32[Array, "layers"] | Int32[np.ndarray, "layers"] | None = None,
        sends: Bool[Array, "layers"] | Bool[np.ndarray, "layers"] | None = None,
        position: Int[Array, "batch"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch *length width"]:
        """Return the encoded sequences, or their states at `position` alone, with no work for others in the last layer."""
        layer = EncoderLayer(
            self.width, self.heads, self.feed_forward, self.activation, self.dropout, parent=None, name="layer"
        )
        height = self.height or self.layers

        def init(key: jax.Array) -> Any:
            def one(key: jax.Array) -> Any:
                return layer.init(key, x[:1], None, deterministic=True)["params"]

            if self.identical_layers:
                return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (height, *leaf.shape)), one(key))
            return jax.vmap(one)(jax.random.split(key, height))

        stack = self.param("layers", init)
        drops = self.dropout > 0 and not deterministic
        dropout_key = self.make_rng("dropout") if drops else None

        def apply(x: jax.Array, use: Any, wanted: jax.Array | None) -> jax.Array:
            index, read, send = use
            weights = jax.tree.map(lambda leaf: jnp.asarray(leaf)[read], stack)
            if sends is not None:
                weights = jax.tree.map(lambda leaf: jnp.where(send, leaf, jax.lax.stop_gradient(leaf)), weights)
            rngs = {"dropout": jax.random.fold_in(dropout_key, index)} if dropout_key is not None else None
            return jnp.asarray(layer.apply({"params": weights}, x, wanted, deterministic=deterministic, rngs=rngs))

        def body(x: jax.Array, use: Any) -> tuple[jax.Array, None]:
            return apply(x, use, None), None

        def last(x: jax.Array, use: Any) -> jax.Array:
            return apply(x, use, position)

        index = jnp.arange(self.layers, dtype=jnp.int32)
        reads = index if owner is None else jnp.asarray(owner)
        sent = jnp.ones(self.layers, bool) if sends is None else jnp.asarray(sends)
        uses = index, reads, sent
        if self.layers > 1:
            below = jax.tree.map(lambda leaf: leaf[:-1], uses)
            if self.rematerialise:
                x = jax.lax.scan(jax.checkpoint(body), x, below)[0]
            else:
                x = jax.lax.scan(body, x, below, unroll=True)[0]
        x = (jax.checkpoint(last) if self.rematerialise else last)(x, jax.tree.map(lambda leaf: leaf[-1], uses))
        return x if position is None else x[:, 0]
