"""Modified copies of a checkpoint's folder: tensors are added, replaced or left out, and everything else is copied bitwise.

Tensors are copied from file to file in blocks, never loaded whole. The new folder appears atomically, even if the process is
killed, and the old one is not changed. Links are copied as the files they point to. Permissions are those of the originals.
"""

import contextlib
import errno
import importlib.metadata
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.checkpoints.hub.arrays import rounded
from tiejax.checkpoints.hub.checkpoint import CONFIG, INDEX, PARAMETERS, WEIGHTS, Checkpoint, Tensor, read_json
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.reading import counted, steps
from tiejax.checkpoints.hub.stored import LENGTH_BYTES, blocks_of, extent_of, header_of
from tiejax.checkpoints.rewrite.entries import Entries, entries, other_formats
from tiejax.system.memory import size_words
from tiejax.system.visible import visible_line
from tiejax.text.stored import atomic_folder

METADATA = "__metadata__"
ALIGNED = 8  # bytes; safetensors pads its header to a multiple of this
CARD = "README.md"


class Part(NamedTuple):
    """A tensor to write. dtype: in safetensors' spelling. blocks: yields the tensor's bytes in blocks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    blocks: Callable[[], Iterable[bytes]]


def copy_of(tensor: Tensor, name: str | None = None) -> Part:
    """Return a part that copies a tensor from its file, under another name if one is given."""
    start, length = extent_of(tensor)
    return Part(name or tensor.name, tensor.dtype, tensor.shape, length, lambda: blocks_of(tensor.file, start, length))


def part_of(name: str, dtype: str, values: np.ndarray) -> Part:
    """Return a part that writes an array in a dtype (safetensors' spelling); raises CheckpointError if a value overflows it."""
    content = rounded(values, dtype, name).tobytes()
    return Part(name, dtype, values.shape, len(content), lambda: [content])


def check_new(checkpoint: Checkpoint, out: Path) -> Entries:
    """Return the entries to copy: all except weights in other formats than safetensors, which would stay as they were.

    Raises CheckpointError if `out` exists or is in the folder, an entry cannot be copied, or two files contain one tensor.
    """
    check_absent(out)
    if checkpoint.twice:
        raise CheckpointError(f"{checkpoint.folder}: {checkpoint.twice}; keep one of the two")
    if within(out, checkpoint.folder):
        raise CheckpointError(f"{out}: lies in {checkpoint.folder}, which is only read; name a folder outside it")
    found = entries(checkpoint.folder)
    files, folders = ([path for path in paths if path not in other_formats(paths)] for paths in (found.files, found.folders))
    return Entries(folders, files)


def within(path: Path, folder: Path) -> bool:
    """Return whether a path, with links resolved, is a folder or lies in it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def rewrite(
    checkpoint: Checkpoint,
    out: Path,
    config: Mapping[str, Any],
    added: Mapping[Path, list[Part]],
    left_out: Collection[str],
    card: str,
) -> None:
    """Write a modified copy of a checkpoint's folder to `out`.

    config: the new content of config.json. added: file of the checkpoint -> parts to append to it, which replace tensors of the
    same names. left_out: names of tensors to leave out; a file left without tensors is not written. card: text to append to the
    model card, README.md. Raises CheckpointError if `out` or the folder cannot be used (see `check_new`) or the folder cannot
    be read, OSError if `out` cannot be written.
    """
    listed = check_new(checkpoint, out)
    leave = {part.name for parts in added.values() for part in parts} | set(left_out)
    changed = {tensor.file for tensor in checkpoint.tensors.values() if tensor.name in leave} | set(added)
    filled = {tensor.file for tensor in checkpoint.tensors.values() if tensor.name not in leave} | set(added)
    texts = {checkpoint.folder / CONFIG: _text(checkpoint.folder / CONFIG, config)}
    if index := _index(checkpoint, leave, added):
        texts[checkpoint.folder / INDEX] = _text(checkpoint.folder / INDEX, index)
    needed = _bytes_of_copy(checkpoint, listed, changed - filled, leave, added)
    try:
        _check_space(out, needed)
        step = steps(f"writing {out.name}", needed)
        with atomic_folder(out) as folder:
            with contextlib.suppress(PermissionError):  # of a file system without permissions
                folder.chmod(stat.S_IRWXU)  # nobody else opens a file before it has its own ones
            for path in listed.folders:
                (folder / path).mkdir()
            for path in listed.files:
                file, target = checkpoint.folder / path, folder / path
                if file in changed & filled:
                    _write(file, target, leave, added.get(file, []), step)
                elif file not in changed and file not in texts:
                    with target.open("wb") as opened:
                        opened.writelines(counted(blocks_of(file, 0, _size(file)), step))
            for file, text in texts.items():
                (folder / file.name).write_bytes(text)
            with (folder / CARD).open("ab") as opened:
                opened.write(card.encode())
            _to_disk(folder)
            check_absent(out)  # another process may have created it meanwhile
            with contextlib.suppress(PermissionError):
                for path in (*listed.files, *listed.folders, Path()):  # at the end, since they may forbid writing
                    if (folder / path).exists():
                        shutil.copymode(checkpoint.folder / path, folder / path)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(out)) from None


def _bytes_of_copy(
    checkpoint: Checkpoint, listed: Entries, dropped: Collection[Path], leave: Collection[str], added: Mapping[Path, list[Part]]
) -> int:
    """Return the number of bytes of the copy, up to those of headers and texts that differ."""
    files = [checkpoint.folder / path for path in listed.files]
    lost = [tensor for tensor in checkpoint.tensors.values() if tensor.name in leave and tensor.file not in dropped]
    gained = sum(part.nbytes for parts in added.values() for part in parts)
    return sum(_size(file) for file in files if file not in dropped) + gained - sum(extent_of(tensor)[1] for tensor in lost)


def _check_space(out: Path, needed: int) -> None:
    """Raise OSError if the disk has less space than a copy needs, before anything is written."""
    parent = next(parent for parent in out.absolute().parents if parent.exists())
    disk = shutil.disk_usage(parent)
    if disk.total and needed > disk.free:  # some file systems do not know their size
        free = f"the copy takes {size_words(needed)}, of which {size_words(disk.free)} are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {free}", str(out))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None


def _text(file: Path, content: Mapping[str, Any]) -> bytes:
    """Return JSON as bytes, with characters outside ASCII escaped, since UTF-8 cannot encode lone surrogates."""
    try:
        return (json.dumps(content, indent=2) + "\n").encode()
    except RecursionError:
        raise CheckpointError(f"{file}: nested too deeply to be written") from None


def _write(file: Path, out: Path, leave: set[str], added: list[Part], step: Callable[[int], None]) -> None:
    """Copy a safetensors file without some of its tensors, and append others."""
    header, begin = header_of(file)
    remaining = sorted(
        ((name, entry) for name, entry in header.items() if name not in leave and name != METADATA),
        key=lambda item: item[1]["data_offsets"],
    )
    written: dict[str, Any] = {METADATA: header[METADATA]} if METADATA in header else {}
    at = 0
    for name, entry in remaining:
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
        for _, entry in remaining:
            start, stop = entry["data_offsets"]
            target.writelines(counted(blocks_of(file, begin + start, stop - start), step))
        for part in added:
            target.writelines(counted(part.blocks(), step))
        if target.tell() != LENGTH_BYTES + len(content) + at:
            raise OSError(errno.EIO, f"{file}: the sizes of its tensors differ from its header")


def _index(checkpoint: Checkpoint, leave: Collection[str], added: Mapping[Path, list[Part]]) -> dict[str, Any] | None:
    """Return the index of the copy, made of the tensors that it stores.

    None if `model.safetensors` stores them all, unless an index beside it lists tensors, as mlx-lm writes.
    """
    remaining = [tensor for name, tensor in checkpoint.tensors.items() if name not in leave]
    places = {tensor.name: tensor.file.name for tensor in remaining}
    places |= {part.name: target.name for target, parts in added.items() for part in parts}
    file = checkpoint.folder / INDEX
    index: dict[str, Any] = {}
    is_single = set(places.values()) <= {WEIGHTS}
    with contextlib.suppress(*[CheckpointError] * is_single):  # loaders do not read an index beside a single file
        index = read_json(file) if os.path.lexists(file) else {}
    if is_single and not index.get("weight_map"):
        return None
    stated = index.get("metadata")
    parts = [part for parts in added.values() for part in parts]
    metadata: dict[str, Any] = {**stated} if isinstance(stated, dict) else {}
    metadata["total_size"] = sum(part.nbytes for part in parts)
    for shard in {tensor.file for tensor in remaining}:
        extents = (entry["data_offsets"] for name, entry in header_of(shard)[0].items() if name not in {*leave, METADATA})
        metadata["total_size"] += sum(stop - start for start, stop in extents)
    if PARAMETERS in metadata:
        metadata[PARAMETERS] = sum(tensor.number for tensor in remaining) + sum(math.prod(part.shape) for part in parts)
    return {**index, "metadata": metadata, "weight_map": dict(sorted(places.items()))}


def _to_disk(folder: Path) -> None:
    """Flush the files and folders to the disk, so that they are complete before the folder is renamed."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir() or path.suffix in (".safetensors", ".json"):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def section(folder: Path, command: str, changes: str) -> str:
    """Return the section of the copy's model card that says what was changed, in Markdown.

    folder: the checkpoint that was rewritten. changes: sentences.
    """
    version = importlib.metadata.version("tiejax")
    by = f"`tiejax {command}` (version {version}) wrote this checkpoint from {_name(folder)}."
    others = [f"`{file}`" for file in other_formats(Path(name) for name in sorted(os.listdir(folder)))]
    left = f" Weights in other formats were not copied, since they are unchanged: {', '.join(others)}." if others else ""
    return f"\n\n## Changed by tiejax\n\n{by} {changes}{left}\n"


def _name(folder: Path) -> str:
    """Return the name of a checkpoint: its id and revision if it is in the hub's cache, or else the name of its folder."""
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return f"`{cached.removeprefix('models--').replace('--', '/')}` at `{folder.name}`"
    return f"`{visible_line(Path(os.path.realpath(folder)).name)}`"


def check_absent(out: Path, kind: str = "folder") -> None:
    """Raise CheckpointError if `out` exists, even as a dangling link, or if no file or folder can have that name."""
    try:
        out.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{out}: cannot be created: {getattr(error, 'strerror', None) or error}") from None
    raise CheckpointError(f"{out}: already exists; name a new {kind}")
