"""What the first process read of a checkpoint, as bytes for the others: JSON that says what is there, then the arrays.

8 bytes, the length of the JSON | JSON | the bytes of one array after the other
"""

import json
from typing import Any

import jax
import numpy as np

from tiejax.training.checkpoint import CheckpointMismatch
from tiejax.training.kept_records import Records
from tiejax.tying.errors import TieError

PyTree = Any
LENGTH = 8
# Errors that a command tells in one line; of others the others' processes say no more than that they ended the first.
KINDS = {kind.__name__: kind for kind in (CheckpointMismatch, TieError, PermissionError, MemoryError)}


def packed(answer: tuple[PyTree, Records] | Exception | None) -> bytes:
    """Return a state and records, or why there are none, or that there is no checkpoint, as bytes."""
    if isinstance(answer, Exception):
        return _with_length({"error": type(answer).__name__, "text": str(answer)})
    if answer is None:
        return _with_length({"found": False})
    state, records = answer
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    arrays += [array for fields in records.values() for array in fields.values()]
    said = {
        "found": True,
        "records": {name: list(fields) for name, fields in records.items()},
        "arrays": [[array.dtype.name, list(array.shape)] for array in arrays],
    }
    return _with_length(said) + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


def unpacked(content: bytes, like: PyTree) -> tuple[PyTree, Records] | None:
    """Return state and records, the state in the structure of `like`, or None without a checkpoint.

    Raises the error that the first process met, RuntimeError for one of another kind than those of `KINDS`.
    """
    start = LENGTH + int.from_bytes(content[:LENGTH], "little")
    said = json.loads(content[LENGTH:start])
    if "error" in said:
        kind = KINDS.get(said["error"])
        raise kind(said["text"]) if kind else RuntimeError(f"the first process: {said['error']}: {said['text']}")
    if not said["found"]:
        return None
    arrays = []
    for name, shape in said["arrays"]:
        dtype = np.dtype(name)
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content[start:end], dtype).reshape(shape).copy())
        start = end
    leaves, treedef = jax.tree.flatten(like)
    of_records = iter(arrays[len(leaves) :])
    records = {name: {field: next(of_records) for field in fields} for name, fields in said["records"].items()}
    return jax.tree.unflatten(treedef, arrays[: len(leaves)]), records


def _with_length(said: dict[str, Any]) -> bytes:
    content = json.dumps(said).encode()
    return len(content).to_bytes(LENGTH, "little") + content
