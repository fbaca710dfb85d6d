"""Checkpoints that know when they are damaged, and whose they are.

Orbax writes each step so that a killed process leaves the last good one, but restores a flipped bit without a word. Every
step therefore carries the SHA-256 digest of each array, of its own record of them, and of what the run is.
"""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from tiejax import tying
from tiejax.training.kept_records import FOLDER, RecordFiles, Records

PyTree = Any


class CheckpointMismatch(ValueError):
    """A sound checkpoint that belongs to another run: other settings, another text, other ties or other arrays."""


def _digest(array: np.ndarray) -> str:
    head = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def _digest_text(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flat(tree: PyTree) -> dict[str, np.ndarray]:
    """Arrays by number, in the order of the tree's leaves: optax states hold names that a folder cannot."""
    return {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}


def _refusal(error: Exception) -> tuple[int | None, str]:
    """Return number and words of the error of the system that is behind an error; None where there is none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, error.strerror or str(error)
    if found := re.search(r"\[os_error_code='(\d+)'\]", str(error)):  # tensorstore's way
        return int(found[1]), os.strerror(int(found[1]))
    return None, ""


@dataclasses.dataclass
class Checkpoints:
    """The checkpoints of one run, newest last.

    directory: where they are kept; records in files are in its folder `records`. ties: saved beside the arrays. say:
    receives one line for each damaged step. run: the digest of what the run is. read_only: of a run that may go on meanwhile;
    nothing is changed.
    """

    directory: Path
    ties: Sequence[tying.Tie]
    say: Callable[[str], None]
    run: str = ""
    keep: int = 2
    read_only: bool = False

    def __post_init__(self) -> None:
        if not self.read_only:
            self.directory.mkdir(parents=True, exist_ok=True)
        # Of several processes one alone keeps the checkpoints: orbax must not wait for the others.
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
        """Where records in files are."""
        return self.directory / FOLDER

    def save(self, step: int, state: PyTree, records: Records) -> None:
        """Write state, the records so far, the ties and all digests as the checkpoint of `step`.

        Of records in files, which must be in `record_folder`, what says whether they are there as they were.
        Raises OSError that names the directory where the system refuses; the checkpoints before it are left as they are.
        """
        files, in_arrays = (records.content(), {}) if isinstance(records, RecordFiles) else (None, records)
        arrays = {"state": _flat(state), **{f"record.{name}": dict(fields) for name, fields in in_arrays.items()}}
        content = {
            "step": step,
            "run": self.run,
            "files": files,
            "ties": [dataclasses.asdict(tie) for tie in self.ties],
            "digests": {group: {name: _digest(a) for name, a in fields.items()} for group, fields in arrays.items()},
        }
        facts = {"content": content, "digest": _digest_text(content)}
        try:
            saved = self._manager.save(
                step, args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts))
            )
        except Exception as error:  # the layers below raise whatever they like
            number, reason = _refusal(error)
            if number is None:
                raise
            raise OSError(number, reason, str(self.directory / str(step))) from error
        if not saved:  # what orbax answers, in silence, for a step that is not above the latest
            raise RuntimeError(f"checkpoint {step} was not saved in {self.directory}")

    def restore(self, like: PyTree) -> tuple[int, PyTree, Records] | None:
        """Return step, state and records of the newest undamaged checkpoint, or None if there is none.

        like: arrays or shapes and dtypes of the state, whose structure the restored one takes. A damaged step is reported
        and, unless nothing is to be changed, moved out of the way, to `damaged/` beside the checkpoints.
        Raises CheckpointMismatch if a sound checkpoint is of another run, or has other ties or arrays.
        """
        passed = set[int]()
        while steps := sorted(set(self._steps()) - passed):
            step = steps[-1]
            try:
                return self._read(step, like)
            except (CheckpointMismatch, PermissionError, MemoryError):
                raise
            except Exception as error:  # broken files raise whatever the library's layers raise
                passed.add(step)
                if not (self.directory / str(step)).exists() or (self.read_only and max(self._steps(), default=0) > step):
                    continue  # the run goes on, and has newer ones
                number, refusal = _refusal(error)
                if number not in (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
                    at = getattr(error, "filename", None) or self.directory / str(step)
                    raise OSError(number, refusal, str(at)) from error
                reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
                then = "taking the one before it" if steps[:-1] else "there is none before it"
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
        shutil.rmtree(aside / str(step), ignore_errors=True)
        (self.directory / str(step)).rename(aside / str(step))

    def _read(self, step: int, like: PyTree) -> tuple[int, PyTree, Records]:
        for path in (self.directory / str(step)).rglob("*"):
            if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
                raise ValueError(f"{path.relative_to(self.directory / str(step))} is no file")
        facts = self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore()))["facts"]
        content = facts["content"]
        if facts["digest"] != _digest_text(content):
            raise ValueError("the digest of its facts differs")
        if content["step"] != step:
            raise ValueError(f"it is that of step {content['step']}")
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
                f"checkpoint {self.directory / str(step)} is of another run: of other settings or another text; put back this "
                f"run's own, or remove {self.directory} to start at step 0"
            )
        if content["ties"] != [dataclasses.asdict(tie) for tie in self.ties]:
            raise CheckpointMismatch(f"checkpoint {self.directory / str(step)} has the ties {content['ties']}")
        leaves, treedef = jax.tree.flatten(like)
        state = arrays.pop("state")
        if len(state) != len(leaves):
            raise CheckpointMismatch(
                f"checkpoint {self.directory / str(step)} has {len(state)} arrays, this run's state {len(leaves)}"
            )
        for number, leaf in enumerate(leaves):
            name = f"{number:04d}"
            if state[name].shape != leaf.shape or state[name].dtype != leaf.dtype:
                raise CheckpointMismatch(
                    f"checkpoint {self.directory / str(step)}: array {name} is {state[name].dtype} {state[name].shape}, "
                    f"this run's is {leaf.dtype} {leaf.shape}"
                )
        restored_state = jax.tree.unflatten(treedef, [state[f"{n:04d}"] for n in range(len(leaves))])
        if (files := content.get("files")) is not None:
            return step, restored_state, RecordFiles.opened(self.record_folder, files)
        return step, restored_state, {group.removeprefix("record."): fields for group, fields in arrays.items()}

    def close(self) -> None:
        """Wait for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()
