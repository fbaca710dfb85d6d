"""A language model: input stage, encoder, prediction head."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from tiejax.models.embeddings import Embeddings
from tiejax.models.head import PredictionHead
from tiejax.models.initializers import LAYER_NORM_EPSILON

# The paths of the input and the output table in the parameters.
TABLE_PATHS = ("embed/embedding", "head/embedding")


class LanguageModel(nn.Module):
    """Predict a token from what the encoder shows of the others: logits = t(encoder(input stage(tokens))) . E_out^T + b.

    It is a masked LM where the encoder sees both sides, a causal one where it sees what came before. Unless something is said
    of the input stage or the head, tables are as wide as the encoder, t is the identity and there is no b.

    `embed/embedding` is E_in, [vocabulary, embed_width], and `head/embedding` is E_out, [vocabulary, head_width]; both are
    N(0, embedding_std^2) at the start. All parameters of the head are below `head`.
    width: of the encoder, H; embed_width, head_width: E_in and E_out (default: H).
    padding: this row of both tables starts at 0, and looking it up sends it no gradient, as torch's padding_idx.
    max_positions: add a learned embedding of the position, `positions/embedding`, for so many of them (default: none).
    token_types: add one of the kind of each token, `types/embedding`, for so many kinds (default: none).
    embedding_norm, embedding_dropout: LayerNorm (as BERT) and dropout (as BERT and GPT-2) of what is added up.
    projected: map the input stage to the encoder's width also where both are equal, as the library's RemBERT does.
    head_activation: the head maps states to E_out, with this activation and LayerNorm, as BERT's (default: it does not).
    head_bias: add a bias to the logits. kernel_std: how the maps of input stage and head start (default: 1 / sqrt(E)).
    norm_epsilon: of the LayerNorms of input stage and head. dtype: of the computation (default: that of the tables).
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
        self.inputs = Embeddings(
            self.vocabulary,
            self.embed_width or self.width,
            self.width,
            embedding_std=self.embedding_std,
            padding=self.padding,
            max_positions=self.max_positions,
            token_types=self.token_types,
            norm=self.embedding_norm,
            dropout=self.embedding_dropout,
            projected=self.projected,
            kernel_std=self.kernel_std,
            norm_epsilon=self.norm_epsilon,
            dtype=self.dtype,
        )
        # Its parameters stand beside those of the encoder, as `embed`, `positions`, `norm`.
        nn.share_scope(self, self.inputs)
        self.head = PredictionHead(
            self.vocabulary,
            self.head_width or self.width,
            activation=self.head_activation,
            bias=self.head_bias,
            embedding_std=self.embedding_std,
            padding=self.padding,
            kernel_std=self.kernel_std,
            norm_epsilon=self.norm_epsilon,
            dtype=self.dtype,
        )

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        position: Int[Array, "batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        owner: Int32[Array, "layers"] | Int32[np.ndarray, "layers"] | None = None,
        sends: Bool[Array, "layers"] | Bool[np.ndarray, "layers"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
        every_layer: bool = False,
    ) -> Float[Array, "*places width"]:
        """Return h, the encoded states that the head reads: everywhere, or at one `position` of each sequence.

        segments: several sequences in one row, by number; each is encoded as in a row of its own.
        owner, sends: whose weights each layer computes with, and whether it sends them gradient (`Transformer`).
        every_layer: return what the first layer is given, and what every layer returns, one after the other.
        """
        x = self.inputs(tokens, segments, deterministic, token_types)
        # Encoders that know no segments, owners or layers are not asked for any.
        options = {"segments": segments, "owner": owner, "sends": sends, "every_layer": every_layer or None}
        options = {name: value for name, value in options.items() if value is not None}
        return self.encoder(x, position=position, deterministic=deterministic, **options)

    def transform(self, states: Float[Array, "*batch width"]) -> Float[Array, "*batch head_width"]:
        """Return what the output table reads of encoded states."""
        return jnp.asarray(self.head.transform(states))

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        position: Int[Array, "batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        owner: Int32[Array, "layers"] | Int32[np.ndarray, "layers"] | None = None,
        sends: Bool[Array, "layers"] | Bool[np.ndarray, "layers"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch *length vocabulary"]:
        """Return the logits at `position`, the only place where a masked LM has something to predict, or everywhere."""
        return self.head(self.encode(tokens, position, segments, deterministic, owner, sends, token_types))
