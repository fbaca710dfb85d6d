"""A run directory: who made it, one run's settings, environment, metrics, results, figures, report and checkpoints."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import filelock
import numpy as np
import yaml

from tiejax.runs.arrays import npz
from tiejax.settings.command_line import BadInput

CONFIG, RESULTS = "config.yaml", "results.json"
KIND = "run.json"  # which study made the run, and in which format
# To be raised whenever a run directory of before can no longer be resumed or read.
FORMAT = 2
# In the order in which an overwritten run is removed: killed on the way, what is left is still known as an unfinished run.
CONTENTS = (
    RESULTS,
    "environment.json",
    "metrics.npz",
    "data.json",
    "tokenizer.json",
    "report.html",
    "figures",
    "events",
    "finished",
    "models",
    "checkpoints",
    "damaged",
    CONFIG,
    KIND,
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy", "matplotlib")


def _write(path: Path, content: bytes) -> None:
    """Replace a file as one act, so that a killed process leaves the old one or the new one."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_bytes(content)
    os.replace(beside, path)


def _held(path: Path) -> BadInput:
    return BadInput(f"--out {path}: another process is running there; wait for it or name another directory")


@dataclasses.dataclass
class RunDirectory:
    """A directory that this process holds until it ends. Use `claim`."""

    path: Path
    lock: filelock.BaseFileLock

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
        if RESULTS in present and CONFIG in present:
            return "finished"
        if CONFIG in present:
            return "unfinished"
        return "foreign" if present else "new"

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
        known = state in ("unfinished", "finished")
        if known and not (resume or overwrite) and (reason := cls._kind(path)[1]):
            raise BadInput(f"--out {path}: holds a run that can be neither resumed nor overwritten ({reason}); name another")
        if state == "unfinished" and not (resume or overwrite):
            raise BadInput(f"--out {path}: holds an unfinished run; --resume goes on with it, --overwrite starts anew")
        if state == "finished" and not (resume or overwrite):
            raise BadInput(f"--out {path}: holds a finished run; name another directory, or --overwrite it")
        return state

    @classmethod
    def study(cls, path: Path) -> str:
        """Return the name of the study that made the run in `path`.

        Raises BadInput, with the path and without an option, if that is not known or the format is another one.
        """
        name, reason = cls._kind(path)
        if reason:
            raise BadInput(f"{path}: {reason}")
        return name

    @classmethod
    def _kind(cls, path: Path) -> tuple[str, str | None]:
        """Return the study that made the run in `path`, or what stands against saying so."""
        try:
            kind = json.loads((path / KIND).read_text())
            name, version = str(kind["study"]), kind["format"]
        except FileNotFoundError:
            return "", f"without {KIND} nothing says which study made it; runs of earlier versions of tiejax are so"
        except (OSError, ValueError, KeyError, TypeError):
            return "", f"{KIND}, which says which study made it, is damaged"
        if version != FORMAT:
            return name, f"it has format {version}, this version of tiejax reads format {FORMAT}"
        return name, None

    @classmethod
    def check_study(cls, path: Path, name: str, switch: str) -> None:
        """Raise BadInput unless the run in `path` was made by the study called `name`, in today's format."""
        made_by, reason = cls._kind(path)
        if reason or made_by != name:
            reason = reason or f"it is one of {made_by}"
            raise BadInput(f"--{switch}: {path} holds no run of {name} that can be used ({reason}); name another directory")

    @classmethod
    def probe(cls, path: Path) -> None:
        """Raise BadInput, writing nothing, if `path` could not be claimed now: before work that would be in vain."""
        ancestor = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not (ancestor.is_dir() and os.access(ancestor, os.W_OK)):
            raise BadInput(f"--out {path}: cannot be written: {ancestor} is no folder that may be written to")
        if (path / ".lock").exists():
            try:
                with filelock.FileLock(path / ".lock").acquire(timeout=0):
                    pass
            except filelock.Timeout:
                raise _held(path) from None

    @classmethod
    def claim(cls, study: str, settings: Any, resume: bool, overwrite: bool) -> "RunDirectory":
        """Take hold of `settings.out` and leave it with study and settings in it: created, resumed, or (`overwrite`) emptied.

        Raises BadInput if the switches do not fit what is there, if it cannot be written, or if another process holds it.
        """
        path = Path(settings.out)
        cls.check(path, resume, overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path / ".lock")
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise _held(path) from None
        except OSError as error:
            raise BadInput(f"--out {path}: cannot be written: {error.strerror}") from None
        cls.check(path, resume, overwrite)
        if overwrite:
            for name in CONTENTS:
                target = path / name
                if target.is_dir():
                    shutil.rmtree(target)
                else:
                    target.unlink(missing_ok=True)
        run = cls(path, lock)
        if not (path / CONFIG).exists():
            _write(path / KIND, json.dumps({"study": study, "format": FORMAT}).encode())
            _write(path / CONFIG, yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False).encode())
        return run

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    def write_environment(self, devices: Mapping[str, Any], command: str) -> dict[str, Any]:
        """Write and return versions, machine, devices, git commit, command, date; those of a resumption under `resumed`."""
        path = self.path / "environment.json"
        now = {
            "command": command,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
            **devices,
            "git_commit": _git_commit(),
        }
        facts = json.loads(path.read_text()) if path.exists() else None
        facts = {**facts, "resumed": [*facts.get("resumed", []), now]} if facts else now
        _write(path, json.dumps(facts, indent=2).encode())
        return facts

    def keep(self, name: str, content: bytes) -> bytes:
        """Write a file unless it is there already; return what it holds."""
        path = self.path / name
        if not path.exists():
            _write(path, content)
        return path.read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Write a file, of a folder below this one too, as one act."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        _write(path, content)

    def remove(self, name: str) -> None:
        """Remove a folder below this one."""
        shutil.rmtree(self.path / name, ignore_errors=True)

    def write_metrics(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write named arrays, no pickles, as metrics.npz."""
        _write(self.path / "metrics.npz", npz(arrays, compressed=True))

    def write_report(self, html: str) -> Path:
        """Write report.html and return its path."""
        _write(self.path / "report.html", html.encode())
        return self.path / "report.html"

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write results.json, which says that the run is finished. Pass `plain` results: JSON has no NaN."""
        _write(self.path / RESULTS, json.dumps(results, indent=1, allow_nan=False).encode())

    def release(self) -> None:
        """Let another process have the directory."""
        self.lock.release()


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: numpy numbers as Python's, what is not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _git_commit() -> str | None:
    """The commit of the code that runs, with `+` if its tree has changes; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def stop_flag() -> Callable[[], bool]:
    """Return a function that says whether Ctrl-C or SIGTERM has come; a second one ends the process at once."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    return lambda: bool(seen)
