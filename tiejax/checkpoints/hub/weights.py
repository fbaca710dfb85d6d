"""Loading a checkpoint in the hub's format as a model of tiejax, and saving such a model as a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.traverse_util
import numpy as np
import tokenizers
from jaxtyping import Int32

from tiejax.checkpoints.hub import configurations
from tiejax.checkpoints.hub import parameter_names as naming
from tiejax.checkpoints.hub.arrays import Written, read, write
from tiejax.checkpoints.hub.checkpoint import CONFIG, Checkpoint, open_checkpoint
from tiejax.checkpoints.hub.configurations import Convertible, Sizes
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FLAG, flag_of, predicts
from tiejax.checkpoints.hub.places import Places, find_places
from tiejax.checkpoints.hub.reading import check_memory
from tiejax.checkpoints.hub.tables import DTYPES
from tiejax.models.language_model import LanguageModel

MAX_SHARD_BYTES = 5 * 10**9  # size limit of one file, whose arrays are in memory twice while it is written

Flat = dict[str, np.ndarray]


class Origin(NamedTuple):
    """The parts of a loaded checkpoint that are needed to write it again, in addition to the parameters.

    sizes: those in its configuration. prefix: of the names of its encoder's tensors. dtypes: of the tensors that the parameters
    hold, by name. others: tensors that tiejax's model has no place for, such as a head for another task.
    """

    family: Convertible
    config: dict[str, Any]
    sizes: Sizes
    prefix: str
    dtypes: dict[str, np.dtype]
    others: Flat


class Loaded(NamedTuple):
    """A checkpoint as a model of tiejax.

    Attributes:
        family: the title of its family
        model: the Flax module
        params: the parameters of `model`, as numpy arrays in float32, or float64 if the file has any. Without `head` if the
            file has none. With `pooler` (kernel and bias) if the file has one: tanh(W h + b) of the first token's state, which
            `model` does not compute
        tied: whether the output table is the input table; both leaves are then the same array
        vocabulary: rows of the input table
        owner: for each layer, the first layer with the same weights; of an ALBERT with shared layers, `params` has a copy for
            each layer
        origin: the parts that `save` needs to write the checkpoint again
    """

    family: str
    model: LanguageModel
    params: dict[str, Any]
    tied: bool
    vocabulary: int
    owner: Int32[np.ndarray, " layers"]
    origin: Origin


def load(folder: Path, dropout: float = 0.0) -> Loaded:
    """Load a checkpoint of BERT, RemBERT, ALBERT or GPT-2, with or without a head.

    The tables are tied if the output table is missing or equal to the input table, whatever the flag says; those of RemBERT
    never are. A map E_in -> H that is exactly the identity is left out of the model, and `save` writes it again. The attention
    mask of the transformers library corresponds to `segments`: padding is a separate segment after the tokens.

    Args:
        folder: a checkpoint in the hub's format
        dropout: dropout rate of the model in training; the configuration's value is ignored

    Returns:
        The model and its parameters.

    Raises:
        CheckpointError: if the checkpoint cannot be used
    """
    checkpoint = open_checkpoint(folder)
    family = configurations.family_of(checkpoint)
    check_memory(f"{folder}: {checkpoint.parameters or 0:,} parameters", 4 * (checkpoint.parameters or 0))
    sizes = configurations.sizes_of(checkpoint.config, family, folder / CONFIG)
    model = configurations.build(sizes, family, dropout)
    numbers = _numbers(sizes.layers, sizes.groups)
    places = find_places(checkpoint, family, configurations.parameter_shapes(model), sizes.width, numbers)

    flat = _filled(checkpoint, places)
    tied = family.names.ties and _tie(flat, naming.OUTPUT_TABLE in places.shapes)
    dtypes = {name: np.dtype(DTYPES[checkpoint.tensors[name].dtype]) for name in places.placed}
    others = {}
    for name, array in read(checkpoint.tensors[name] for name in (*places.copies, *places.others)):
        if name in places.copies and _same(array, naming.view(flat[places.copies[name].path], places.copies[name])):
            dtypes[name] = array.dtype
        else:
            others[name] = array
    if _drop_identity(flat):
        model = model.clone(projected=False)
    params = flax.traverse_util.unflatten_dict(flat, sep="/")
    owner = np.array([numbers.index(number) for number in numbers], np.int32)
    origin = Origin(family, checkpoint.config, sizes, places.prefix, dtypes, others)
    return Loaded(family.title, model, params, tied, sizes.vocabulary, owner, origin)


def save(
    folder: Path,
    model: LanguageModel,
    params: Mapping[str, Any],
    tied: bool,
    origin: Origin | None = None,
    tokenizer: tokenizers.Tokenizer | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a model as a new folder that the transformers library loads. The folder appears atomically.

    A tied model is written as BERT, or as ALBERT without shared layers if its table is narrower than H; an untied one as
    RemBERT, with an identity map E_in -> H if the model has none; a causal one as GPT-2. With the `origin` of a loaded
    checkpoint, it is written as that checkpoint, except for what has changed.

    Args:
        folder: the folder to write, which must not exist
        model: the Flax module
        params: as in `Loaded`, as numpy or jax arrays, with both tables even if tied. Without `head`, the class in config.json
            is that of the encoder, which expects a pooler unless loaded with `add_pooling_layer=False`. The number of layers is
            that of the stack
        tied: whether the tables are tied
        origin: the origin of the loaded checkpoint, if any
        tokenizer: written as tokenizer.json
        max_shard_bytes: size limit of a file; larger checkpoints are split

    Raises:
        CheckpointError: if the transformers library has no such model, or the folder exists
        OSError: if the folder cannot be written
    """
    flat = {path: np.asarray(leaf) for path, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}
    head = any(path.startswith(naming.HEAD) for path in flat)
    family = origin.family if origin else configurations.counterpart(model, tied, head)
    sizes = configurations.sizes_of_model(model, family, folder)
    _check(folder, flat, model, tied)
    layers = _layers(flat)
    groups = origin.sizes.groups if origin and layers == origin.sizes.layers and _shares(flat, origin.sizes) else layers
    sizes = sizes._replace(layers=layers, groups=groups)
    if naming.PROJECTION in family.names.modules:
        flat = _identity(sizes.width, flat[naming.TABLE].dtype) | flat
    tensors = _written(flat, family, _numbers(layers, groups), tied, head, origin)
    old, config = (origin.sizes, dict(origin.config)) if origin else (None, configurations.new(model, family, tokenizer))
    if origin is None or (predicts(config) and not head):
        config["architectures"] = [family.classes[head]]
    if origin is None or (head and family.names.ties and flag_of(config).tied != tied):
        config[FLAG] = tied
    config = configurations.configuration(sizes, family, old, config)
    same_dtypes = origin is not None and all(one.dtype == origin.dtypes.get(one.name, one.dtype) for one in tensors)
    if not same_dtypes:
        config = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": tensors[0].dtype.name}
    write(folder, config, tensors, tokenizer, max_shard_bytes)


def _numbers(layers: int, groups: int) -> list[int]:
    """Return the number of each layer's weights in the file, if `groups` groups of layers share weights, as in ALBERT."""
    return [int(layer / (layers / groups)) for layer in range(layers)]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are bitwise equal after conversion to one dtype; 0 and -0 differ."""
    bits = f"u{other.dtype.itemsize}"
    one = np.ascontiguousarray(one, other.dtype)
    return one.shape == other.shape and np.array_equal(one.view(bits), np.ascontiguousarray(other).view(bits))


def _filled(checkpoint: Checkpoint, places: Places) -> Flat:
    """Return the parameters by path, read from their tensors."""
    tensors = [checkpoint.tensors[name] for name in places.placed]
    dtype = np.float64 if any(tensor.dtype == "F64" for tensor in tensors) else np.float32
    paths = {slot.path for filled in places.placed.values() for slot in filled}
    flat = {path: np.empty(shape, dtype) for path, shape in places.shapes.items() if path in paths}
    for name, array in read(tensors):
        for slot in places.placed[name]:
            naming.view(flat[slot.path], slot)[...] = array
    return flat


def _tie(flat: Flat, head: bool) -> bool:
    """Make both tables one array if they are tied; return whether they are."""
    tied = head and (naming.OUTPUT_TABLE not in flat or _same(flat[naming.OUTPUT_TABLE], flat[naming.TABLE]))
    if tied:
        flat[naming.OUTPUT_TABLE] = flat[naming.TABLE]
    return tied


def _identity(width: int, dtype: np.dtype) -> Flat:
    return {f"{naming.PROJECTION}/kernel": np.eye(width, dtype=dtype), f"{naming.PROJECTION}/bias": np.zeros(width, dtype)}


def _drop_identity(flat: Flat) -> bool:
    """Remove the map E_in -> H if it is the identity; return whether it was removed."""
    kernel = flat.get(f"{naming.PROJECTION}/kernel")
    if kernel is None or kernel.shape[0] != kernel.shape[1]:
        return False
    identity = _identity(len(kernel), kernel.dtype)
    if not all(_same(flat[path], array) for path, array in identity.items()):
        return False
    for path in identity:
        del flat[path]
    return True


def _layers(flat: Flat) -> int:
    return next(len(leaf) for path, leaf in flat.items() if path.startswith(naming.STACK))


def _shares(flat: Flat, sizes: Sizes) -> bool:
    """Return whether layers that shared their weights in the file still do."""
    if sizes.groups == sizes.layers:  # nothing is shared
        return True
    numbers = _numbers(sizes.layers, sizes.groups)
    owner = [numbers.index(number) for number in numbers]
    return all(_same(leaf[owner], leaf) for path, leaf in flat.items() if path.startswith(naming.STACK))


def _check(folder: Path, flat: Flat, model: LanguageModel, tied: bool) -> None:
    """Raise CheckpointError unless the parameters fit the model, with any number of layers, and are tied if `tied`."""
    head = any(path.startswith(naming.HEAD) for path in flat)
    shapes = {
        path: shape
        for path, shape in configurations.parameter_shapes(model).items()
        if head or not path.startswith(naming.HEAD)
    }
    if any(path.startswith(f"{naming.POOLER}/") for path in flat):
        shapes |= {f"{naming.POOLER}/kernel": (model.width, model.width), f"{naming.POOLER}/bias": (model.width,)}
    if unlike := sorted(shapes.keys() ^ flat.keys()):
        what = "lack" if unlike[0] in shapes else "have"
        raise CheckpointError(f"{folder}: the parameters to save {what} {unlike[0]}, unlike the model")
    layers = _layers(flat)
    for path, leaf in flat.items():
        shape = (layers, *shapes[path][1:]) if path.startswith(naming.STACK) else shapes[path]
        if leaf.shape != shape:
            raise CheckpointError(f"{folder}: the parameter {path} is {list(leaf.shape)}, but the model's is {list(shape)}")
    if tied and head and not np.array_equal(flat[naming.TABLE], flat[naming.OUTPUT_TABLE], equal_nan=True):
        raise CheckpointError(
            f"{folder}: {naming.TABLE} and {naming.OUTPUT_TABLE} differ; save them with tied=False, or make them equal"
        )


def _written(
    flat: Flat, family: Convertible, numbers: Sequence[int], tied: bool, head: bool, origin: Origin | None
) -> list[Written]:
    """Return the tensors to write, in the dtypes of the origin if that is exact, with the tensors that only the origin has."""
    prefix = origin.prefix if origin else family.names.prefix if head else ""
    known, others = (origin.dtypes, origin.others) if origin else ({}, {})
    arrays = {}
    for slot in naming.slots(family.names, list(flat), prefix, numbers):
        for name in _names(slot, family, tied, known):
            if name not in others:
                arrays[name] = naming.view(flat[slot.path], slot)
    dtypes = {name: known.get(name, array.dtype) for name, array in arrays.items()}
    with np.errstate(over="ignore"):
        exact = all(dtypes[name] == array.dtype or _same(array.astype(dtypes[name]), array) for name, array in arrays.items())
    written = [Written(name, array, dtypes[name] if exact else array.dtype) for name, array in arrays.items()]
    return written + [Written(name, array, array.dtype) for name, array in others.items()]


def _names(slot: naming.Slot, family: Convertible, tied: bool, known: Mapping[str, np.dtype]) -> list[str]:
    """Return the names under which a slot's tensor is written: those it was read from, or else those of the family."""
    names = [name for name in slot.names if name in known]
    if slot.path == naming.OUTPUT_TABLE and tied and family.names.ties:
        return names
    if slot.path == naming.OUTPUT_BIAS and not (tied and names):
        return list(slot.names)  # for an untied model, the transformers library stores two biases and adds the first
    return names or list(slot.names[:1])
