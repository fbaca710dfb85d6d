"""What families of checkpoints call our parameters, and where each of their tensors lies in ours."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

TABLE, OUTPUT_TABLE, OUTPUT_BIAS = "embed/embedding", "head/embedding", "head/bias"
PROJECTION, POOLER, HEAD, STACK = "projection", "pooler", "head/", "encoder/layers/"
# Our leaves by torch's names; the second are those of checkpoints that once came from TensorFlow.
LEAVES = {"kernel": ("weight",), "embedding": ("weight",), "scale": ("weight", "gamma"), "bias": ("bias", "beta")}


class Names(NamedTuple):
    """What a family calls our modules.

    prefix: stands before all names but the head's, in classes that have a head of any kind. modules: ours -> theirs.
    layers: what stands before the names of a layer, with a place for its number. layer: modules of a layer, ours -> theirs;
    three of them where only we keep query, key and value as one map. head: modules of the head, ours -> theirs.
    table, bias: of the head; of several names of the bias the first that is there is what the library adds to the logits.
    linear: maps are torch's Linear, [out, in]; otherwise [in, out] as ours.
    ties: the library ties the table of the head to the input table, where a file lacks the one or where both are equal.
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
    """A tensor's place in our parameters.

    names: what the tensor may be called. path: of our array. layer: which of the stack it is of. part, parts: which columns
    it is of that many equal parts. transposed: it is [out, in], ours [in, out].
    """

    names: tuple[str, ...]
    path: str
    layer: int | None = None
    part: int = 0
    parts: int = 1
    transposed: bool = False


def slots(names: Names, paths: Sequence[str], prefix: str, numbers: Sequence[int]) -> Iterator[Slot]:
    """Yield the places of all tensors that make up our arrays of these paths.

    prefix: that of the file, the family's or none. numbers: of each of our layers, the number that it has in the file.
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
    """Return what a slot is of our array, laid out as in the file: a view, so that what is written to it is ours."""
    array = array if slot.layer is None else array[slot.layer]
    size = array.shape[-1] // slot.parts
    array = array[..., slot.part * size : (slot.part + 1) * size]
    return array.T if slot.transposed else array


def _leaves(module: str, leaf: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in LEAVES[leaf])
