"""A checkpoint's folder written anew with tensors added, replaced or left out; everything else is copied bit for bit.

Nothing is loaded: tensors go from file to file in blocks. The new folder is there whole or not at all, whenever the process is
killed, and the old one is not touched. Links are copied as the files that they lead to.
"""

import errno
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.checkpoint import CONFIG, INDEX, Checkpoint, Tensor, read_json
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite import new_folder
from tiejax.checkpoints.rewrite.entries import Entries, entries
from tiejax.checkpoints.rewrite.stored import LENGTH_BYTES, blocks_of, extent_of, header_of
from tiejax.checkpoints.rewrite.vectors import rounded

METADATA = "__metadata__"
ALIGNED = 8  # safetensors pads its header to this many bytes


class Part(NamedTuple):
    """A tensor to be written: its name, its dtype by safetensors' names, and its bytes, block by block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    blocks: Callable[[], Iterable[bytes]]


def copy_of(tensor: Tensor, name: str | None = None) -> Part:
    """Return a tensor of a file as a part, under another name if one is given."""
    start, length = extent_of(tensor)
    return Part(name or tensor.name, tensor.dtype, tensor.shape, length, lambda: blocks_of(tensor.file, start, length))


def part_of(name: str, dtype: str, values: np.ndarray) -> Part:
    """Return an array as a part, in a dtype by safetensors' names; raises CheckpointError where a value is too large for it."""
    content = rounded(values, dtype, name).tobytes()
    return Part(name, dtype, values.shape, len(content), lambda: [content])


def check_new(checkpoint: Checkpoint, out: Path) -> Entries:
    """Return what is copied to `out`; raises CheckpointError unless that can be, and `out` is new and outside what is read."""
    new_folder.check_new(out)
    if within(out, checkpoint.folder):
        raise CheckpointError(f"{out}: lies in {checkpoint.folder}, which is not written to; name a folder outside it")
    return entries(checkpoint.folder)


def within(path: Path, folder: Path) -> bool:
    """Say whether a path is a folder or lies in it, wherever links lead."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def rewrite(
    checkpoint: Checkpoint,
    out: Path,
    config: Mapping[str, Any],
    added: Mapping[Path, list[Part]],
    left_out: Collection[str] = (),
) -> None:
    """Write a checkpoint's folder as `out`.

    config: what its config.json is to hold. added: file of the checkpoint -> parts that are written behind what it holds,
    instead of tensors of their names. left_out: tensors that are not written; a file that would hold nothing is left out too.
    Raises CheckpointError where `out` or the folder will not do (`check_new`) or the folder cannot be read, OSError where `out`
    cannot be written.
    """
    there = check_new(checkpoint, out)
    leave = {part.name for parts in added.values() for part in parts} | set(left_out)
    changed = {tensor.file for tensor in checkpoint.tensors.values() if tensor.name in leave} | set(added)
    filled = {tensor.file for tensor in checkpoint.tensors.values() if tensor.name not in leave} | set(added)
    texts = {checkpoint.folder / CONFIG: _text(checkpoint.folder / CONFIG, config)}
    if index := _index(checkpoint, leave, added):
        texts[checkpoint.folder / INDEX] = _text(checkpoint.folder / INDEX, index)
    try:
        with new_folder.new_folder(out) as folder:
            for path in there.folders:
                (folder / path).mkdir()
            for path in there.files:
                file, target = checkpoint.folder / path, folder / path
                if file in changed & filled:
                    _write(file, target, leave, added.get(file, []))
                elif file in texts:
                    target.write_bytes(texts[file])
                elif file not in changed:
                    _copy(file, target)
            _to_disk(folder)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(out)) from None


def _copy(file: Path, out: Path) -> None:
    with out.open("wb") as target:
        target.writelines(blocks_of(file, 0, _size(file)))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None


def _text(file: Path, content: Mapping[str, Any]) -> bytes:
    """Return JSON as it is written, with escapes for what UTF-8 might not hold."""
    try:
        return (json.dumps(content, indent=2) + "\n").encode()
    except RecursionError:
        raise CheckpointError(f"{file}: is nested too deep to be written again") from None


def _write(file: Path, out: Path, leave: set[str], added: list[Part]) -> None:
    """Write a safetensors file again, without some of its tensors and with others behind the rest."""
    header, begin = header_of(file)
    kept = sorted(
        ((name, entry) for name, entry in header.items() if name not in leave and name != METADATA),
        key=lambda item: item[1]["data_offsets"],
    )
    written: dict[str, Any] = {METADATA: header[METADATA]} if METADATA in header else {}
    at = 0
    for name, entry in kept:
        length = entry["data_offsets"][1] - entry["data_offsets"][0]
        written[name] = {**entry, "data_offsets": [at, at + length]}
        at += length
    for part in added:
        written[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [at, at + part.nbytes]}
        at += part.nbytes
    content = json.dumps(written, separators=(",", ":"), ensure_ascii=False).encode()
    content += b" " * (-len(content) % ALIGNED)
    with out.open("wb") as target:
        target.write(len(content).to_bytes(LENGTH_BYTES, "little") + content)
        for _, entry in kept:
            start, stop = entry["data_offsets"]
            target.writelines(blocks_of(file, begin + start, stop - start))
        for part in added:
            target.writelines(part.blocks())
        if target.tell() != LENGTH_BYTES + len(content) + at:
            raise OSError(errno.EIO, f"{file}: its tensors have other sizes than its header says")


def _index(checkpoint: Checkpoint, leave: set[str], added: Mapping[Path, list[Part]]) -> dict[str, Any] | None:
    """Return the index of a sharded checkpoint with the places of what was added and the new size, None where it has none."""
    file = checkpoint.folder / INDEX
    if not os.path.lexists(file):
        return None
    index = read_json(file)
    if not isinstance(index.get("weight_map"), dict):  # beside model.safetensors, where nobody reads it
        return None
    places = {name: place for name, place in index["weight_map"].items() if name not in leave}
    places |= {part.name: target.name for target, parts in added.items() for part in parts}
    lost = sum(extent_of(checkpoint.tensors[name])[1] for name in leave if name in checkpoint.tensors)
    gained = sum(part.nbytes for parts in added.values() for part in parts)
    metadata = index.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("total_size"), int):
        index["metadata"] = {**metadata, "total_size": metadata["total_size"] + gained - lost}
    return {**index, "weight_map": dict(sorted(places.items()))}


def _to_disk(folder: Path) -> None:
    """Let everything be on the disk before the folder gets its name."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir() or path.suffix in (".safetensors", ".json"):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
