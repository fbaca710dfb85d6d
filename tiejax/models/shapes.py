"""Shapes of encoders with independent widths of input and output embeddings, and the published shapes.

Source: H. W. Chung, T. Fevry, H. Tsai, M. Johnson, S. Ruder, Rethinking Embedding Coupling in Pre-trained Language Models,
ICLR 2021 (arXiv:2010.12821). This module loads neither jax nor a model.
"""

import dataclasses
from typing import NamedTuple

FEED_FORWARD = 4  # width of the feed-forward layer, in multiples of H, as in BERT
TOKEN_TYPES = 2
STD = 0.02  # standard deviation of initial kernels and tables, as in BERT and GPT-2
POSITIONS = 512


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of BERT's encoder and prediction head with tables of any width.

    embed_in, embed_out: E_in and E_out, the widths of the input and the output embedding. width: H, the width of the encoder.
    layers, heads: the numbers of encoder layers in pre-training and of attention heads. coupled: one table for input and
    output, so E_in = E_out; if it is narrower than H, the embedding is factorised as in ALBERT. drop: number of top layers
    dropped after pre-training.
    """

    embed_in: int
    embed_out: int
    width: int
    layers: int
    heads: int
    coupled: bool = False
    drop: int = 0

    def problem(self) -> str | None:
        """Return the first reason why the shape is invalid, or None if it is valid."""
        for name in ("embed_in", "embed_out", "width", "layers", "heads"):
            if getattr(self, name) < 1:
                return f"{name}: expected an integer >= 1, got {getattr(self, name)}"
        if self.width % self.heads:
            return f"{self.heads} heads do not divide the width {self.width}"
        if self.coupled and self.embed_in != self.embed_out:
            return f"a coupled table has one width, but embed_in is {self.embed_in} and embed_out {self.embed_out}"
        if not 0 <= self.drop < self.layers:
            return f"cannot drop {self.drop} of {self.layers} layers; expected 0 to {self.layers - 1}"
        return None


class Published(NamedTuple):
    """A model from the paper.

    pretraining, fine_tuning: the published numbers of parameters, in millions.
    """

    name: str
    shape: Shape
    vocabulary: int
    pretraining: int
    fine_tuning: int


# Sizes of the vocabularies of multilingual BERT and of cased English BERT, which reproduce the counts of the paper.
MULTILINGUAL, ENGLISH = 119_547, 28_996

# The E_out of the released RemBERT, which reproduces the published number of parameters; the published 1,536 does not.
REMBERT = Shape(256, 1664, 1152, 32, 18)

PUBLISHED_SHAPES = (
    Published("coupled 768", Shape(768, 768, 768, 12, 12, coupled=True), MULTILINGUAL, 177, 177),
    Published("decoupled 768 / 768", Shape(768, 768, 768, 12, 12), MULTILINGUAL, 269, 177),
    Published("E_in 768, E_out 128", Shape(768, 128, 768, 12, 12), MULTILINGUAL, 192, 177),
    Published("E_in 128, E_out 768", Shape(128, 768, 768, 12, 12), MULTILINGUAL, 192, 100),
    Published("E_in 128, E_out 128", Shape(128, 128, 768, 12, 12), MULTILINGUAL, 115, 100),
    Published("E_in 128, E_out 3072", Shape(128, 3072, 768, 12, 12), MULTILINGUAL, 469, 100),
    Published("coupled, factorised 128", Shape(128, 128, 768, 12, 12, coupled=True), MULTILINGUAL, 100, 100),
    Published("E_in 128, E_out 128, 11 layers dropped", Shape(128, 128, 768, 23, 12, drop=11), MULTILINGUAL, 193, 100),
    Published("E_in 128, E_out 768, H 1024", Shape(128, 768, 1024, 12, 16), MULTILINGUAL, 260, 168),
    Published("E_in 128, E_out 768, L 23", Shape(128, 768, 768, 23, 12), MULTILINGUAL, 270, 178),
    Published("English, coupled 768 (BERT)", Shape(768, 768, 768, 12, 12, coupled=True), ENGLISH, 110, 110),
    Published("English, E_in 128, E_out 128", Shape(128, 128, 768, 12, 12), ENGLISH, 93, 89),
    Published("English, E_in 128, E_out 768", Shape(128, 768, 768, 12, 12), ENGLISH, 112, 89),
    Published("English, E_in 128, E_out 3072", Shape(128, 3072, 768, 12, 12), ENGLISH, 181, 89),
    Published("English, E_in 128, E_out 128, 3 layers dropped", Shape(128, 128, 768, 15, 12, drop=3), ENGLISH, 114, 89),
    Published("English, E_in 128, E_out 128, 12 layers dropped", Shape(128, 128, 768, 24, 12, drop=12), ENGLISH, 178, 89),
    Published("RemBERT", REMBERT, 250_300, 995, 575),
)
