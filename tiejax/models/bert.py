"""BERT's masked LM with tables of any width, and its parameters without the head or the top layers."""

from typing import Any

import jax

from tiejax.models.language_model import LanguageModel
from tiejax.models.shapes import FEED_FORWARD, POSITIONS, STD, TOKEN_TYPES, Shape
from tiejax.models.transformer import Transformer

PyTree = Any

NORM_EPSILON = 1e-12
HEAD = "head"


def build(
    shape: Shape,
    vocabulary: int,
    max_positions: int = POSITIONS,
    token_types: int = TOKEN_TYPES,
    dropout: float = 0.0,
    padding: int | None = None,
    rematerialise: bool = False,
    dtype: Any = None,
    embedding_std: float = STD,
    kernel_std: float = STD,
) -> LanguageModel:
    """Return the untied masked LM of a shape: BERT's layers (post-LN, exact GELU, feed-forward width 4 H) and its head.

    The input stage has width E_in and is mapped to H if the two differ; the head maps H to E_out. A coupled shape needs a tie,
    which the caller adds. Source: Devlin et al., 2019; Chung et al., ICLR 2021, section 3.
    """
    encoder = Transformer(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        feed_forward=FEED_FORWARD * shape.width,
        dropout=dropout,
        identical_layers=False,
        rematerialise=rematerialise,
        kernel_std=kernel_std,
        residual_std=kernel_std,
        hidden_dropout=False,
        norm_epsilon=NORM_EPSILON,
        dtype=dtype,
    )
    return LanguageModel(
        vocabulary,
        shape.width,
        encoder,
        embedding_std=embedding_std,
        padding=padding,
        max_positions=max_positions,
        embedding_norm=True,
        embedding_dropout=dropout,
        dtype=dtype,
        embed_width=shape.embed_in,
        head_width=shape.embed_out,
        token_types=token_types,
        head_activation="gelu",
        head_bias=True,
        kernel_std=kernel_std,
        norm_epsilon=NORM_EPSILON,
    )


def discard_head(params: PyTree) -> PyTree:
    """Return the parameters that fine-tuning starts from: all but those of the prediction head."""
    return {name: part for name, part in params.items() if name != HEAD}


def drop_layers(params: PyTree, number: int) -> PyTree:
    """Return the parameters without the top `number` layers of the encoder; raises ValueError if no layer would remain."""
    stack = params["encoder"]["layers"]
    layers = len(jax.tree.leaves(stack)[0])
    if not 0 <= number < layers:
        raise ValueError(f"cannot drop {number} of {layers} layers; expected 0 to {layers - 1}")
    return params | {"encoder": params["encoder"] | {"layers": jax.tree.map(lambda leaf: leaf[: layers - number], stack)}}
