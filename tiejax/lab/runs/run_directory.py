"""A run directory: who made it, one run's settings, environment, metrics, results, figures, report and checkpoints."""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import yaml

from tiejax.lab.runs import facts, manifest
from tiejax.lab.runs.arrays import write_npz
from tiejax.lab.runs.manifest import KIND, Manifest, NoManifest, is_as_written
from tiejax.lab.runs.writing import replace, replace_with
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study
from tiejax.training.records import FOLDER as RECORDS

CONFIG, RESULTS, ENVIRONMENT, CHECKPOINTS = "config.yaml", "results.json", "environment.json", "checkpoints"
METRICS = "metrics.npz"
# What the system says of a path that cannot be made whatever the room and the permissions.
NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL)
# In the order in which an overwritten run is removed: killed on the way, what is left is still known as an unfinished run.
CONTENTS = (
    RESULTS,
    ENVIRONMENT,
    METRICS,
    "data.json",
    "tokenizer.json",
    "report.html",
    "figures",
    "events",
    "finished",
    "models",
    CHECKPOINTS,
    "damaged",
    CONFIG,
    KIND,
)


def _held(path: Path) -> BadInput:
    return BadInput(f"--out {path}: another process is running there; wait for it or name another directory")


@dataclasses.dataclass
class RunDirectory:
    """A directory that this process holds until it ends. Use `claim`.

    manifest: what the run is, and what it holds.
    """

    path: Path
    lock: filelock.BaseFileLock
    manifest: Manifest

    @classmethod
    def state(cls, path: Path) -> str:
        """Return `new` (nothing there yet), `unfinished`, `finished`, or `foreign` (something that is no run)."""
        try:
            if not path.exists():
                return "new"
            if not path.is_dir():
                raise BadInput(f"--out {path}: is a file; name a directory")
            present = {entry.name for entry in path.iterdir()} - {".lock", KIND, f".{KIND}.part", f".{CONFIG}.part"}
        except OSError as error:
            raise BadInput(f"--out {path}: cannot be read: {error.strerror}") from None
        if CONFIG in present:
            return "finished" if cls._finished(path) else "unfinished"
        return "foreign" if present else "new"

    @classmethod
    def _finished(cls, path: Path) -> bool:
        try:
            return RESULTS in manifest.read(path).files
        except NoManifest:
            return False

    @classmethod
    def check(cls, path: Path, resume: bool, overwrite: bool) -> str:
        """Return the state of `path`, or raise BadInput, writing nothing, if the switches do not fit it."""
        if resume and overwrite:
            raise BadInput("--resume and --overwrite: give one of them")
        state = cls.state(path)
        if state == "foreign":
            raise BadInput(f"--out {path}: holds files but no run; name a new directory")
        if state == "new" and resume:
            raise BadInput(f"--resume: there is no run in {path}; leave --resume out to start one")
        if state in ("unfinished", "finished") and not (resume or overwrite):
            try:
                manifest.read(path)
            except NoManifest as reason:
                raise BadInput(
                    f"--out {path}: holds a run that can be neither resumed nor overwritten ({reason}); name another"
                ) from None
        if state == "unfinished" and not (resume or overwrite):
            raise BadInput(f"--out {path}: holds an unfinished run; --resume goes on with it, --overwrite starts anew")
        if state == "finished" and not (resume or overwrite):
            raise BadInput(f"--out {path}: holds a finished run; name another directory, or --overwrite it")
        return state

    @classmethod
    def opened(cls, path: Path) -> Manifest:
        """Return what the run in `path` is and holds.

        Raises BadInput, with the path and without an option, if that is not known or the format is another one.
        """
        try:
            return manifest.read(path)
        except NoManifest as reason:
            raise BadInput(f"{path}: {reason}") from None

    @classmethod
    def check_study(cls, path: Path, name: str, switch: str) -> None:
        """Raise BadInput unless the run in `path` was made by the study called `name`, in today's format."""
        reason: object = None
        try:
            made_by = manifest.read(path).study
        except NoManifest as error:
            made_by, reason = error.study, error
        if reason or made_by != name:
            reason = reason or f"it is one of {made_by}"
            raise BadInput(f"--{switch}: {path} holds no run of {name} that can be used ({reason}); name another directory")

    @classmethod
    def damage(cls, path: Path) -> list[str]:
        """Return the files, of those that the run in `path` lists, that are missing or not what was written."""
        return manifest.damaged(path, manifest.read(path))

    @classmethod
    def results(cls, path: Path, made: Manifest) -> dict[str, Any] | None:
        """Return what results.json of the run in `path` says, None if it has not finished; raises BadInput if it is damaged."""
        if RESULTS not in made.files:
            return None
        if not is_as_written(path / RESULTS, made.files[RESULTS]):
            raise BadInput(f"{path / RESULTS}: is damaged; the run's command and --resume make it again")
        found = json.loads((path / RESULTS).read_bytes())
        if not isinstance(found, dict):
            raise BadInput(f"{path / RESULTS}: holds no results")
        return found

    @classmethod
    def record_files(cls, path: Path) -> list[Path]:
        """Return the files in `path`, if any, that hold all records of a run."""
        kept = (path / METRICS, path / f".{METRICS}.part", *(path / CHECKPOINTS / RECORDS).glob("*"))
        return [file for file in kept if file.is_file()]

    @classmethod
    def probe(cls, path: Path) -> None:
        """Raise BadInput or OSError, writing nothing, if `path` could not be claimed now: before work that would be in vain."""
        ancestor = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not ancestor.is_dir():
            raise BadInput(f"--out {path}: cannot be written: {ancestor} is no folder")
        if not os.access(ancestor, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(ancestor))
        if (path / ".lock").exists():
            try:
                with filelock.FileLock(path / ".lock").acquire(timeout=0):
                    pass
            except filelock.Timeout:
                raise _held(path) from None

    @classmethod
    def claim(cls, study: Study, settings: Any, resume: bool, overwrite: bool) -> "RunDirectory":
        """Take hold of `settings.out` and leave it with study and settings in it: created, resumed, or (`overwrite`) emptied.

        Raises BadInput if the switches do not fit what is there, if a resumed run was started with other settings, or if
        another process holds it; OSError if it cannot be written.
        """
        path, asked = Path(settings.out), manifest.settings_of(settings, study.may_change)
        cls.check(path, resume, overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path / ".lock")
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _held(path) from None
        except OSError as error:
            if error.errno not in NO_SUCH_PLACE:
                raise
            raise BadInput(f"--out {path}: cannot be written: {error.strerror}") from None
        state = cls.check(path, resume, overwrite)
        if resume:
            return cls(path, lock, _as_started(path, asked))
        if overwrite and state != "new":
            _empty(path)
        run = cls(path, lock, Manifest(study.name, asked))
        run.manifest.write(path)
        replace(path / CONFIG, yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False).encode())
        return run

    @property
    def finished(self) -> bool:
        """Whether the run has ended, whatever has become of its files since."""
        return RESULTS in self.manifest.files

    def bind(self, text: str) -> None:
        """Let the run be one on the text with this fingerprint; raises BadInput if it was started on another."""
        if self.manifest.text not in (None, text):
            raise BadInput(f"--resume: {self.path} was started on another text ({self.manifest.text[:16]}...)")
        if self.manifest.text is None:
            self._change(text=text)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    def write_environment(self, devices: Mapping[str, Any], command: str) -> dict[str, Any]:
        """Write and return environment.json, as of `facts.write`."""
        return facts.write(self.path / ENVIRONMENT, devices, command)

    def holds(self, name: str) -> bool:
        """Say whether a file is there that the run has listed."""
        return name in self.manifest.files and (self.path / name).is_file()

    def intact(self, name: str) -> bool:
        """Say whether a file is there that the run has listed, as it was written."""
        return name in self.manifest.files and is_as_written(self.path / name, self.manifest.files[name])

    def whole(self, folder: str) -> bool:
        """Say whether all files of a folder are there that the run has listed, as they were written."""
        listed = [name for name in self.manifest.files if name.startswith(f"{folder}/")]
        return bool(listed) and all(self.intact(name) for name in listed)

    def read(self, name: str, then: str) -> bytes:
        """Return what a listed file holds; raises BadInput if it is not what was written.

        then: happens if the file is removed, as "that model is trained again".
        """
        path = self.path / name
        content = path.read_bytes() if path.is_file() else b""
        if manifest.digest_of_bytes(content) != self.manifest.files[name]:
            raise BadInput(f"--resume: {path} is damaged; remove it, and {then}")
        return content

    def keep(self, name: str, content: bytes) -> bytes:
        """Write a file unless it is there already; return what it holds. Raises BadInput if it is not what was written."""
        if not self.holds(name):
            self.write(name, content)
        return self.read(name, "it is written anew")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, of a folder below this one too, as one act, and list it."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        replace(path, content)
        self._list({name: manifest.digest_of_bytes(content)})

    def add(self, paths: Iterable[Path]) -> None:
        """List files that stand below this directory, and all files of folders among them, as they are now."""
        files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]
        self._list({file.relative_to(self.path).as_posix(): manifest.digest_of(file) for file in files})

    def _list(self, found: Mapping[str, str]) -> None:
        if found.items() - self.manifest.files.items():
            self._change(files={**self.manifest.files, **found})

    def _change(self, **fields: Any) -> None:
        self.manifest = dataclasses.replace(self.manifest, **fields)
        self.manifest.write(self.path)

    def remove(self, name: str) -> None:
        """Remove a folder below this one."""
        shutil.rmtree(self.path / name, ignore_errors=True)

    def write_metrics(self, arrays: Mapping[str, np.ndarray], in_files: bool = False) -> None:
        """Write named arrays, no pickles, as metrics.npz: compressed, unless they are large ones that are read from files."""
        path, scratch = self.path / METRICS, self.path if in_files else None
        replace_with(path, lambda file: write_npz(file, arrays, compressed=not in_files, scratch=scratch))
        self.add([path])

    def write_report(self, html: str) -> Path:
        """Write report.html and return its path."""
        self.write("report.html", html.encode())
        return self.path / "report.html"

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write results.json, which ends the run. Pass `plain` results: JSON has no NaN."""
        self.write(RESULTS, json.dumps(results, indent=1, allow_nan=False).encode())

    def release(self) -> None:
        """Let another process have the directory."""
        self.lock.release()


def _as_started(path: Path, asked: dict[str, Any]) -> Manifest:
    """Return the manifest of a run that is resumed; raises BadInput if it was not started with these settings."""
    try:
        found = manifest.read(path)
    except NoManifest as reason:
        raise BadInput(f"--resume: {path} cannot be resumed: {reason}") from None
    if changed := manifest.differences(found.settings, asked):
        raise BadInput(
            f"--resume: {path} holds a run of another configuration ({'; '.join(changed)}): its {CONFIG} was edited, or "
            "another process has started a run there since"
        )
    return found


def _empty(path: Path) -> None:
    """Remove a run; killed on the way, it leaves an unfinished one."""
    with contextlib.suppress(NoManifest):
        dataclasses.replace(manifest.read(path), files={}).write(path)
    for name in (f".{METRICS}.part", *CONTENTS):
        target = path / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
