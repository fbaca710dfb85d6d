"""Reading of arrays from a checkpoint, rounding to the dtype of a file, and atomic writing of a checkpoint's folder."""

import errno
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes as ml_dtypes  # registers bfloat16 in numpy, which safetensors needs
import numpy as np
import tokenizers
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tiejax.checkpoints.hub.checkpoint import CONFIG, INDEX, WEIGHTS, Tensor, one_line
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.reading import check_memory
from tiejax.checkpoints.hub.tables import BYTES, DTYPES, FLOATS
from tiejax.text.stored import atomic_folder
from tiejax.text.tokenizer import SPECIAL, SPECIAL_OF_ROBERTA

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


class Written(NamedTuple):
    """A tensor to write. array: its values, possibly a view. dtype: its dtype in the file."""

    name: str
    array: np.ndarray
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """The number of bytes in the file."""
        return int(self.array.size) * self.dtype.itemsize


def read(tensors: Iterable[Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of tensors, grouped by file; raises CheckpointError."""
    by_file = sorted(tensors, key=lambda tensor: str(tensor.file))
    for file, group in itertools.groupby(by_file, key=lambda tensor: tensor.file):
        try:
            with safe_open(file, framework="np") as opened:
                for tensor in group:
                    check_memory(f"{file}: {tensor.name} {list(tensor.shape)}", tensor.number * BYTES.get(tensor.dtype, 1))
                    yield tensor.name, opened.get_tensor(tensor.name)
        except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two if numpy lacks the dtype
            raise CheckpointError(f"{file}: cannot be read: {one_line(error)}") from None


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Sequence[Written],
    tokenizer: tokenizers.Tokenizer | None,
    max_shard_bytes: int,
) -> None:
    """Write a checkpoint's folder, with weights split over several files if they are larger than `max_shard_bytes`.

    A tensor larger than that gets a separate file. Raises CheckpointError if the folder exists and is not empty, OSError if it
    cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder}: already exists; name a new folder")
    try:
        with atomic_folder(folder) as incomplete:
            _write_weights(incomplete, tensors, max_shard_bytes)
            _write_json(incomplete / CONFIG, config)
            if tokenizer is not None:
                (incomplete / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
                _write_json(incomplete / TOKENIZER_CONFIG, _tokenizer_config(tokenizer))
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else None
        raise OSError(number or errno.EIO, one_line(error), str(folder)) from None


def _write_weights(folder: Path, tensors: Sequence[Written], max_shard_bytes: int) -> None:
    shards: list[list[Written]] = []
    size = 0
    for tensor in tensors:
        if not shards or size + tensor.nbytes > max_shard_bytes:
            shards, size = [*shards, []], 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    (stem, ending), number = WEIGHTS.split("."), len(shards)
    files = [WEIGHTS] if number == 1 else [f"{stem}-{one:05d}-of-{number:05d}.{ending}" for one in range(1, number + 1)]
    for file, shard in zip(files, shards, strict=True):
        # Write one shard at a time, since it is in memory twice meanwhile. The transformers library needs `format`.
        arrays = {tensor.name: np.ascontiguousarray(tensor.array, tensor.dtype) for tensor in shard}
        save_file(arrays, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        places = {tensor.name: file for file, shard in zip(files, shards, strict=True) for tensor in shard}
        total = sum(tensor.nbytes for tensor in tensors)
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))})


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _tokenizer_config(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return a tokenizer configuration that makes the transformers library use tokenizer.json, not the family's default."""
    special = {
        role: token
        for names in (SPECIAL_OF_ROBERTA, SPECIAL)
        for role, token in zip(ROLES, names, strict=True)
        if tokenizer.token_to_id(token) is not None
    }
    return {"tokenizer_class": "PreTrainedTokenizerFast", **special}


def vector(tensor: Tensor, length: int) -> Float[np.ndarray, " length"]:
    """Return a tensor [length] or [1, length] in float32; raises CheckpointError for other shapes or non-finite values."""
    if tensor.shape not in ((length,), (1, length)) or tensor.dtype not in DTYPES:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is {list(tensor.shape)} {tensor.dtype}; expected [{length}], in one of {FLOATS}"
        )
    ((_, stored),) = read([tensor])
    with np.errstate(over="ignore"):
        values: np.ndarray = stored.reshape(length).astype(np.float32)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{tensor.file}: {tensor.name} has a value that is not finite in float32")
    return values


def rounded(values: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Round values to a dtype given in safetensors' spelling.

    Raises CheckpointError, naming the tensor, if a value overflows the dtype.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(DTYPES[dtype])
    if not np.isfinite(converted).all():
        raise CheckpointError(f"{name}: contains a value too large for {DTYPES[dtype]}")
    return converted
