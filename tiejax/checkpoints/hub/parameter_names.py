"""Mapping between the tensor names of checkpoint families and tiejax's parameter arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

TABLE, OUTPUT_TABLE, OUTPUT_BIAS = "embed/embedding", "head/embedding", "head/bias"
PROJECTION, POOLER, HEAD, STACK = "projection", "pooler", "head/", "encoder/layers/"
# Leaf of tiejax -> names in torch; the second name is that of checkpoints converted from TensorFlow.
LEAVES = {"kernel": ("weight",), "embedding": ("weight",), "scale": ("weight", "gamma"), "bias": ("bias", "beta")}


class Names(NamedTuple):
    """A family's names for the modules of a tiejax model; "the library" is the transformers library.

    prefix: precedes all names except those of the head, in classes with a head. modules: tiejax's name -> the family's. layers:
    the prefix of a layer's names, with a placeholder for its number. layer: tiejax's module of a layer -> the family's, or
    three of the family's where only tiejax stores query, key and value as one map. head: tiejax's module of the head -> the
    family's. table, bias: names in the head; the library adds the first bias that exists to the logits. linear: whether
    maps are torch's Linear [out, in]; otherwise they are [in, out] as in tiejax. ties: whether the library ties the head's
    table to the input table if it is missing or equal.
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
    """The slot of a checkpoint's tensor in tiejax's parameters.

    names: possible names of the tensor. path: path of tiejax's array. layer: index in the stack of layers, None outside it.
    part, parts: the tensor fills the columns of part `part`, of `parts` equal ones. transposed: the tensor is [out, in],
    tiejax's array [in, out].
    """

    names: tuple[str, ...]
    path: str
    layer: int | None = None
    part: int = 0
    parts: int = 1
    transposed: bool = False


def slots(names: Names, paths: Sequence[str], prefix: str, numbers: Sequence[int]) -> Iterator[Slot]:
    """Yield the slots of all tensors that make up tiejax's arrays at these paths.

    prefix: prefix of names in the file, the family's or "". numbers: for each layer, its number in the file.
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
    """Return a view of the slot's part of tiejax's array, in the layout of the file; assigning to it fills the array."""
    array = array if slot.layer is None else array[slot.layer]
    size = array.shape[-1] // slot.parts
    array = array[..., slot.part * size : (slot.part + 1) * size]
    return array.T if slot.transposed else array


def _leaves(module: str, leaf: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in LEAVES[leaf])
