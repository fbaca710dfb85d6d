"""The prediction head of a language model, from the encoder's states to logits."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.models.embeddings import table_init
from tiejax.models.initializers import LAYER_NORM_EPSILON, Dense, default_dtype, layer_norm
from tiejax.models.transformer import ACTIVATIONS


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
