"""Transformer without positional information, whose layers read weights from a stack, selected by an owner vector."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from tiejax.models import lora
from tiejax.models.attention import attend
from tiejax.models.layers import LAYER_NORM_EPSILON, Dense, Dropout, default_dtype, layer_norm, linear, uniform

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5))),  # exact; jax.nn.gelu's erfc is slower on a CPU
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class EncoderLayer(nn.Module):
    """One post-LN layer: x = LN(x + attention(x)); x = LN(x + W_2 act(W_1 x)), as in torch's TransformerEncoderLayer.

    norm_first: a pre-LN layer instead, x = x + attention(LN(x)); x = x + W_2 act(W_1 LN(x)), as in GPT-2.
    causal: a position sees itself and earlier positions only.
    kernel_std, residual_std: standard deviations of the initial kernels: residual_std for the two whose outputs are added to x,
        kernel_std for the others. Biases are then 0, as in GPT-2 and BERT (default: torch's initialisation).
    hidden_dropout: also apply dropout between act and W_2, as torch does; GPT-2 and BERT do not.
    attention_dropout: probability of dropping an attention weight (default: dropout); fused kernels do not support it.
    norm_epsilon: epsilon of the LayerNorms.
    dtype: dtype of the computation (default: that of the input); parameters and LayerNorms stay in float32.
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
    attention_dropout: float | None = None
    norm_epsilon: float = LAYER_NORM_EPSILON
    dtype: Any = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        position: Int[Array, " batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        scale: Float[Array, ""] | None = None,
    ) -> Float[Array, "batch queries width"]:
        """Return the layer's output at every position, or at one `position` of each sequence.

        segments: segment number of each position; positions see only their own segment (default: all positions). scale: factor
            of both updates of x, x + scale attention(x) and x + scale W_2 act(W_1 x) (default: 1).
        """
        attention_norm = layer_norm("attention_norm", dtype=self.dtype, epsilon=self.norm_epsilon)
        feed_forward_norm = layer_norm("feed_forward_norm", dtype=self.dtype, epsilon=self.norm_epsilon)

        query, key, value = self._project(attention_norm(x) if self.norm_first else x)  # each [batch, length, heads, size]
        if position is not None:  # one query per sequence; keys and values of all positions
            chosen = jax.nn.one_hot(position, x.shape[1], dtype=x.dtype)
            x = jnp.einsum("bl,blw->bw", chosen, x)[:, None]
            query = jnp.einsum("bl,blhc->bhc", chosen, query)[:, None]
        mask, causal = visible(key.shape[1], position, segments, self.causal), self.causal and position is None
        x = x + scaled(self._attention(query, key, value, mask, causal, deterministic), scale)
        x = x if self.norm_first else attention_norm(x)

        x = x + scaled(self._feed_forward(feed_forward_norm(x) if self.norm_first else x, deterministic), scale)
        return x if self.norm_first else feed_forward_norm(x)

    def _project(self, x: Float[Array, "batch length width"]) -> Float[Array, "3 batch length heads size"]:
        """Return query, key and value, from one Xavier-uniform kernel [width, 3 width] by default; the bias starts at 0."""
        xavier = uniform(math.sqrt(6 / (4 * self.width)))
        projected = self._dense(3 * self.width, "qkv", xavier, self.kernel_std)(x)
        heads = projected.reshape(*x.shape[:-1], 3, self.heads, self.width // self.heads)
        return jnp.moveaxis(heads, -3, 0)

    def _attention(
        self,
        query: Float[Array, "batch queries heads size"],
        key: Float[Array, "batch length heads size"],
        value: Float[Array, "batch length heads size"],
        mask: Bool[Array, "#batch 1 queries length"] | None,
        causal: bool,
        deterministic: bool,
    ) -> Float[Array, "batch queries width"]:
        """Return attention's update of the residual stream: dropout(W_out attend(query, key, value))."""
        rate = self.dropout if self.attention_dropout is None else self.attention_dropout
        dropout_key = self.make_rng("dropout") if rate > 0 and not deterministic else None
        attended = attend(query, key, value, mask, causal, rate, dropout_key).reshape(*query.shape[:2], self.width)
        out = self._dense(self.width, "out", uniform(1 / math.sqrt(self.width)), self.residual_std)(attended)
        return self._drop(out, "attention_dropout", deterministic)

    def _feed_forward(self, x: Float[Array, "batch queries width"], deterministic: bool) -> Float[Array, "batch queries width"]:
        """Return the feed-forward update of the residual stream: dropout(W_2 act(W_1 x))."""
        hidden = self._inner(self.width, self.feed_forward, "feed_forward_in", self.kernel_std)(x)
        hidden = ACTIVATIONS[self.activation](hidden)  # [batch, queries, feed_forward]
        hidden = self._drop(hidden, "hidden_dropout", deterministic) if self.hidden_dropout else hidden
        out = self._inner(self.feed_forward, self.width, "feed_forward_out", self.residual_std)(hidden)
        return self._drop(out, "feed_forward_dropout", deterministic)

    def _drop(self, x: jax.Array, name: str, deterministic: bool) -> jax.Array:
        return Dropout(self.dropout, name=name)(x, deterministic=deterministic)

    def _dense(self, features: int, name: str, default: Any, std: float | None) -> Dense:
        """Return a linear map with an initial kernel from N(0, std^2), or from `default` if `std` is None, and a bias of 0."""
        init = default if std is None else jax.nn.initializers.normal(std)
        return Dense(features, kernel_init=init, param_dtype=default_dtype(), dtype=self.dtype, name=name)

    def _inner(self, fan_in: int, features: int, name: str, std: float | None) -> Dense:
        """Return a linear map of the feed-forward layer, initialised as in torch if `std` is None."""
        return linear(fan_in, features, name, self.dtype) if std is None else self._dense(features, name, None, std)


def scaled(update: jax.Array, scale: jax.Array | None) -> jax.Array:
    """Return an update of the residual stream times `scale`, in the dtype of the update."""
    return update if scale is None else update * scale.astype(update.dtype)


def visible(
    length: int, position: Int[Array, " batch"] | None, segments: Integer[Array, "batch length"] | None, causal: bool
) -> Bool[Array, "#batch 1 queries length"] | None:
    """Return a mask of the positions that each query sees, or None if it sees all; arguments as in `EncoderLayer`.

    If all positions are queries, the causal mask is not part of the result: `attend` applies it.
    """
    mask = None
    if segments is not None:
        query_segments = segments if position is None else jnp.take_along_axis(segments, position[:, None], axis=1)
        mask = query_segments[:, None, :, None] == segments[:, None, None, :]
    if causal and position is not None:
        before = position[:, None, None, None] >= jnp.arange(length)
        mask = before if mask is None else mask & before
    return mask


class Use(NamedTuple):
    """How a layer, or each of several layers, is applied.

    layer: the layer's index. reads: the slot of the stack with its weights. sends: whether it sends them gradient. scale:
    factor of its updates of the residual stream, or None. adaptation: the layer's low-rank adaptation (`lora`), or None.
    """

    layer: Int32[Array, "*layers"]
    reads: Int32[Array, "*layers"]
    sends: Bool[Array, "*layers"]
    scale: Float[Array, "*layers"] | None = None
    adaptation: Any = None


class Transformer(nn.Module):
    """A stack of `layers` post-LN layers without final LayerNorm, or of pre-LN layers with one (`norm_first`).

    Weights are stacked: every leaf of `layers` is `[stack_size, ...]`. Layer i uses the weights in slot `owner[i]` (default:
    slot i) and, if `sends[i]` is false, sends them no gradient.

    Attributes:
        layers: Number of layers.
        width: Width of the states.
        heads: Number of attention heads.
        feed_forward: Width of the feed-forward layers.
        activation: Activation of the feed-forward layers, a key of `ACTIVATIONS`.
        dropout: Probability of dropout.
        identical_layers: Initialise all layers as copies of one, as torch's TransformerEncoder does.
        stack_size: Number of layers whose weights `init` creates (default: `layers`); a stack of any size can be applied.
        rematerialise: Scan over the layers and recompute each in the backward pass, so that neither activations nor a gradient
            for each use of a layer are stored, which suits deep stacks. Otherwise layers are unrolled, which is faster for few
            layers (by 45 % for two layers of width 32 in an ensemble of 64).
        norm_first: Pre-LN layers and a final LayerNorm.
        lora_rank: Rank of the low-rank adaptation that each layer adds to the weights that it shares (`lora`; default: none).
        residual_scale: Power of N, the number of layers that use the same slot, by which the updates of the residual stream are
            multiplied: 0 (x + f(x)), -1 (x + f(x) / N) or -1/2.
        causal, kernel_std, residual_std, hidden_dropout, attention_dropout, norm_epsilon, dtype: See `EncoderLayer`.
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
    lora_rank: int = 0
    residual_scale: float = 0.0
    causal: bool = False
    kernel_std: float | None = None
    residual_std: float | None = None
    hidden_dropout: bool = True
    attention_dropout: float | None = None
    norm_epsilon: float = LAYER_NORM_EPSILON
    dtype: Any = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length width"],
        owner: Int32[Array, " layers"] | Int32[np.ndarray, " layers"] | None = None,
        sends: Bool[Array, " layers"] | Bool[np.ndarray, " layers"] | None = None,
        position: Int[Array, " batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> Float[Array, "*places width"]:
        """Return the encoded sequences or, given `position`, only their states there; the last layer then computes no others.

        segments: the segment number of each position, if rows contain several sequences, which are encoded independently.
        every_layer: return x and the output of every layer, `[layers + 1, batch, length, width]`; the final LayerNorm of a
            pre-LN stack is applied only to the last.
        """
        if every_layer and position is not None:
            raise ValueError("every_layer: returns all positions; omit position")
        stack = self._stack(x)
        apply = self._apply_layer(stack, sends is not None, segments, deterministic)

        def at_every_position(x: jax.Array, use: Use) -> tuple[jax.Array, jax.Array | None]:
            x = apply(x, use, None)
            return x, x if every_layer else None

        def at_position(x: jax.Array, use: Use) -> jax.Array:
            return apply(x, use, position)

        every = jnp.arange(self.layers, dtype=jnp.int32)
        reads = every if owner is None else jnp.asarray(owner)
        all_send = jnp.ones(self.layers, bool) if sends is None else jnp.asarray(sends)
        uses = Use(every, reads, all_send, self._scale(reads), self._adaptation(stack))
        if every_layer:
            encoded, states = self._scan(at_every_position, x, uses)
            if self.norm_first:
                encoded = layer_norm("final_norm", dtype=self.dtype, epsilon=self.norm_epsilon)(encoded)
            return jnp.concatenate([x[None], states[:-1], encoded[None]])
        if self.rematerialise and position is None:
            # Keep the last layer in the same scan: outside it, it would need another gradient of the whole stack.
            x, _ = self._scan(at_every_position, x, uses)
        else:
            if self.layers > 1:
                x, _ = self._scan(at_every_position, x, jax.tree.map(lambda leaf: leaf[:-1], uses))
            last = jax.checkpoint(at_position) if self.rematerialise else at_position
            x = last(x, jax.tree.map(lambda leaf: leaf[-1], uses))
        x = layer_norm("final_norm", dtype=self.dtype, epsilon=self.norm_epsilon)(x) if self.norm_first else x
        return x if position is None else x[:, 0]

    def _layer(self) -> EncoderLayer:
        """Return a layer module, to be applied to the weights of any layer."""
        shared = {name: getattr(self, name) for name in EncoderLayer.__dataclass_fields__ if name not in ("parent", "name")}
        return EncoderLayer(**shared, parent=None, name="layer")

    def _stack(self, x: Float[Array, "batch length width"]) -> Any:
        """Return the weights of the layers, every leaf [stack_size, ...]: the given weights, or initial ones."""
        stack_size, layer = self.stack_size or self.layers, self._layer()

        def init_layer(key: jax.Array) -> Any:
            return layer.init(key, x[:1])["params"]

        def init(key: jax.Array) -> Any:
            if self.identical_layers:
                return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (stack_size, *leaf.shape)), init_layer(key))
            return jax.vmap(init_layer)(jax.random.split(key, stack_size))

        # An existing stack cannot go through `self.param`, which rejects sizes other than that of `init`: ties change the size.
        return self.get_variable("params", "layers") if self.has_variable("params", "layers") else self.param("layers", init)

    def _scale(self, reads: Int32[Array, " layers"]) -> Float[Array, " layers"] | None:
        """Return the factor of each layer's updates of the residual stream, or None if all are 1."""
        if not self.residual_scale:
            return None
        uses = jnp.sum(reads[:, None] == reads[None], axis=1)
        return uses.astype(jnp.float32) ** self.residual_scale

    def _adaptation(self, stack: Any) -> Any:
        """Return the low-rank adaptation of all layers, leaves [layers, ...]: the given or an initial one; None without."""
        if not self.lora_rank:
            return None
        return self.param("lora", lora.initial, stack, self.layers, self.lora_rank)

    def _apply_layer(
        self, stack: Any, gated: bool, segments: Integer[Array, "batch length"] | None, deterministic: bool
    ) -> Callable[[jax.Array, Use, jax.Array | None], jax.Array]:
        """Return a function (x, use, position) -> output of the layer in `use`. gated: some layers may send no gradient."""
        layer, drops = self._layer(), (self.dropout > 0 or (self.attention_dropout or 0) > 0) and not deterministic
        dropout_key = self.make_rng("dropout") if drops else None

        def apply(x: jax.Array, use: Use, position: jax.Array | None) -> jax.Array:
            weights = jax.tree.map(lambda leaf: jnp.asarray(leaf)[use.reads], stack)
            if gated:
                weights = jax.tree.map(lambda leaf: jnp.where(use.sends, leaf, jax.lax.stop_gradient(leaf)), weights)
            if use.adaptation is not None:
                weights = lora.adapted(weights, use.adaptation)
            rngs = None if dropout_key is None else {"dropout": jax.random.fold_in(dropout_key, use.layer)}
            return jnp.asarray(layer.apply({"params": weights}, x, position, segments, deterministic, use.scale, rngs=rngs))

        return apply

    def _scan(self, body: Callable[[jax.Array, Use], tuple[jax.Array, Any]], x: jax.Array, uses: Use) -> tuple[jax.Array, Any]:
        """Return x after all layers, rematerialised or unrolled, and the second output of `body` for each layer."""
        if self.rematerialise:
            return jax.lax.scan(jax.checkpoint(body), x, uses)
        return jax.lax.scan(body, x, uses, unroll=True)
