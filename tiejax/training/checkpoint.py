"""Checkpoints that detect damage and refuse other runs, and their transfer between processes.

Orbax writes each step so that a killed process leaves the last complete checkpoint, but does not detect a flipped bit. Every
checkpoint therefore holds the SHA-256 digests of its arrays, of its metadata, and of the run's settings.

Arrays are stored by number, in the order of the tree's leaves (`_flat`): names of fields are not part of the format.
"""

import dataclasses
import errno
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from tiejax import tying
from tiejax.training.records import FOLDER, RecordFiles, Records, quoted

PyTree = Any
Facts = dict[str, Any]


class CheckpointMismatch(ValueError):
    """An intact checkpoint belongs to another run: its settings, text, ties or arrays differ."""


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def _digest_text(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flat(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the leaves by number: names in optax states may contain characters that file names cannot."""
    return {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def _system_error(error: Exception) -> tuple[int | None, str]:
    """Return the errno and message of the system error behind an exception, or (None, "") if there is none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, error.strerror or str(error)
    if found := re.search(r"\[os_error_code='(\d+)'\]", str(error)):  # as tensorstore reports it
        return int(found[1]), os.strerror(int(found[1]))
    return None, ""


@dataclasses.dataclass
class Checkpoints:
    """The checkpoints of one run.

    Attributes:
        directory: the directory of the checkpoints; records on disk are in its folder `records`.
        ties: saved with the arrays, and compared when a checkpoint is restored.
        say: receives one line for each damaged checkpoint.
        run: digest of the run's settings and text.
        keep: number of newest checkpoints to keep, at least 1.
        read_only: change nothing on the disk, for readers of a run that may still be training.

    Raises:
        tying.TieError: if a tie cannot be saved, since its transform is a pair of functions.
        ValueError: if `keep` is below 1.
    """

    directory: Path
    ties: tying.TiesLike
    say: Callable[[str], None]
    run: str = ""
    keep: int = 2
    read_only: bool = False

    def __post_init__(self) -> None:
        tying.ties_to_json(self.ties)  # an error here rather than at the first checkpoint
        if self.keep < 1:
            raise ValueError(f"keep: expected at least 1 checkpoint, got {self.keep}")
        if not self.read_only:
            self.directory.mkdir(parents=True, exist_ok=True)
        # Only one process of a run has checkpoints: orbax must not wait for the others.
        mine = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=mine, active_processes={mine}, barrier_sync_key_prefix="checkpoints"
        )
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if self.read_only else self.keep,
            enable_async_checkpointing=False,
            create=False,
            multiprocessing_options=alone,
            read_only=self.read_only,
        )
        self._manager = ocp.CheckpointManager(self.directory.absolute(), options=options)

    @property
    def record_folder(self) -> Path:
        """The folder of records on disk."""
        return self.directory / FOLDER

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint, None if there is none."""
        return max(self._steps(), default=None)

    def save(self, step: int, state: PyTree, records: Records, training: Facts | None = None) -> None:
        """Write the checkpoint of `step`: state, records so far, ties and digests.

        Args:
            step: number of the step, larger than that of the latest checkpoint.
            state: a tree of arrays.
            records: arrays, which are saved, or `RecordFiles` in `record_folder`, whose sizes and digests are saved.
            training: facts of the training, as JSON values, that must be the same when it is continued.

        Raises:
            OSError: with the path, if writing fails (full disk, permissions). Earlier checkpoints are not changed.
        """
        files, in_arrays = (records.content(), {}) if isinstance(records, RecordFiles) else (None, records)
        arrays = {
            "state": _flat(state),
            **{
                f"record.{quoted(name)}": {quoted(field): rows for field, rows in fields.items()}
                for name, fields in in_arrays.items()
            },
        }
        # Orbax does not store arrays without entries.
        empty = {
            group: {name: [array.shape, array.dtype.name] for name, array in fields.items() if not array.size}
            for group, fields in arrays.items()
        }
        arrays = {group: {name: array for name, array in fields.items() if array.size} for group, fields in arrays.items()}
        content = {
            "step": step,
            "run": self.run,
            "training": training,
            "files": files,
            "empty": empty,
            "ties": json.loads(tying.ties_to_json(self.ties)),
            "digests": {group: {name: _digest(a) for name, a in fields.items()} for group, fields in arrays.items()},
        }
        facts = {"content": content, "digest": _digest_text(content)}
        try:
            saved = self._manager.save(
                step, args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts))
            )
        except Exception as error:  # orbax and tensorstore raise various types
            number, reason = _system_error(error)
            if number is None:
                raise
            raise OSError(number, reason, str(self.directory / str(step))) from error
        if not saved:  # orbax returns False, without a message, for a step that is not larger than the latest
            raise RuntimeError(f"checkpoint {step} was not saved in {self.directory}, which has it or a later one already")

    def restore(self, like: PyTree, training: Facts | None = None) -> tuple[int, PyTree, Records] | None:
        """Restore the newest undamaged checkpoint.

        A damaged checkpoint is reported and, unless `read_only`, moved to `damaged/` next to `directory`.

        like: arrays, or shapes and dtypes, in the structure of the state. training: as in `save`, not compared with None.
        Returns step, state and records, or None if there is no undamaged checkpoint. Raises CheckpointMismatch if an undamaged
        checkpoint belongs to another run or training, or has other ties or arrays; OSError, with the path, if reading fails
        although the checkpoint may be intact.
        """
        like = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf), like)
        passed = set[int]()
        while steps := sorted(set(self._steps()) - passed):
            step = steps[-1]
            try:
                return self._read(step, like, training)
            except (CheckpointMismatch, PermissionError, MemoryError):
                raise
            except Exception as error:  # broken files make orbax and tensorstore raise various types
                passed.add(step)
                if not (self.directory / str(step)).exists() or (self.read_only and max(self._steps(), default=0) > step):
                    continue  # the run is still training, and has pruned this checkpoint or written newer ones
                number, reason = _system_error(error)
                if number not in (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
                    at = getattr(error, "filename", None) or self.directory / str(step)
                    raise OSError(number, reason, str(at)) from error
                reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
                then = "using the previous one" if steps[:-1] else "there is no previous one"
                self.say(f"checkpoint {self.directory / str(step)} is damaged ({reason}); {then}")
                if not self.read_only:
                    self._move_aside(step)
        return None

    def _steps(self) -> Sequence[int]:
        self._manager.reload()
        return self._manager.all_steps()

    def _move_aside(self, step: int) -> None:
        aside = self.directory.parent / "damaged"
        aside.mkdir(exist_ok=True)
        names = itertools.chain([str(step)], (f"{step}.{number}" for number in itertools.count(1)))
        (self.directory / str(step)).rename(next(aside / name for name in names if not (aside / name).exists()))

    def _read(self, step: int, like: PyTree, training: Facts | None) -> tuple[int, PyTree, Records]:
        at = self.directory / str(step)
        for path in at.rglob("*"):
            if not (path.is_file() or path.is_dir()):  # reading a pipe would block
                raise ValueError(f"{path.relative_to(at)} is not a file")
        facts = self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))["facts"]
        content = facts["content"]
        if facts["digest"] != _digest_text(content):
            raise ValueError("the digest of its metadata differs")
        if content["step"] != step:
            raise ValueError(f"its metadata are those of step {content['step']}")
        restored = self._manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore()))["arrays"]
        arrays = {group: {name: np.asarray(array) for name, array in fields.items()} for group, fields in restored.items()}
        digests = {group: {name: _digest(a) for name, a in fields.items()} for group, fields in arrays.items()}
        if digests != content["digests"]:
            differ = [
                f"{group}/{name}"
                for group, expected in content["digests"].items()
                for name, digest in expected.items()
                if digests.get(group, {}).get(name) != digest
            ]
            raise ValueError(f"the digest of {', '.join(differ) or 'its arrays'} differs")
        if content["run"] != self.run:
            raise CheckpointMismatch(
                f"checkpoint {at} belongs to another run (other settings or another text); restore this run's checkpoints, or "
                f"remove {self.directory} to start at step 0"
            )
        saved = content.get("training") or training or {}
        if other := [name for name, fact in (training or {}).items() if name in saved and saved[name] != fact]:
            raise CheckpointMismatch(
                f"checkpoint {at} belongs to a training with other {' and '.join(other)}; continue with the same, or train in "
                "another directory"
            )
        if tying.ties_from_json(json.dumps(content["ties"])) != tying.ties_from_json(tying.ties_to_json(self.ties)):
            raise CheckpointMismatch(f"checkpoint {at} has other ties than this run: {str(content['ties'])[:80]}")
        for group, fields in content.get("empty", {}).items():
            empty = {name: np.zeros(shape, jnp.dtype(dtype)) for name, (shape, dtype) in fields.items()}
            arrays[group] = arrays.get(group, {}) | empty
        numbered = {f"array/{int(name)}": array for name, array in arrays.pop("state").items()}
        if len(numbered) != len(leaves := jax.tree.leaves(like)):
            raise CheckpointMismatch(f"checkpoint {at} has {len(numbered)} arrays; this run's state has {len(leaves)}")
        try:
            restored_state = from_arrays(numbered, like, "array")
        except ValueError as error:
            raise CheckpointMismatch(f"checkpoint {at}: {error}") from None
        if (files := content.get("files")) is not None:
            return step, restored_state, RecordFiles.opened(self.record_folder, files)
        return (
            step,
            restored_state,
            {
                unquote(group.removeprefix("record.")): {unquote(field): rows for field, rows in fields.items()}
                for group, fields in arrays.items()
            },
        )

    def close(self) -> None:
        """Wait until all writes have finished, and close the manager."""
        self._manager.wait_until_finished()
        self._manager.close()


# Errors of the first process that the others raise with the same type, since commands report them in one line.
KINDS = {kind.__name__: kind for kind in (CheckpointMismatch, tying.TieError, PermissionError, MemoryError)}


def pack(answer: tuple[PyTree, Records] | Exception | None) -> bytes:
    """Return a restored state with its records, an error, or None (no checkpoint) as bytes: an .npz file with a JSON header."""
    header: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    if isinstance(answer, Exception):
        header = {"error": type(answer).__name__, "text": str(answer)}
    elif answer is not None:
        state, records = answer
        header["records"] = {name: {field: array.dtype.name for field, array in of.items()} for name, of in records.items()}
        arrays = to_arrays(state, "state") | to_arrays([array for of in records.values() for array in of.values()], "record")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
    return buffer.getvalue()


def unpack(content: bytes, like: PyTree) -> tuple[PyTree, Records] | None:
    """Return the argument of `pack`, with the state in the structure of `like`; if it was an error, raise it.

    An error of a type outside `KINDS` is raised as a RuntimeError.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].item())
    if "error" in header:
        kind = KINDS.get(header["error"])
        raise kind(header["text"]) if kind else RuntimeError(f"the first process: {header['error']}: {header['text']}")
    if "records" not in header:
        return None
    numbers = itertools.count()
    records = {
        name: {field: arrays[f"record/{next(numbers)}"].view(dtype) for field, dtype in of.items()}
        for name, of in header["records"].items()
    }
    return from_arrays(arrays, like, "state"), records


def to_arrays(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of a tree as `PREFIX/0`, `PREFIX/1`, ..."""
    return {f"{prefix}/{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def from_arrays(arrays: Mapping[str, np.ndarray], like: PyTree, prefix: str) -> PyTree:
    """Return the tree that `to_arrays` took apart; raises ValueError if a leaf is missing, or has another shape or dtype.

    arrays: named arrays, others among them. like: a tree of the same structure, whose leaves have shapes and dtypes.
    """
    leaves, treedef = jax.tree.flatten(like)
    found = [arrays.get(f"{prefix}/{number}") for number in range(len(leaves))]
    for number, (leaf, expected) in enumerate(zip(found, leaves, strict=True)):
        if leaf is not None and leaf.dtype.type is np.void and leaf.dtype.itemsize == np.dtype(expected.dtype).itemsize:
            found[number] = leaf = leaf.view(expected.dtype)  # .npz files do not name dtypes such as bfloat16
        if leaf is None or (leaf.shape, leaf.dtype) != (expected.shape, expected.dtype):
            got = "nothing" if leaf is None else f"{leaf.dtype} {leaf.shape}"
            raise ValueError(f"{prefix}/{number}: expected {expected.dtype} {expected.shape}, got {got}")
    return jax.tree.unflatten(treedef, found)
