"""Mapping between the tensor names of checkpoint families and tiejax's parameter arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

TABLE, OUTPUT_TABLE, OUTPUT_BIAS = "embed/embedding", "head/embedding", "head/bias"
PROJECTION, POOLER, HEAD, STACK = "projection", "pooler", "head/", "encoder/layers/"
# Torch's names of our leaves; the second name is that of checkpoints converted from TensorFlow.
LEAVES = {"kernel": ("weight",), "embedding": ("weight",), "scale": ("weight", "gamma"), "bias": ("bias", "beta")}


class Names(NamedTuple):
    """A family's names for the modules of our model.

    prefix: precedes all names except those of the head, in classes with a head. modules: our name -> theirs. layers: the prefix
    of a layer's names, with a placeholder for its number. layer: our module of a layer -> theirs, or three of theirs where
    only we store query, key and value as one map. head: our module of the head -> theirs. table, bias: names in the head; of
    several names of the bias, the library adds the first that exists to the logits. linear: whether maps are torch's Linear
    [out, in]; otherwise they are [in, out] like ours. ties: whether the library ties the head's table to the input table if it
    is missing or equal.
    """

    prefix: str
    modules: Mapping[str, str]
    layers: str
    layer: Mapping[str, Sequence[str]]
    head: Mapping[str, str]
    table: str
    bias: tuple[str, ...]
    linear: bool = True
    ties: bool = True


BERT = Names(
    prefix="bert.",
    modules={
        "embed": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "norm": "embeddings.LayerNorm",
        POOLER: "pooler.dense",
    },
    layers="encoder.layer.{}.",
    layer={
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "feed_forward_in": ("intermediate.dense",),
        "feed_forward_out": ("output.dense",),
        "feed_forward_norm": ("output.LayerNorm",),
    },
    head={"dense": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"},
    table="cls.predictions.decoder.weight",
    bias=("cls.predictions.decoder.bias", "cls.predictions.bias"),
)
REMBERT = BERT._replace(
    prefix="rembert.",
    modules={**BERT.modules, PROJECTION: "encoder.embedding_hidden_mapping_in"},
    head={"dense": "cls.predictions.dense", "norm": "cls.predictions.LayerNorm"},
    bias=("cls.predictions.decoder.bias",),
    ties=False,
)
ALBERT = Names(
    prefix="albert.",
    modules={**REMBERT.modules, POOLER: "pooler"},
    layers="encoder.albert_layer_groups.{}.albert_layers.0.",
    layer={
        "qkv": ("attention.query", "attention.key", "attention.value"),
        "out": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "feed_forward_in": ("ffn",),
        "feed_forward_out": ("ffn_output",),
        "feed_forward_norm": ("full_layer_layer_norm",),
    },
    head={"dense": "predictions.dense", "norm": "predictions.LayerNorm"},
    table="predictions.decoder.weight",
    bias=("predictions.decoder.bias", "predictions.bias"),
)
GPT2 = Names(
    prefix="transformer.",
    modules={"embed": "wte", "positions": "wpe", "encoder/final_norm": "ln_f"},
    layers="h.{}.",
    layer={
        "attention_norm": ("ln_1",),
        "qkv": ("attn.c_attn",),
        "out": ("attn.c_proj",),
        "feed_forward_norm": ("ln_2",),
        "feed_forward_in": ("mlp.c_fc",),
        "feed_forward_out": ("mlp.c_proj",),
    },
    head={},
    table="lm_head.weight",
    bias=(),
    linear=False,
)


class Slot(NamedTuple):
    """The slot of a tensor in our parameters.

    names: possible names of the tensor. path: of our array. layer: index in the stack of layers, None outside it. part, parts:
    the tensor fills columns `part` of `parts` equal parts. transposed: the tensor is [out, in], our array [in, out].
    """

    names: tuple[str, ...]
    path: str
    layer: int | None = None
    part: int = 0
    parts: int = 1
    transposed: bool = False


def slots(names: Names, paths: Sequence[str], prefix: str, numbers: Sequence[int]) -> Iterator[Slot]:
    """Yield the slots of all tensors that make up our arrays at these paths.

    prefix: of names in the file: the family's, or "". numbers: for each of our layers, its number in the file.
    """
    for path in paths:
        module, _, leaf = path.rpartition("/")
        transposed = names.linear and leaf == "kernel"
        if path == OUTPUT_TABLE:
            yield Slot((names.table,), path)
        elif path == OUTPUT_BIAS:
            yield Slot(names.bias, path)
        elif path.startswith(HEAD):
            yield Slot(_leaves(names.head[module.removeprefix(HEAD)], leaf), path, transposed=transposed)
        elif path.startswith(STACK):
            theirs = names.layer[module.removeprefix(STACK)]
            for layer, number in enumerate(numbers):
                for part, one in enumerate(theirs):
                    full = _leaves(prefix + names.layers.format(number) + one, leaf)
                    yield Slot(full, path, layer, part, len(theirs), transposed)
        else:
            yield Slot(_leaves(prefix + names.modules[module], leaf), path, transposed=transposed)


def view(array: np.ndarray, slot: Slot) -> np.ndarray:
    """Return the slot's part of our array, in the layout of the file, as a view: assigning to it fills our array."""
    array = array if slot.layer is None else array[slot.layer]
    size = array.shape[-1] // slot.parts
    array = array[..., slot.part * size : (slot.part + 1) * size]
    return array.T if slot.transposed else array


def _leaves(module: str, leaf: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in LEAVES[leaf])
