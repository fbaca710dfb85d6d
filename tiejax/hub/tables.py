"""Checkpoints in the hub's format, and their tables read by rows: config.json and safetensors files, never a pickle."""

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes as ml_dtypes  # teaches numpy, and so safetensors, bfloat16
import numpy as np
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# What is read of a transposed table at a time, since its rows lie across the whole file.
BLOCK_BYTES = 64 * 2**20

Rows = slice | Int[np.ndarray, "rows"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: one line that names the file or the option to blame."""


class Tensor(NamedTuple):
    """Where a tensor is, and its shape and dtype, by the names of safetensors."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def number(self) -> int:
        """How many values it has."""
        return int(np.prod(self.shape, dtype=np.int64))


class Checkpoint(NamedTuple):
    """A folder's configuration and its tensors by name; nothing is loaded."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


class HubTable:
    """A table of a checkpoint, [rows, width], whose rows are read from the file when they are asked for.

    transposed: the file holds [width, rows]. Nothing stays in memory, nor mapped: a table larger than the memory can be read.
    """

    def __init__(self, tensor: Tensor, transposed: bool = False) -> None:
        self.tensor, self.transposed = tensor, transposed
        self.name, self.file, self.dtype = tensor.name, tensor.file, DTYPES[tensor.dtype]
        rows, width = tensor.shape[::-1] if transposed else tensor.shape
        self.shape = (rows, width)
        self.nbytes = tensor.number * BYTES[tensor.dtype]

    def __getitem__(self, rows: Rows) -> Float[np.ndarray, "rows width"]:
        """Return a slice of rows, or the rows of an ascending integer array, as float32. Raises CheckpointError."""
        if isinstance(rows, slice):
            return self._run(*rows.indices(self.shape[0])[:2])
        found = np.empty((len(rows), self.shape[1]), np.float32)
        for first, last, start, stop in self._runs(np.asarray(rows)):
            found[first:last] = self._run(start, stop)[rows[first:last] - start]
        return found

    def _runs(self, rows: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """Yield the places [first, last) of rows that are read together, and the rows [start, stop) that are read for them."""
        if not self.transposed:
            ends = np.flatnonzero(np.diff(rows) != 1) + 1
            for first, last in zip([0, *ends], [*ends, len(rows)], strict=True):
                if first < last:
                    yield first, last, int(rows[first]), int(rows[last - 1]) + 1
            return
        step = max(BLOCK_BYTES // (4 * self.shape[1]), 1)
        for start in range(0, self.shape[0], step):
            first, last = np.searchsorted(rows, [start, start + step])
            if first < last:
                yield int(first), int(last), int(rows[first]), int(rows[last - 1]) + 1

    def _run(self, start: int, stop: int) -> np.ndarray:
        if start >= stop:
            return np.empty((0, self.shape[1]), np.float32)
        try:
            # Opened anew each time: the pages of a file that stays mapped count as this process's memory.
            with safe_open(self.file, framework="np") as file:
                stored = file.get_slice(self.name)
                values = stored[:, start:stop].T if self.transposed else stored[start:stop]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.file}: cannot be read any more: {_line(error)}") from None
        with np.errstate(over="ignore"):
            found = np.ascontiguousarray(values, dtype=np.float32)
        finite = np.isfinite(found).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise CheckpointError(f"{self.file}: row {row} of {self.name} holds a value that is not finite in float32")
        return found


def open_checkpoint(folder: Path) -> Checkpoint:
    """Return what a checkpoint folder holds; raises CheckpointError, one line, where it cannot be used."""
    try:
        if not folder.is_dir():
            what = "is a file; name the folder that it is in" if folder.exists() else "there is no such folder"
            raise CheckpointError(f"{folder}: {what}; a checkpoint is a folder with {CONFIG} and *.safetensors")
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None
    tensors = _tensors(folder, names)  # first: a folder of pickles may well lack the rest
    if CONFIG not in names:
        raise CheckpointError(f"{folder}: has no {CONFIG}, which says what the model is and whether it is tied")
    return Checkpoint(folder, read_json(folder / CONFIG), tensors)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises CheckpointError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
        raise CheckpointError(f"{file}: is not JSON: {_line(error)}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: must hold a JSON object, holds a {type(content).__name__}")
    return content


def table(checkpoint: Checkpoint, name: str, option: str, rows: int | None = None) -> HubTable:
    """Return a tensor as a table of one row per token; raises CheckpointError that names the option that would change it.

    rows: the tokens, where they are known: a tensor [width, rows] is then read transposed.
    """
    if name not in checkpoint.tensors:
        near = difflib.get_close_matches(name, checkpoint.tensors, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise CheckpointError(f"{option} {name}: {checkpoint.folder} has no such tensor{hint}")
    tensor = checkpoint.tensors[name]
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise CheckpointError(f"{option} {name}: has the shape {list(tensor.shape)}; a table is [tokens, width]")
    if tensor.dtype not in DTYPES:
        kinds = ", ".join(DTYPES.values())
        raise CheckpointError(f"{option} {name}: is stored as {tensor.dtype}; a table must be one of {kinds}, not quantised")
    return HubTable(tensor, transposed=rows is not None and tensor.shape[0] != rows and tensor.shape[1] == rows)


def _tensors(folder: Path, names: list[str]) -> dict[str, Tensor]:
    if WEIGHTS not in names and INDEX in names:
        return _indexed(folder)
    files = [WEIGHTS] if WEIGHTS in names else [name for name in names if name.endswith(".safetensors")]
    if not files:
        pickles = [name for name in names if name.endswith(PICKLES)]
        if pickles:
            raise CheckpointError(
                f"{folder}: holds its weights as pickle ({pickles[0]}), which can run any code when it is opened; "
                "only *.safetensors is read: convert it, or download the safetensors files"
            )
        raise CheckpointError(f"{folder}: holds no weights; a checkpoint has *.safetensors")
    found: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in _header(folder / file).items():
            if name in found:
                raise CheckpointError(f"{folder}: {found[name].file.name} and {file} both hold {name}; keep one of them")
            found[name] = tensor
    if not found:
        raise CheckpointError(f"{folder}: {', '.join(files)} holds no tensors")
    return found


def _indexed(folder: Path) -> dict[str, Tensor]:
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{folder / INDEX}: must hold a weight_map of tensor names and files")
    shards: dict[str, dict[str, Tensor]] = {}
    for file in sorted(set(places.values())):
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder}: {INDEX} names {file}, which is not there; download that file too")
        shards[file] = _header(folder / file)
    found: dict[str, Tensor] = {}
    for name, file in places.items():
        if name not in shards[file]:
            raise CheckpointError(f"{folder / file}: has no tensor {name}, which {INDEX} says it holds; download both again")
        found[name] = shards[file][name]
    return found


def _header(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            return {name: Tensor(name, file, tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}
    except SafetensorError as error:
        raise CheckpointError(f"{file}: is damaged or cut off ({_line(error)}); download it again") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
