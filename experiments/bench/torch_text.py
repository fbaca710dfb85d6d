"""Baseline of `bench.py text`: the text study's published model in a plain torch loop on packed rows. Needs torch."""

from typing import Any

import torch
from torch.nn import functional

from experiments.bench.contender import Train
from experiments.bench.torch_encoder import Job, Layer, loop, without_other_sentences
from tiejax.models.shapes import Shape


class PublishedMaskedLM(torch.nn.Module):
    """The published masked LM: post-LN layers between tied tables, without positions, outer norms or a prediction head."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def forward(self, tokens: Any, segments: Any, positions: Any, slots: Any) -> Any:
        """Return logits `[slots, vocabulary]`; tokens of different `segments` of a row do not attend to each other."""
        x, bias = self.embed(tokens), without_other_sentences(segments, self.embed.weight.dtype)
        for layer in self.layers:
            x = layer(x, bias)
        return functional.linear(x.flatten(0, 1)[slots], self.embed.weight)


def train_by_loop(job: Job) -> Train:
    """Return a plain loop that trains the published model."""
    return loop(job, lambda: PublishedMaskedLM(job.shape, job.vocabulary.size))
