"""The language model: input stage, encoder and prediction head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from tiejax.models.embeddings import Embeddings, table_init
from tiejax.models.layers import LAYER_NORM_EPSILON, Dense, default_dtype, layer_norm
from tiejax.models.transformer import ACTIVATIONS

# Paths of the input and the output table in the parameter tree.
TABLE_PATHS = ("embed/embedding", "head/embedding")


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
    tables of different widths: Chung et al., ICLR 2021.
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
        names = ("embedding_std", "padding", "kernel_std", "norm_epsilon", "dtype")
        shared: dict[str, Any] = {name: getattr(self, name) for name in names}
        self.inputs = Embeddings(
            self.vocabulary,
            self.embed_width or self.width,
            self.width,
            max_positions=self.max_positions,
            token_types=self.token_types,
            norm=self.embedding_norm,
            dropout=self.embedding_dropout,
            projected=self.projected,
            **shared,
        )
        # Place its parameters, such as `embed`, `positions` and `norm`, at the top of the tree, next to `encoder` and `head`.
        nn.share_scope(self, self.inputs)
        self.head = PredictionHead(
            self.vocabulary, self.head_width or self.width, activation=self.head_activation, bias=self.head_bias, **shared
        )

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

        segments: the segment number of each token, if rows contain several sequences, which are encoded independently.
        owner, sends: the slot whose weights each layer uses, and whether it sends them gradient (see `Transformer`).
        every_layer: return the input of the first layer and the output of every layer, stacked.
        """
        x = self.inputs(tokens, segments, deterministic, token_types)
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
