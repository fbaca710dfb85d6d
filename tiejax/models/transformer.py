"""Transformer without positional information of its own, its layers stacked and applied under an owner vector."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from tiejax.models.attention import attend
from tiejax.models.initializers import default_dtype, layer_norm, linear, uniform

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5))),  # exact; jax.nn.gelu's erfc is slower on a CPU
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class EncoderLayer(nn.Module):
    """One post-LN layer: x = LN(x + attention(x)); x = LN(x + W_2 act(W_1 x)), as torch's TransformerEncoderLayer.

    norm_first: a pre-LN layer instead, x = x + attention(LN(x)); x = x + W_2 act(W_1 LN(x)), as GPT-2's.
    causal: a position sees itself and what came before.
    kernel_std, residual_std: kernels start as N(0, kernel_std^2), those of the two maps that are added to x as
        N(0, residual_std^2), and biases as 0, as GPT-2's and BERT's (default: as torch's).
    hidden_dropout: drop values between W_2 and act too, as torch does; GPT-2 and BERT do not.
    dtype: of the computation (default: that of the input); parameters and LayerNorms stay in float32.
    """

    width: int
    heads: int
    feed_forward: int
    activation: str
    dropout: float
    norm_first: bool = False
    causal: bool = False
    kernel_std: float | None = None
    residual_std: float | None = None
    hidden_dropout: bool = True
    dtype: Any = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        position: Int[Array, "batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch queries width"]:
        """Return the layer's output at every position, or at one `position` of each sequence.

        segments: positions of one number see each other alone (default: all do).
        """

        def drop(value: jax.Array, name: str) -> jax.Array:
            return nn.Dropout(self.dropout, name=name)(value, deterministic=deterministic)

        attention_norm = layer_norm("attention_norm", dtype=self.dtype)
        feed_forward_norm = layer_norm("feed_forward_norm", dtype=self.dtype)

        def dense(features: int, name: str, default: Any, std: float | None) -> nn.Dense:
            init = default if std is None else jax.nn.initializers.normal(std)
            return nn.Dense(features, kernel_init=init, param_dtype=default_dtype(), dtype=self.dtype, name=name)

        def inner(fan_in: int, features: int, name: str, std: float | None) -> nn.Dense:
            return linear(fan_in, features, name, self.dtype) if std is None else dense(features, name, None, std)

        # Query, key and value start as one Xavier-uniform matrix [3 width, width], biases as zeros.
        xavier = uniform(math.sqrt(6 / (4 * self.width)))
        qkv = dense(3 * self.width, "qkv", xavier, self.kernel_std)(attention_norm(x) if self.norm_first else x)
        heads = qkv.reshape(*x.shape[:-1], 3, self.heads, self.width // self.heads)
        query, key, value = jnp.moveaxis(heads, -3, 0)
        if position is not None:
            chosen = jax.nn.one_hot(position, x.shape[1], dtype=x.dtype)
            x = jnp.einsum("bl,blw->bw", chosen, x)[:, None]
            query = jnp.einsum("bl,blhc->bhc", chosen, query)[:, None]
        mask = None
        if segments is not None:
            own = segments if position is None else jnp.take_along_axis(segments, position[:, None], axis=1)
            mask = own[:, None, :, None] == segments[:, None, None, :]
        if self.causal:
            places = jnp.arange(key.shape[1])
            own = places[None] if position is None else position[:, None]
            before = own[:, None, :, None] >= places
            mask = before if mask is None else mask & before
        drops = self.dropout > 0 and not deterministic
        dropout_key = self.make_rng("dropout") if drops else None
        attended = attend(query, key, value, mask, self.dropout, dropout_key).reshape(x.shape)
        out = dense(self.width, "out", uniform(1 / math.sqrt(self.width)), self.residual_std)(attended)
        x = x + drop(out, "attention_dropout")
        x = x if self.norm_first else attention_norm(x)

        first = inner(self.width, self.feed_forward, "feed_forward_in", self.kernel_std)
        hidden = ACTIVATIONS[self.activation](first(feed_forward_norm(x) if self.norm_first else x))
        hidden = drop(hidden, "hidden_dropout") if self.hidden_dropout else hidden
        out = inner(self.feed_forward, self.width, "feed_forward_out", self.residual_std)(hidden)
        x = x + drop(out, "feed_forward_dropout")
        return x if self.norm_first else feed_forward_norm(x)


class Transformer(nn.Module):
    """`layers` post-LN layers with no positions and no final LayerNorm, or pre-LN ones and a final one (norm_first).

    Weights are stacked: every leaf of `layers` is `[stack_size, ...]`. Layer i computes with the weights at `owner[i]`
    (default: its own) and, where `sends[i]` is false, sends them no gradient.

    identical_layers: start all layers as copies of one, as torch's TransformerEncoder does.
    stack_size: number of layers whose weights `init` makes, `layers` by default; parameters of any stack_size can be applied.
    rematerialise: scan over the layers and recompute each in the backward pass, so that neither its activations nor a gradient
        per layer use is held: for deep stacks. Otherwise layers are unrolled, which is faster for a few (by 45 % at
        two layers of width 32 in an ensemble of 64).
    causal, kernel_std, residual_std, hidden_dropout, dtype: of each layer (`EncoderLayer`).
    """

    layers: int
    width: int
    heads: int
    feed_forward: int
    activation: str = "gelu"
    dropout: float = 0.0
    identical_layers: bool = True
    stack_size: int | None = None
    rematerialise: bool = False
    norm_first: bool = False
    causal: bool = False
    kernel_std: float | None = None
    residual_std: float | None = None
    hidden_dropout: bool = True
    dtype: Any = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        owner: Int32[Array, "layers"] | Int32[np.ndarray, "layers"] | None = None,
        sends: Bool[Array, "layers"] | Bool[np.ndarray, "layers"] | None = None,
        position: Int[Array, "batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "batch *length width"]:
        """Return the encoded sequences, or their states at `position` alone, with no work for others in the last layer.

        segments: several sequences in one row, by number; each sees itself alone, so that it is encoded as in a row of its own.
        """
        layer = EncoderLayer(
            self.width,
            self.heads,
            self.feed_forward,
            self.activation,
            self.dropout,
            self.norm_first,
            self.causal,
            self.kernel_std,
            self.residual_std,
            self.hidden_dropout,
            self.dtype,
            parent=None,
            name="layer",
        )
        stack_size = self.stack_size or self.layers

        def init(key: jax.Array) -> Any:
            def one(key: jax.Array) -> Any:
                return layer.init(key, x[:1])["params"]

            if self.identical_layers:
                return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (stack_size, *leaf.shape)), one(key))
            return jax.vmap(one)(jax.random.split(key, stack_size))

        # A stack is applied whatever its stack_size, which changes when ties do.
        given = self.has_variable("params", "layers")
        stack = self.get_variable("params", "layers") if given else self.param("layers", init)
        drops = self.dropout > 0 and not deterministic
        dropout_key = self.make_rng("dropout") if drops else None

        def apply(x: jax.Array, use: Any, wanted: jax.Array | None) -> jax.Array:
            index, read, send = use
            weights = jax.tree.map(lambda leaf: jnp.asarray(leaf)[read], stack)
            if sends is not None:
                weights = jax.tree.map(lambda leaf: jnp.where(send, leaf, jax.lax.stop_gradient(leaf)), weights)
            rngs = {"dropout": jax.random.fold_in(dropout_key, index)} if dropout_key is not None else None
            return jnp.asarray(layer.apply({"params": weights}, x, wanted, segments, deterministic, rngs=rngs))

        def body(x: jax.Array, use: Any) -> tuple[jax.Array, None]:
            return apply(x, use, None), None

        def last(x: jax.Array, use: Any) -> jax.Array:
            return apply(x, use, position)

        index = jnp.arange(self.layers, dtype=jnp.int32)
        reads = index if owner is None else jnp.asarray(owner)
        sent = jnp.ones(self.layers, bool) if sends is None else jnp.asarray(sends)
        uses = index, reads, sent
        if self.rematerialise and position is None:
            # Scanned with the others, the last layer adds no gradient of the whole stack of its own.
            x = jax.lax.scan(jax.checkpoint(body), x, uses)[0]
            return layer_norm("final_norm", dtype=self.dtype)(x) if self.norm_first else x
        if self.layers > 1:
            below = jax.tree.map(lambda leaf: leaf[:-1], uses)
            if self.rematerialise:
                x = jax.lax.scan(jax.checkpoint(body), x, below)[0]
            else:
                x = jax.lax.scan(body, x, below, unroll=True)[0]
        x = (jax.checkpoint(last) if self.rematerialise else last)(x, jax.tree.map(lambda leaf: leaf[-1], uses))
        x = layer_norm("final_norm", dtype=self.dtype)(x) if self.norm_first else x
        return x if position is None else x[:, 0]
