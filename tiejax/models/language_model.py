"""A language model: input table, encoder, output table. No bias and no scale on the logits."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Integer

from tiejax.models import features_first
from tiejax.models.initializers import default_dtype, layer_norm

# The paths of the input and the output table in the parameters.
TABLE_PATHS = ("embed/embedding", "head/embedding")


class LanguageModel(nn.Module):
    """Predict a token from what the encoder shows of the others: logits = encoder(E_in[tokens]) . E_out^T.

    It is a masked LM where the encoder sees both sides, a causal one where it sees what came before.

    `embed/embedding` is E_in and `head/embedding` is E_out, both [vocabulary, width] and N(0, embedding_std^2) at the start.
    padding: this row of both tables starts at 0, and looking it up sends it no gradient, as torch's padding_idx.
    max_positions: add a learned embedding of the position, `positions/embedding`, for so many of them (default: none).
    embedding_norm, embedding_dropout: LayerNorm (as BERT) and dropout (as BERT and GPT-2) of what the encoder is given.
    dtype: of the encoder's computation (default: that of the tables).
    Source: Bertolotti and Cazzola, ICML 2024, sections on EXor and on large-scale experiments; GPT-2: Radford et al., 2019.
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

    def setup(self) -> None:
        normal = jax.nn.initializers.normal(self.embedding_std)

        def init(key: jax.Array, shape: Any, dtype: Any) -> jax.Array:
            table = normal(key, shape, dtype)
            return table if self.padding is None else table.at[self.padding].set(0)

        self.embed = nn.Embed(self.vocabulary, self.width, embedding_init=init, param_dtype=default_dtype())
        self.head = nn.Embed(self.vocabulary, self.width, embedding_init=init, param_dtype=default_dtype())
        if self.max_positions is not None:
            self.positions = nn.Embed(self.max_positions, self.width, embedding_init=normal, param_dtype=default_dtype())
        if self.embedding_norm:
            self.norm = layer_norm("norm", dtype=self.dtype)
        self.drop = nn.Dropout(self.embedding_dropout)

    def encode(
        self,
        tokens: Int[Array, "batch length"],
        position: Int[Array, "batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        owner: Int32[Array, "layers"] | Int32[np.ndarray, "layers"] | None = None,
        sends: Bool[Array, "layers"] | Bool[np.ndarray, "layers"] | None = None,
    ) -> Float[Array, "batch *length width"]:
        """Return h, the encoded states that the output table reads: everywhere, or at one `position` of each sequence.

        segments: several sequences in one row, by number; each is encoded as in a row of its own.
        owner, sends: whose weights each layer computes with, and whether it sends them gradient (`Transformer`).
        """
        x = self._embed(tokens, segments, deterministic)
        # Encoders that know no segments and no owners are not asked for any.
        options = {"segments": segments, "owner": owner, "sends": sends}
        options = {name: value for name, value in options.items() if value is not None}
        return self.encoder(x, position=position, deterministic=deterministic, **options)

    def _embed(
        self, tokens: Int[Array, "batch length"], segments: Integer[Array, "batch length"] | None, deterministic: bool
    ) -> Float[Array, "batch length width"]:
        """Return what the encoder is given: rows of the input table, with positions, LayerNorm and dropout where asked for."""
        x = features_first.lookup(self.embed.embedding, tokens)
        if self.padding is not None:
            x = jnp.where((tokens == self.padding)[..., None], jax.lax.stop_gradient(x), x)
        if self.max_positions is not None:
            # A row alone is one segment.
            places = jnp.arange(tokens.shape[1])[None] if segments is None else restarting_positions(segments)
            x = x + self.positions(places)
        x = x if self.dtype is None else x.astype(self.dtype)
        x = self.norm(x) if self.embedding_norm else x
        return self.drop(x, deterministic=deterministic) if self.embedding_dropout else x

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        position: Int[Array, "batch"] | None = None,
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        owner: Int32[Array, "layers"] | Int32[np.ndarray, "layers"] | None = None,
        sends: Bool[Array, "layers"] | Bool[np.ndarray, "layers"] | None = None,
    ) -> Float[Array, "batch *length vocabulary"]:
        """Return the logits at `position`, the only place where a masked LM has something to predict, or everywhere."""
        return self.head.attend(self.encode(tokens, position, segments, deterministic, owner, sends))


def restarting_positions(segments: Integer[Array, "batch length"]) -> Int[Array, "batch length"]:
    """Return the position of each token within its segment, segments being runs of one number."""
    place = jnp.arange(segments.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], axis=1)
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
