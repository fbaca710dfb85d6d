"""Checkpoints in the hub's format: config.json and the headers of safetensors files, never a pickle."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import states_of
from tiejax.system.files import check_file, is_name, read_bytes
from tiejax.system.memory import size_words
from tiejax.system.visible import cut, visible_line

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER, ADAPTER_WEIGHTS, SUFFIX = "adapter_config.json", "adapter_model", ".safetensors"
NUMBERED = re.compile(r".*-\d+-of-\d+\.safetensors")  # shards, which need no other file
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # which loaders read if there is no file by the usual name
OTHER_WEIGHTS = "transformers_weights"  # in config.json: the file with the weights
MOST_NAMED = 3  # tensors or files in a message
MOST_JSON_BYTES = 2**26  # enough for an index of a million tensors
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
PARAMETERS = "total_parameters"  # in the index's metadata, from some versions of the transformers library


class Tensor(NamedTuple):
    """The file, shape and dtype of a stored tensor; the dtype is safetensors' name for it, such as BF16.

    stored: its name in the file, if that is another one.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    stored: str | None = None

    @property
    def key(self) -> str:
        """Its name in the file."""
        return self.stored or self.name

    def called(self, name: str) -> "Tensor":
        """Return this tensor under another name, as a copy of the checkpoint is to store it."""
        return self._replace(name=name, stored=self.key)

    @property
    def number(self) -> int:
        """The number of values."""
        return int(np.prod(self.shape, dtype=np.int64))


class Checkpoint(NamedTuple):
    """A checkpoint's configuration, and the headers of its tensors by name. No tensor is loaded.

    Attributes:
        folder: its folder
        config: the content of config.json
        tensors: the tensors that loaders read, by name
        parameters: the number of stored values, None if a header is missing and the index does not say
        stale: how the index differs from the shards, one clause each
        twice: which of its files contain a tensor twice, so that a change of one of them would leave the other; None if none do
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    parameters: int | None
    stale: tuple[str, ...] = ()
    twice: str | None = None


Headers = Mapping[str, dict[str, Tensor]]  # of shards, by their file: the tensors by their name
# Return the headers of shards that are not in the folder, as far as they are known.
Elsewhere = Callable[[Sequence[str]], Headers]


def open_checkpoint(folder: Path, elsewhere: Elsewhere | None = None) -> Checkpoint:
    """Open the checkpoint in a folder; raises CheckpointError if it cannot be used.

    elsewhere: called with the shards that the folder lacks, as after a download of some shards. Tensors of unknown headers are
    left out. By default, a missing shard is an error.
    """
    try:
        if not folder.is_dir():
            what = "is a file; name the folder that contains it" if folder.exists() else "not found"
            raise CheckpointError(f"{folder}: {what}; a checkpoint is a folder with {CONFIG} and *.safetensors")
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None
    weights = _weights(folder, names, elsewhere)  # before the configuration, since the error about pickles is more useful
    if CONFIG not in names:
        raise CheckpointError(f"{folder}: has no {CONFIG}, which describes the model and whether it is tied")
    config = read_json(folder / CONFIG)
    if config.get(OTHER_WEIGHTS) is not None:
        named_so = visible_line(cut(json.dumps(config[OTHER_WEIGHTS])))
        raise CheckpointError(
            f"{folder / CONFIG}: {OTHER_WEIGHTS}: {named_so} names the file that loaders read, which is not supported; rename "
            f"that file to {WEIGHTS} and remove the entry"
        )
    try:
        states_of(config)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None
    return weights._replace(config=config)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises CheckpointError."""
    try:
        content = json.loads(read_bytes(file, MOST_JSON_BYTES).decode("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # invalid UTF-8 is a ValueError too
        raise CheckpointError(f"{file}: invalid JSON: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: expected a JSON object, got a {type(content).__name__}")
    return content


def _weights(folder: Path, names: list[str], elsewhere: Elsewhere | None) -> Checkpoint:
    """Return a checkpoint without its configuration: the tensors of the files that loaders read, which prefer a single file."""
    if WEIGHTS not in names and INDEX in names:
        return _indexed(folder, names, elsewhere)
    files = [WEIGHTS] if WEIGHTS in names else _shards(names)
    if not files or (ADAPTER in names and CONFIG not in names):
        raise _no_weights(folder, names)
    if files != [WEIGHTS] and (pickled := next((name for name in PICKLED if name in names), None)):
        raise CheckpointError(
            f"{folder}: {pickled} and {files[0]} are two sets of weights, of which loaders read {pickled}; remove one of them"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in _header(folder / file).items():
            if name in tensors:
                raise CheckpointError(f"{folder}: {tensors[name].file.name} and {file} both contain {name}; remove one of them")
            tensors[name] = tensor
    if not tensors:
        raise CheckpointError(f"{folder}: no tensors in {', '.join(files)}")
    missing = f"is missing, without which loaders find no weights in {', '.join(files[:MOST_NAMED])}"
    stale = () if files == [WEIGHTS] else (missing,)
    return Checkpoint(folder, {}, tensors, _number(tensors), stale, _unread(folder, names, tensors))


def _shards(names: Collection[str]) -> list[str]:
    """Return the files of weights of a folder without an index: numbered ones, or else all but those of an adapter."""
    files = [name for name in names if name.endswith(SUFFIX) and not name.startswith(ADAPTER_WEIGHTS)]
    return [name for name in files if NUMBERED.fullmatch(name)] or files


def _no_weights(folder: Path, names: Collection[str]) -> CheckpointError:
    if ADAPTER in names:
        content = read_json(folder / ADAPTER)
        kind, base = (visible_line(cut(str(content.get(key)))) for key in ("peft_type", "base_model_name_or_path"))
        return CheckpointError(
            f"{folder}: is an adapter ({kind}) of {base}, not a whole checkpoint; name its base, or merge the adapter into it"
        )
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        return CheckpointError(
            f"{folder}: the weights are stored as pickle ({pickles[0]}), which can run arbitrary code when loaded; "
            "convert them to *.safetensors, or download the safetensors files"
        )
    return CheckpointError(f"{folder}: has no weights; expected *.safetensors")


def _number(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.number for tensor in tensors.values())


def _indexed(folder: Path, names: Collection[str], elsewhere: Elsewhere | None) -> Checkpoint:
    """Return the tensors of the shards that an index lists, by the shards' own headers, as loaders read them."""
    index = read_json(folder / INDEX)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{folder / INDEX}: expected a weight_map from tensor names to files")
    shards: dict[str, dict[str, Tensor]] = {}
    missing = []
    for file in sorted(set(places.values())):
        # Links in the folder may point anywhere, as in the hub's cache, but the index may only name files in the folder.
        if not is_name(file):
            raise CheckpointError(f"{folder / INDEX}: {file!r} is not the name of a file in the same folder")
        if (folder / file).exists():
            shards[file] = _header(folder / file)
        elif elsewhere is None:
            raise CheckpointError(f"{folder}: {file}, named in {INDEX}, not found; download that file too")
        else:
            missing.append(file)
    if missing and elsewhere is not None:
        shards |= elsewhere(missing)
    tensors: dict[str, Tensor] = {}
    twice = None
    for file, header in sorted(shards.items()):  # of a tensor in two shards, loaders keep the one of the last
        if both := next(iter(header.keys() & tensors.keys()), None):
            twice = f"{tensors[both].file.name} and {file} both contain {both}, of which loaders read the one in {file}"
        tensors |= header
    parameters = _number(tensors) if set(missing) <= set(shards) else _stated(index)
    twice = twice or _unread(folder, names, tensors)
    return Checkpoint(folder, {}, tensors, parameters, _stale(index, places, tensors, shards), twice)


def _stale(
    index: Mapping[str, Any], places: Mapping[str, str], tensors: Mapping[str, Tensor], shards: Collection[str]
) -> tuple[str, ...]:
    """Return how an index differs from the headers of its shards, as far as these are known; clauses about the index."""
    listed = {name: file for name, file in places.items() if file in shards}
    parts = (
        ("omits {}, which transformers 4 initialises at random", tensors.keys() - places.keys()),
        ("lists {}, which no shard contains", listed.keys() - tensors.keys()),
        ("names the wrong shard for {}", {name for name in listed.keys() & tensors if tensors[name].file.name != listed[name]}),
    )
    found = [words.format(named(names)) for words, names in parts if names]
    if not isinstance(index.get("metadata"), dict):
        found.append("has no metadata, without which transformers cannot load it")
    return tuple(found)


def named(names: Collection[str]) -> str:
    """Return the first few of some names, and how many there are."""
    first = ", ".join(sorted(names)[:MOST_NAMED])
    return first if len(names) <= MOST_NAMED else f"{len(names):,} tensors ({first}, ...)"


def _unread(folder: Path, names: Collection[str], tensors: Mapping[str, Tensor]) -> str | None:
    """Return in words which file that loaders do not read contains some of the tensors too, None if there is none."""
    read = {tensor.file.name for tensor in tensors.values()}
    for file in sorted(name for name in names if name.endswith(SUFFIX) and name not in read):
        try:
            both = _header(folder / file).keys() & tensors.keys()
        except CheckpointError:  # no weights that a loader could read
            continue
        if both:
            used = tensors[min(both)].file.name
            return f"{used} and {file} are two sets of weights (both contain {min(both)}), of which loaders read {used}"
    return None


def _stated(index: Mapping[str, Any]) -> int | None:
    """Return the number of parameters that an index states, None if it states none."""
    metadata = index.get("metadata")
    stated = metadata.get(PARAMETERS) if isinstance(metadata, dict) else None
    return stated if type(stated) is int and stated > 0 else None


def _header(file: Path) -> dict[str, Tensor]:
    try:
        check_file(file)
        file.open("rb").close()  # safetensors reports every failure as a missing file
        with safe_open(file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
            return {name: Tensor(name, file, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except SafetensorError as error:
        raise CheckpointError(f"{file}: damaged or truncated ({one_line(error)}); download it again") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None
    except MemoryError:  # files are mapped as a whole
        size = size_words(file.stat().st_size)
        raise CheckpointError(f"{file}: has {size}, more than the address space of this process (ulimit -v)") from None


def one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())
