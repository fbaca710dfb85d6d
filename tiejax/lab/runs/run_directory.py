"""The directory of a run, with its manifest, settings, environment, metrics, results, figures, report and checkpoints."""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from tiejax.lab.runs import facts, manifest
from tiejax.lab.runs.arrays import write_npz
from tiejax.lab.runs.manifest import KIND, Manifest, NoManifest, has_length, is_as_written
from tiejax.lab.settings import checks, yaml_text
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study
from tiejax.system.files import replace, replace_with, sha256
from tiejax.system.visible import cut
from tiejax.training.records import FOLDER as RECORDS

CONFIG, RESULTS, ENVIRONMENT, CHECKPOINTS = "config.yaml", "results.json", "environment.json", "checkpoints"
METRICS, REPORT, FIGURES = "metrics.npz", "report.html", "figures"
FINISHED = "finished"  # folder of the results of stages
# Increased whenever the rules change by which claims are tested.
RESULTS_FORMAT = 3
# Errors for paths that cannot exist, regardless of disk space and permissions.
IMPOSSIBLE_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL)
# Files and folders that tiejax writes and run.json does not list.
TRACKER = "tracker.json"  # the identity of the run in a tracker, and what was sent there
UNLISTED = (ENVIRONMENT, TRACKER, f".{METRICS}.part", f".{TRACKER}.part")
OWN_FOLDERS = (CHECKPOINTS, "damaged")
EVENTS, EVENT_FILES = "events", "events.out.tfevents.*"
CONTENTS = (
    RESULTS,
    ENVIRONMENT,
    TRACKER,
    METRICS,
    "data.json",
    "tokenizer.json",
    REPORT,
    FIGURES,
    EVENTS,
    "finished",
    "states",
    "models",
    "initial_weights",
    *OWN_FOLDERS,
    CONFIG,
    KIND,
)


def _locked(path: Path) -> BadInput:
    return BadInput(f"--out {path}: another process is running there; wait for it or name another directory")


@dataclasses.dataclass
class RunDirectory:
    """A run directory that this process has locked until it ends; returned by `reserve`.

    manifest: the identity of the run, and its files. environment: the content of environment.json.
    """

    path: Path
    lock: filelock.BaseFileLock
    manifest: Manifest
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def state(cls, path: Path) -> str:
        """Return the state of a run directory: `new` (empty or missing), `unfinished`, `finished` or `foreign` (not a run)."""
        try:
            if not path.exists():
                return "new"
            if not path.is_dir():
                raise BadInput(f"--out {path}: not a directory but a file; name a directory")
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
        """Return the state of `path`; raises BadInput if it does not allow the switches. Writes nothing."""
        if resume and overwrite:
            raise BadInput("--resume and --overwrite: expected only one of them")
        state = cls.state(path)
        if state == "foreign":
            raise BadInput(f"--out {path}: contains files but no run; name a new directory")
        if state == "new" and resume:
            raise BadInput(f"--resume: no run in {path}; omit --resume to start one")
        if state != "new" and not (resume or overwrite):
            try:
                manifest.read(path)
            except NoManifest as reason:
                raise BadInput(
                    f"--out {path}: contains a run that can be neither resumed nor overwritten ({reason}); name another "
                    "directory"
                ) from None
            if state == "finished":
                raise BadInput(f"--out {path}: contains a finished run; name another directory, or --overwrite it")
            raise BadInput(f"--out {path}: contains an unfinished run; --resume continues it, --overwrite starts from scratch")
        return state

    @classmethod
    def opened(cls, path: Path) -> Manifest:
        """Return the manifest of the run in `path`.

        Raises BadInput, which names the path and no option, if the manifest is missing, damaged or of another format.
        """
        try:
            return manifest.read(path)
        except NoManifest as reason:
            raise BadInput(f"{path}: {reason}") from None

    @classmethod
    def check_study(cls, path: Path, name: str, switch: str) -> None:
        """Raise BadInput unless the run in `path` was made by the study `name`, in the current format."""
        reason: object = None
        try:
            made_by = manifest.read(path).study
        except NoManifest as error:
            made_by, reason = error.study, error
        if reason or made_by != name:
            reason = reason or f"it was made by {made_by}"
            raise BadInput(f"--{switch}: {path} contains no usable run of {name} ({reason}); name another directory")

    @classmethod
    def damage(cls, path: Path) -> list[str]:
        """Return the listed files of the run in `path` that are missing or have been changed."""
        return manifest.damaged(path, manifest.read(path))

    @classmethod
    def results(cls, path: Path, listed: Manifest) -> dict[str, Any] | None:
        """Return results.json of the run in `path`, None if the run has not finished; raises BadInput if it is damaged."""
        if RESULTS not in listed.files:
            return None
        if not is_as_written(path, RESULTS, listed):
            raise BadInput(f"{path / RESULTS}: damaged; the command of the run with --resume writes it again")
        found = json.loads((path / RESULTS).read_bytes())
        if not isinstance(found, dict):
            raise BadInput(f"{path / RESULTS}: contains no results")
        if (form := found.get("format")) != RESULTS_FORMAT:
            raise BadInput(
                f"{path / RESULTS}: expected format {RESULTS_FORMAT}, got {cut(form)}; use the version of tiejax that wrote it"
            )
        return found

    @classmethod
    def record_files(cls, path: Path) -> list[Path]:
        """Return the files in `path` that contain all records of a run."""
        on_disk = (path / CHECKPOINTS).glob(f"**/{RECORDS}/*")
        kept = (path / METRICS, path / f".{METRICS}.part", *on_disk)
        return [file for file in kept if file.is_file()]

    @classmethod
    def grows(cls, study: Study, path: Path, settings: Any) -> bool:
        """Return whether resolved settings add work to the run in `path`.

        They append seeds, extend a list of `study.extends`, or change a setting of `study.adds`.
        """
        found = manifest.read(path).settings
        if study.appends and checks.extends(settings.seeds, found["seeds"]):
            return True
        if any(name in found and found[name] != getattr(settings, name) for name in study.extends):
            return True
        if not study.adds:
            return False
        before = yaml_text.load((path / CONFIG).read_text())
        return any(name in before and before[name] != getattr(settings, name) for name in study.adds)

    @classmethod
    def probe(cls, path: Path) -> None:
        """Raise BadInput or OSError if `path` cannot be reserved now, before any work is done. Writes nothing."""
        ancestor = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not ancestor.is_dir():
            raise BadInput(f"--out {path}: cannot be written: {ancestor} is not a directory; name another directory")
        if not os.access(ancestor, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(ancestor))
        if (path / ".lock").exists():
            try:
                with filelock.FileLock(path / ".lock").acquire(timeout=0):
                    pass
            except filelock.Timeout:
                raise _locked(path) from None

    @classmethod
    def reserve(cls, study: Study, settings: Any, resume: bool, overwrite: bool) -> "RunDirectory":
        """Lock `settings.out` and write study and settings into it, unless the run is resumed; `overwrite` empties it first.

        A resumed run takes the seeds that the settings append to its own, and a change of a setting of `study.adds`.

        Raises BadInput if the state of the directory does not allow the switches, if a resumed run was started with other
        settings, or if another process has locked it; OSError if it cannot be written.
        """
        path, asked = Path(settings.out), manifest.settings_of(settings, study.may_change)
        cls.check(path, resume, overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path / ".lock")
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _locked(path) from None
        except OSError as error:
            if error.errno not in IMPOSSIBLE_PATH:
                raise
            raise BadInput(f"--out {path}: cannot be written: {error.strerror}; name another directory") from None
        state = cls.check(path, resume, overwrite)
        if resume:
            run = cls(path, lock, _as_started(study, path, asked))
            if cls.grows(study, path, settings):
                run._grow(settings, study.extends)
            return run
        if overwrite and state != "new":
            _empty(path)
        looks = settings.looks if study.appends else []
        run = cls(path, lock, Manifest(study.name, asked, parts=(settings.seed_list[: looks[0]],) if looks else ()))
        run.manifest.write(path)
        run._write_config(settings)
        return run

    def _write_config(self, settings: Any) -> None:
        replace(self.path / CONFIG, yaml_text.dump(dataclasses.asdict(settings)).encode())

    def _grow(self, settings: Any, extends: Sequence[str]) -> None:
        """Take the seeds that the settings append to those of the run as its next part, and settings that add other work.

        extends: lists to which the settings may have added.

        If the process is killed between the files, config.yaml asks for the seeds that run.json lacks, and resuming grows the
        run; without more seeds, the run is no longer finished, but its settings are those before. Files made from the seeds so
        far are replaced when the run ends, which has not finished until then.
        """
        made = (RESULTS, METRICS, REPORT)
        files = {
            name: digest
            for name, digest in self.manifest.files.items()
            if name not in made and not name.startswith(f"{FIGURES}/")
        }
        longer = {name: getattr(settings, name) for name in extends if name in self.manifest.settings}
        before = len(checks.seed_list(self.manifest.settings["seeds"]))
        if appended := settings.seed_list[before:]:
            self._write_config(settings)
            parts = (*self.manifest.all_parts, appended)
            tested = (*self.manifest.tested, *([before] if self.finished else []))
            self._change(
                settings=self.manifest.settings | longer | {"seeds": settings.seeds}, files=files, parts=parts, tested=tested
            )
        elif any(self.manifest.settings[name] != values for name, values in longer.items()):
            self._write_config(settings)
            self._change(settings=self.manifest.settings | longer, files=files)
        else:
            stages = any(name.startswith(f"{FINISHED}/") for name in self.manifest.files)
            if self.finished and not stages and not any(self.checkpoints.glob("[0-9]*")):
                raise self.without_checkpoint()
            self._change(files=files)
            self._write_config(settings)

    def without_checkpoint(self) -> BadInput:
        """Return the error of a finished run whose files cannot be written again."""
        return BadInput(
            f"--resume: the run in {self.path} has finished, and its last checkpoint, from which its files could be written "
            "again, is missing; --overwrite trains from scratch"
        )

    def append_part(self, seeds: list[int]) -> None:
        """Take seeds that the settings name already as the next part."""
        self._change(parts=(*self.manifest.all_parts, seeds))

    @property
    def finished(self) -> bool:
        """Whether the run has finished, even if its files have been damaged since."""
        return RESULTS in self.manifest.files

    def bind(self, text: str) -> None:
        """Record the fingerprint of the training text; raises BadInput if the run was started on another text."""
        if self.manifest.text not in (None, text):
            raise BadInput(f"--resume: {self.path} was started on another text ({self.manifest.text[:16]}...)")
        if self.manifest.text is None:
            self._change(text=text)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def figures(self) -> Path:
        return self.path / FIGURES

    def write_environment(self, devices: Mapping[str, Any], command: str, flags: Sequence[str] = ()) -> None:
        """Write environment.json; see `facts.write`."""
        self.environment = facts.write(self.path / ENVIRONMENT, devices, command, flags)

    def holds(self, name: str) -> bool:
        """Return whether a file exists and is listed."""
        return name in self.manifest.files and (self.path / name).is_file()

    def intact(self, name: str) -> bool:
        """Return whether a file exists, is listed and has not been changed."""
        return name in self.manifest.files and is_as_written(self.path, name, self.manifest)

    def whole(self, folder: str) -> bool:
        """Return whether files in a folder are listed, and all of these exist and have not been changed."""
        listed = [name for name in self.manifest.files if name.startswith(f"{folder}/")]
        return bool(listed) and all(self.intact(name) for name in listed)

    def read(self, name: str, then: str) -> bytes:
        """Return the content of a listed file; raises BadInput if it is missing or has been changed.

        then: the consequence of removing the file, such as "that model is trained again".
        """
        path = self.path / name
        content = path.read_bytes() if has_length(self.path, name, self.manifest) else b""
        if manifest.digest_of_bytes(content) != self.manifest.files[name]:
            raise BadInput(f"--resume: {path} is damaged; remove it, and {then}")
        return content

    def keep(self, name: str, content: bytes) -> bytes:
        """Write a file unless it exists and is listed; return its content. Raises BadInput if it has been changed."""
        if not self.holds(name):
            self.write(name, content)
        return self.read(name, "it is written again")

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically and list it. name: relative to the run directory."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        replace(path, content)
        self._list({name: manifest.digest_of_bytes(content)}, {name: len(content)})

    def add(self, paths: Iterable[Path]) -> None:
        """List files with their current digests, and all files in folders."""
        files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path]) if file.is_file()]
        names = [file.relative_to(self.path).as_posix() for file in files]
        digests = dict(zip(names, map(sha256, files), strict=True))
        self._list(digests, {name: file.stat().st_size for name, file in zip(names, files, strict=True)})

    def _list(self, digests: Mapping[str, str], lengths: Mapping[str, int]) -> None:
        if digests.items() - self.manifest.files.items():
            files, known = {**self.manifest.files, **digests}, {**self.manifest.lengths, **lengths}
            self._change(files=files, lengths=known)

    def _change(self, **fields: Any) -> None:
        self.manifest = dataclasses.replace(self.manifest, **fields)
        self.manifest.write(self.path)

    def drop(self, name: str) -> None:
        """Unlist and remove a file, in this order, so that a file that is listed exists; do nothing if it is not there."""
        self._change(files={file: digest for file, digest in self.manifest.files.items() if file != name})
        (self.path / name).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove a folder of the run directory."""
        shutil.rmtree(self.path / name, ignore_errors=True)

    def write_metrics(self, arrays: Mapping[str, np.ndarray], in_files: bool = False) -> None:
        """Write named arrays as metrics.npz, compressed unless they are large memory maps (`in_files`)."""
        path, scratch = self.path / METRICS, self.path if in_files else None
        replace_with(path, lambda file: write_npz(file, arrays, compressed=not in_files, scratch=scratch))
        self.add([path])

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write results.json, which marks the run as finished. The results must be `plain`: JSON has no NaN."""
        self.write(RESULTS, json.dumps({"format": RESULTS_FORMAT, **results}, indent=1, allow_nan=False).encode())

    def release(self) -> None:
        """Unlock the directory."""
        self.lock.release()


def check_contents(path: Path, overwrite: bool) -> None:
    """Raise BadInput if an entry of a run directory has the name of a folder or file of a run, but is something else.

    Otherwise the run would fail there, after it has trained. overwrite: whether the content will be removed, which is not
    possible through links to folders. An unreadable directory is reported when it is read.
    """
    for name in (".lock", *CONTENTS):
        entry = path / name
        is_folder = "." not in name
        if is_folder and os.path.lexists(entry) and not entry.is_dir():
            raise BadInput(f"--out {path}: it contains {name}, which is not a folder; name another directory")
        if not is_folder and os.path.exists(entry) and not entry.is_file():
            raise BadInput(f"--out {path}: it contains {name}, which is not a file; name another directory")
        if is_folder and overwrite and entry.is_symlink():
            raise BadInput(f"--overwrite: {entry} is a link, whose target is not removed; remove the link")


def _as_started(study: Study, path: Path, asked: dict[str, Any]) -> Manifest:
    """Return the manifest of a resumed run; raises BadInput if the run was started with other settings.

    Seeds may be appended, lists of `study.extends` may have become longer, and settings that did not exist when the run was
    started must have their defaults.
    """
    try:
        found = manifest.read(path)
    except NoManifest as reason:
        raise BadInput(f"--resume: {path} cannot be resumed: {reason}") from None
    before = manifest.with_later(found.settings, study.settings(), study.may_change)
    if study.appends and checks.extends(asked["seeds"], before["seeds"]):
        before["seeds"] = asked["seeds"]
    before |= {name: asked[name] for name in study.extends if checks.is_longer(asked[name], before[name])}
    if changed := manifest.differences(before, asked):
        raise BadInput(
            f"--resume: {path} contains a run with other settings ({'; '.join(changed)}): its {CONFIG} has been edited, or "
            "another process has started a run there; restore the file, or name another directory"
        )
    return found


def _empty(path: Path) -> None:
    """Remove a run: the files that run.json lists, and those that tiejax writes without listing them; all others stay.

    A process that is killed midway leaves a valid unfinished run.
    """
    listed: dict[str, str] = {}
    with contextlib.suppress(NoManifest):
        found = manifest.read(path)
        listed = found.files
        unfinished = {name: digest for name, digest in listed.items() if name != RESULTS}
        dataclasses.replace(found, files=unfinished).write(path)
    for target in (*(path / name for name in listed), *(path / name for name in UNLISTED), *(path / EVENTS).rglob(EVENT_FILES)):
        # A name in a hostile run.json may lead out of the directory, and so may a link in it.
        inside = Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(path))
        if inside and (target.is_symlink() or target.is_file()):
            target.unlink()
    for name in OWN_FOLDERS:
        if (path / name).is_dir():
            shutil.rmtree(path / name)
    for name in CONTENTS:
        _remove_empty_folders(path / name)
    for name in (CONFIG, KIND):
        (path / name).unlink(missing_ok=True)


def _remove_empty_folders(folder: Path) -> None:
    """Remove a folder, and folders in it, unless they contain files."""
    for root, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(root)
