"""The language model: input stage, encoder and prediction head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from tiejax.models import features_first
from tiejax.models.layers import LAYER_NORM_EPSILON, Dense, Dropout, default_dtype, layer_norm
from tiejax.models.transformer import ACTIVATIONS

# Paths of the input and the output table in the parameter tree.
TABLE_PATHS = ("embed/embedding", "head/embedding")


def table_init(std: float, padding: int | None = None) -> jax.nn.initializers.Initializer:
    """Return an initializer N(0, std^2) for a table whose row `padding`, if given, is 0."""
    normal = jax.nn.initializers.normal(std)

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        table = normal(key, shape, dtype)
        return table if padding is None else table.at[padding].set(0)

    return init


def restarting_positions(segments: Integer[Array, "batch length"]) -> Int[Array, "batch length"]:
    """Return the position of each token within its segment; a segment is a run of equal numbers."""
    place = jnp.arange(segments.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], axis=1)
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)


class PredictionHead(nn.Module):
    """logits = t(h) . E_out^T + b, where t(h) = LN(act(W h)) maps states to the width of E_out, or t(h) = h.

    `embedding` is E_out, [vocabulary, width]. activation: the activation of the transform t, whose parameters are `dense` and
    `norm` (default: no transform). bias: whether b, [vocabulary], exists; it starts at 0. Other fields: see `LanguageModel`.
    Fine-tuning discards the head.
    Source: BERT (Devlin et al., 2019); an independent width of E_out: Chung et al., ICLR 2021, section 3.
    """

    vocabulary: int
    width: int
    activation: str | None = None
    bias: bool = False
    embedding_std: float = 1.0
    padding: int | None = None
    kernel_std: float | None = None
    norm_epsilon: float = LAYER_NORM_EPSILON
    dtype: Any = None

    def setup(self) -> None:
        shape = self.vocabulary, self.width
        self.embedding = self.param("embedding", table_init(self.embedding_std, self.padding), shape, default_dtype())
        if self.activation is not None:
            std = self.width**-0.5 if self.kernel_std is None else self.kernel_std
            kernel = jax.nn.initializers.normal(std)
            self.dense = Dense(self.width, kernel_init=kernel, param_dtype=default_dtype(), dtype=self.dtype)
            self.transform_norm = layer_norm("norm", dtype=self.dtype, epsilon=self.norm_epsilon)
        if self.bias:
            self.logit_bias = self.param("bias", jax.nn.initializers.zeros, (self.vocabulary,), default_dtype())

    def transform(self, states: Float[Array, "*batch width"]) -> Float[Array, "*batch width_out"]:
        """Return the transformed states, which are multiplied by the output table."""
        if self.activation is None:
            return states
        return self.transform_norm(ACTIVATIONS[self.activation](self.dense(states)))

    def __call__(self, states: Float[Array, "*batch width"]) -> Float[Array, "*batch vocabulary"]:
        """Return the logits of encoded states."""
        transformed = self.transform(states)
        logits = jnp.dot(transformed, self.embedding.astype(transformed.dtype).T)
        return logits + self.logit_bias if self.bias else logits


class LanguageModel(nn.Module):
    """A language model with separate input and output tables: logits = t(encoder(input stage(tokens))) . E_out^T + b.

    It is a masked LM if the encoder sees positions on both sides, and a causal LM if it sees only earlier ones. By default the
    tables are as wide as the encoder, t is the identity, and there is no bias b.

    `embed/embedding` is E_in, [vocabulary, embed_width], and `head/embedding` is E_out, [vocabulary, head_width]; both are
    initialised from N(0, embedding_std^2). All parameters of the head are below `head`.

    Attributes:
        vocabulary: Number of tokens.
        width: H, the width of the encoder.
        encoder: Module from `[batch, length, width]` to the same shape.
        embedding_std: Standard deviation of the initial tables.
        padding: Row of both tables that starts at 0; looking it up sends it no gradient, as with torch's padding_idx.
        max_positions: Number of learned position embeddings, `positions/embedding`, that are added (default: none).
        token_types: Number of token types, whose learned embeddings, `types/embedding`, are added (default: none).
        embedding_norm, embedding_dropout: LayerNorm (as in BERT) and dropout (as in BERT and GPT-2) on the summed embeddings.
        dtype: Dtype of the computation (default: that of the tables).
        embed_width, head_width: E_in and E_out, the widths of the tables (default: H).
        projected: Map the input stage to the encoder's width even if both are equal, as RemBERT in transformers does.
        head_activation: The head maps states to E_out with this activation and a LayerNorm, as in BERT (default: no map).
        head_bias: Add a bias to the logits.
        kernel_std: Standard deviation of the initial kernels of input stage and head (default: 1 / sqrt(table width)).
        norm_epsilon: Epsilon of the LayerNorms of input stage and head.

    Source: Bertolotti and Cazzola, ICML 2024, sections on EXor and on large-scale experiments; GPT-2: Radford et al., 2019;
    BERT: Devlin et al., 2019; a narrow table with a map: ALBERT, Lan et al., 2020; tables of different widths: Chung et al.,
    2021.
    """

    vocabulary: int
    width: int
    encoder: nn.Module
    embedding_std: float = 1.0
    padding: int | None = None
    max_positions: int | None = None
    embedding_norm: bool = False
    embedding_dropout: float = 0.0
    dtype: Any = None
    embed_width: int | None = None
    head_width: int | None = None
    token_types: int | None = None
    projected: bool = False
    head_activation: str | None = None
    head_bias: bool = False
    kernel_std: float | None = None
    norm_epsilon: float = LAYER_NORM_EPSILON

    def setup(self) -> None:
        if self.dtype is not None and not hasattr(self.encoder, "dtype"):
            raise ValueError(f"dtype: a {type(self.encoder).__name__} computes in the dtype of its parameters; omit dtype")
        width, normal = self.embed_width or self.width, jax.nn.initializers.normal(self.embedding_std)
        init = table_init(self.embedding_std, self.padding)
        self.embed = nn.Embed(self.vocabulary, width, embedding_init=init, param_dtype=default_dtype())
        if self.max_positions is not None:
            self.positions = nn.Embed(self.max_positions, width, embedding_init=normal, param_dtype=default_dtype())
        if self.token_types is not None:
            self.types = nn.Embed(self.token_types, width, embedding_init=normal, param_dtype=default_dtype())
        if self.embedding_norm:
            self.norm = layer_norm("norm", dtype=self.dtype, epsilon=self.norm_epsilon)
        self.maps = self.projected or width != self.width
        if self.maps:
            kernel = jax.nn.initializers.normal(width**-0.5 if self.kernel_std is None else self.kernel_std)
            self.projection = Dense(self.width, kernel_init=kernel, param_dtype=default_dtype(), dtype=self.dtype)
        self.drop = Dropout(self.embedding_dropout)
        names = ("embedding_std", "padding", "kernel_std", "norm_epsilon", "dtype")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        self.head = PredictionHead(
            self.vocabulary, self.head_width or self.width, activation=self.head_activation, bias=self.head_bias, **shared
        )

    def _inputs(
        self,
        tokens: Int[Array, "batch length"],
        segments: Integer[Array, "batch length"] | None,
        deterministic: bool,
        token_types: Int[Array, "batch length"] | None,
    ) -> Float[Array, "batch length width"]:
        """Return the encoder's input, dropout(norm(E_in[token] + positions + token types)), mapped to H if widths differ."""
        x = features_first.lookup(self.embed.embedding, tokens)
        if self.padding is not None:
            x = jnp.where((tokens == self.padding)[..., None], jax.lax.stop_gradient(x), x)
        if self.max_positions is not None:
            if segments is None and tokens.shape[1] > self.max_positions:
                raise ValueError(f"tokens: rows of {tokens.shape[1]} tokens, but the model has {self.max_positions} positions")
            # Without segments a row is one segment.
            places = jnp.arange(tokens.shape[1])[None] if segments is None else restarting_positions(segments)
            if segments is not None and tokens.shape[1] > self.max_positions:
                # Of padding, positions beyond the last would be NaN, which attention spreads, since 0 x NaN is NaN.
                places = jnp.where(segments == 0, jnp.minimum(places, self.max_positions - 1), places)
                if not isinstance(places, jax.core.Tracer) and (longest := int(jnp.max(places)) + 1) > self.max_positions:
                    raise ValueError(
                        f"segments: a segment of {longest} tokens, but the model has {self.max_positions} positions"
                    )
            x = x + self.positions(places)
        if self.token_types is not None:
            # If all tokens have one type, avoid the look-up, whose gradient is slow on a CPU.
            x = x + (self.types.embedding[0] if token_types is None else self.types(token_types))
        x = x if self.dtype is None else x.astype(self.dtype)
        x = self.norm(x) if self.embedding_norm else x
        x = self.drop(x, deterministic=deterministic) if self.embedding_dropout else x
        return self.projection(x) if self.maps else x

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        position: Int[Array, " batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        owner: Int32[Array, " layers"] | Int32[np.ndarray, " layers"] | None = None,
        sends: Bool[Array, " layers"] | Bool[np.ndarray, " layers"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
        every_layer: bool = False,
    ) -> Float[Array, "*places width"]:
        """Return h, the encoded states, at every position or at one `position` of each sequence.

        segments: the segment number of each token, from 1, and 0 for padding, if rows contain several sequences, which are
        encoded independently, with positions that restart; in a compiled function, one that is longer than `max_positions`
        makes its row NaN. token_types: the type of each token (default: the first type).
        owner, sends: the slot whose weights each layer uses, and whether it sends them gradient (see `Transformer`).
        every_layer: return the input of the first layer and the output of every layer, stacked.
        """
        x = self._inputs(tokens, segments, deterministic, token_types)
        # Pass only the options in use, since some encoders do not accept all of them.
        options = {"segments": segments, "owner": owner, "sends": sends, "every_layer": every_layer or None}
        options = {name: value for name, value in options.items() if value is not None}
        return self.encoder(x, position=position, deterministic=deterministic, **options)

    def transform(self, states: Float[Array, "*batch width"]) -> Float[Array, "*batch head_width"]:
        """Return the transformed states, which are multiplied by the output table."""
        return jnp.asarray(self.head.transform(states))

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        position: Int[Array, " batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        owner: Int32[Array, " layers"] | Int32[np.ndarray, " layers"] | None = None,
        sends: Bool[Array, " layers"] | Bool[np.ndarray, " layers"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch *length vocabulary"]:
        """Return the logits at one `position` of each sequence, or at every position."""
        return self.head(self.encode(tokens, position, segments, deterministic, owner, sends, token_types))
