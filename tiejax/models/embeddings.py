"""The input stage of a language model, from tokens to the encoder's input."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from tiejax.models import features_first
from tiejax.models.layers import LAYER_NORM_EPSILON, Dense, Dropout, default_dtype, layer_norm


class Embeddings(nn.Module):
    """x = dropout(norm(E_in[token] + positions + token types)), mapped to the encoder's width if that differs.

    width: E_in, the width of the table and of everything added to it. encoder_width: H, the width of the output. The map from
    E_in to H, `projection`, exists if they differ, or always with `projected`.
    embedding_std, padding, max_positions, norm, dropout, norm_epsilon, dtype: see `LanguageModel`.
    token_types: number of token types, whose learned embeddings are added (BERT's two sentences; default: none).
    kernel_std: the map is initialised from N(0, kernel_std^2) (default: N(0, 1 / width)) and its bias is 0.
    Source: BERT (Devlin et al., 2019); the map of a narrow table: ALBERT (Lan et al., 2020).
    """

    vocabulary: int
    width: int
    encoder_width: int
    embedding_std: float = 1.0
    padding: int | None = None
    max_positions: int | None = None
    token_types: int | None = None
    norm: bool = False
    dropout: float = 0.0
    projected: bool = False
    kernel_std: float | None = None
    norm_epsilon: float = LAYER_NORM_EPSILON
    dtype: Any = None

    def setup(self) -> None:
        normal = jax.nn.initializers.normal(self.embedding_std)
        init = table_init(self.embedding_std, self.padding)
        self.embed = nn.Embed(self.vocabulary, self.width, embedding_init=init, param_dtype=default_dtype())
        if self.max_positions is not None:
            self.positions = nn.Embed(self.max_positions, self.width, embedding_init=normal, param_dtype=default_dtype())
        if self.token_types is not None:
            self.types = nn.Embed(self.token_types, self.width, embedding_init=normal, param_dtype=default_dtype())
        if self.norm:
            self.embedding_norm = layer_norm("norm", dtype=self.dtype, epsilon=self.norm_epsilon)
        self.maps = self.projected or self.width != self.encoder_width
        if self.maps:
            std = self.width**-0.5 if self.kernel_std is None else self.kernel_std
            kernel = jax.nn.initializers.normal(std)
            self.projection = Dense(self.encoder_width, kernel_init=kernel, param_dtype=default_dtype(), dtype=self.dtype)
        self.drop = Dropout(self.dropout)

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        segments: Integer[Array, "batch length"] | None = None,
        deterministic: bool = True,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch length encoder_width"]:
        """Return the encoder's input.

        segments: the segment number of each token, if rows contain several sequences; positions restart in each segment.
        token_types: the type of each token (default: the first type).
        """
        x = features_first.lookup(self.embed.embedding, tokens)
        if self.padding is not None:
            x = jnp.where((tokens == self.padding)[..., None], jax.lax.stop_gradient(x), x)
        if self.max_positions is not None:
            # Without segments a row is one segment.
            places = jnp.arange(tokens.shape[1])[None] if segments is None else restarting_positions(segments)
            x = x + self.positions(places)
        if self.token_types is not None:
            # If all tokens have one type, avoid the look-up, whose gradient is slow on a CPU.
            x = x + (self.types.embedding[0] if token_types is None else self.types(token_types))
        x = x if self.dtype is None else x.astype(self.dtype)
        x = self.embedding_norm(x) if self.norm else x
        x = self.drop(x, deterministic=deterministic) if self.dropout else x
        return self.projection(x) if self.maps else x


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
