"""A masked language model: input table, encoder, output table. No bias and no scale on the logits."""

import flax.linen as nn
import jax
from jaxtyping import Array, Float, Int

from tiejax.models import columns
from tiejax.models.initializers import default_dtype


class MaskedLM(nn.Module):
    """Predict the symbol at a position from all the others: logits = encoder(E_in[tokens]) . E_out^T.

    `embed/embedding` is E_in and `head/embedding` is E_out, both [vocabulary, width] and N(0, 1) at the start.
    Source: Bertolotti and Cazzola, ICML 2024, section on EXor.
    """

    vocabulary: int
    width: int
    encoder: nn.Module

    def setup(self) -> None:
        init = jax.nn.initializers.normal(1.0)
        self.embed = nn.Embed(self.vocabulary, self.width, embedding_init=init, param_dtype=default_dtype())
        self.head = nn.Embed(self.vocabulary, self.width, embedding_init=init, param_dtype=default_dtype())

    def encode(
        self, tokens: Int[Array, "batch length"], position: Int[Array, "batch"], deterministic: bool = True
    ) -> Float[Array, "batch width"]:
        """Return h, the encoded state at `position`, which the output table reads."""
        return self.encoder(columns.lookup(self.embed.embedding, tokens), position=position, deterministic=deterministic)

    def __call__(
        self, tokens: Int[Array, "batch length"], position: Int[Array, "batch"], deterministic: bool = True
    ) -> Float[Array, "batch vocabulary"]:
        """Return the logits at `position`, the only place where a masked LM has something to predict."""
        return self.head.attend(self.encode(tokens, position, deterministic))
