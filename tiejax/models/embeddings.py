"""The input stage of a language model: from tokens to what the encoder is given."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from tiejax.models import features_first
from tiejax.models.dropout import Dropout
from tiejax.models.initializers import LAYER_NORM_EPSILON, Dense, default_dtype, layer_norm


class Embeddings(nn.Module):
    """x = dropout(norm(E_in[token] + positions + token types)), then mapped to the encoder's width where that is another.

    width: of the table and of all that is added to it, E_in. encoder_width: of what comes out, H. The map from E_in to H,
    `projection`, is there where they differ, or always (`projected`).
    embedding_std, padding, max_positions, norm, dropout, norm_epsilon, dtype: as of `LanguageModel`.
    token_types: add a learned embedding of the kind of each token (BERT's two sentences), for so many kinds.
    kernel_std: the map starts as N(0, kernel_std^2), its bias as 0 (default: as N(0, 1 / width)).
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
        """Return what the encoder is given. segments: several sequences in a row, by number; positions begin anew in each.

        token_types: the kind of each token (default: the first), where the model has kinds.
        """
        x = features_first.lookup(self.embed.embedding, tokens)
        if self.padding is not None:
            x = jnp.where((tokens == self.padding)[..., None], jax.lax.stop_gradient(x), x)
        if self.max_positions is not None:
            # A row alone is one segment.
            places = jnp.arange(tokens.shape[1])[None] if segments is None else restarting_positions(segments)
            x = x + self.positions(places)
        if self.token_types is not None:
            # One row for all is added without a look-up, whose gradient is slow on a CPU.
            x = x + (self.types.embedding[0] if token_types is None else self.types(token_types))
        x = x if self.dtype is None else x.astype(self.dtype)
        x = self.embedding_norm(x) if self.norm else x
        x = self.drop(x, deterministic=deterministic) if self.dropout else x
        return self.projection(x) if self.maps else x


def table_init(std: float, padding: int | None = None) -> jax.nn.initializers.Initializer:
    """Return the initializer N(0, std^2) of a table whose row `padding`, if there is one, starts at 0."""
    normal = jax.nn.initializers.normal(std)

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        table = normal(key, shape, dtype)
        return table if padding is None else table.at[padding].set(0)

    return init


def restarting_positions(segments: Integer[Array, "batch length"]) -> Int[Array, "batch length"]:
    """Return the position of each token within its segment, segments being runs of one number."""
    place = jnp.arange(segments.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], axis=1)
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
