"""Checkpoints in the hub's format: config.json and the headers of safetensors files, never a pickle."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.system.files import check_file, read_bytes
from tiejax.system.naming import is_name

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MOST_JSON_BYTES = 2**26  # enough for an index of a million tensors
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
PARAMETERS = "total_parameters"  # in the index's metadata, from some versions of the transformers library


class Tensor(NamedTuple):
    """The file, shape and dtype of a stored tensor; the dtype is safetensors' name for it, such as BF16."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def number(self) -> int:
        """The number of values."""
        return int(np.prod(self.shape, dtype=np.int64))


class Checkpoint(NamedTuple):
    """A checkpoint's configuration, and the headers of its tensors by name. No tensor is loaded.

    parameters: the number of stored values, None if a header is missing and the index does not say.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    parameters: int | None


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
    tensors, parameters = _tensors(
        folder, names, elsewhere
    )  # read before the configuration, since the error about pickles is more useful
    if CONFIG not in names:
        raise CheckpointError(f"{folder}: has no {CONFIG}, which describes the model and whether it is tied")
    return Checkpoint(folder, read_json(folder / CONFIG), tensors, parameters)


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


def _tensors(folder: Path, names: list[str], elsewhere: Elsewhere | None) -> tuple[dict[str, Tensor], int | None]:
    if WEIGHTS not in names and INDEX in names:
        return _indexed(folder, elsewhere)
    files = [WEIGHTS] if WEIGHTS in names else [name for name in names if name.endswith(".safetensors")]
    if not files:
        pickles = [name for name in names if name.endswith(PICKLES)]
        if pickles:
            raise CheckpointError(
                f"{folder}: the weights are stored as pickle ({pickles[0]}), which can run arbitrary code when loaded; "
                "convert them to *.safetensors, or download the safetensors files"
            )
        raise CheckpointError(f"{folder}: has no weights; expected *.safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in _header(folder / file).items():
            if name in tensors:
                raise CheckpointError(f"{folder}: {tensors[name].file.name} and {file} both contain {name}; remove one of them")
            tensors[name] = tensor
    if not tensors:
        raise CheckpointError(f"{folder}: no tensors in {', '.join(files)}")
    return tensors, _number(tensors)


def _number(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.number for tensor in tensors.values())


def _indexed(folder: Path, elsewhere: Elsewhere | None) -> tuple[dict[str, Tensor], int | None]:
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
    for name, file in places.items():
        if file not in shards:
            continue
        if name not in shards[file]:
            raise CheckpointError(f"{folder / file}: has no tensor {name}, although {INDEX} lists it; download both again")
        tensors[name] = shards[file][name]
    return tensors, _number(tensors) if set(missing) <= set(shards) else _stated(index)


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


def one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())
