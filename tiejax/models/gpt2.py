"""GPT-2 as a language model with separate input and output tables.

Source: A. Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

import math
from typing import Any

from tiejax.models.language_model import LanguageModel
from tiejax.models.shapes import STD
from tiejax.models.transformer import Transformer


def build(
    vocabulary: int,
    layers: int,
    width: int,
    heads: int,
    feed_forward: int,
    context: int,
    activation: str = "gelu_tanh",
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    causal: bool = True,
    head_bias: bool = False,
    padding: int | None = None,
    dtype: Any = None,
    embed_width: int | None = None,
    lora_rank: int = 0,
    residual_scale: float = 0.0,
    initial_std: float = STD,
) -> LanguageModel:
    """Return a pre-LN transformer with learned positions and a final LayerNorm, rematerialised layer by layer.

    Tables, positions and kernels start from N(0, initial_std^2), kernels that add to the residual stream from
    N(0, initial_std^2 / (2 layers)), biases from 0.

    width: of tables and states. context: number of positions. dropout: of embeddings and residual updates. head_bias: add a
    bias to the logits, which GPT-2 has not. embed_width: width of the input table and the positions, which a linear map takes
    to `width` (default: `width`, no map). Other arguments: see `Transformer` and `LanguageModel`.
    """
    encoder = Transformer(
        layers=layers,
        width=width,
        heads=heads,
        feed_forward=feed_forward,
        activation=activation,
        dropout=dropout,
        identical_layers=False,
        rematerialise=True,
        norm_first=True,
        lora_rank=lora_rank,
        residual_scale=residual_scale,
        causal=causal,
        kernel_std=initial_std,
        residual_std=initial_std / math.sqrt(2 * layers),
        hidden_dropout=False,
        attention_dropout=attention_dropout,
        dtype=dtype,
    )
    return LanguageModel(
        vocabulary,
        width,
        encoder,
        embedding_std=initial_std,
        padding=padding,
        max_positions=context,
        embedding_dropout=dropout,
        head_bias=head_bias,
        dtype=dtype,
        embed_width=embed_width,
    )
