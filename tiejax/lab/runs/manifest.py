"""run.json: what a run is, and the digests of the files that it holds.

The digest of what a run is stands in each of its checkpoints, so that none goes on under other settings or on another text. A
file counts as the run's own only from when it is listed here.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.lab.runs.writing import replace
from tiejax.system.files import read_own_file

KIND = "run.json"
# To be raised whenever a run directory of before can no longer be resumed or read.
FORMAT = 3
MOST_BYTES = 2**26


class NoManifest(ValueError):
    """What stands against saying what a run is. study: who made it, if that is known."""

    def __init__(self, reason: str, study: str = "") -> None:
        super().__init__(reason)
        self.study = study


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a run is, and what it holds.

    study: who made it. settings: resolved, as JSON holds them, without those that change no result. text: fingerprint of what
    it is trained on, None where there is none or it is not known yet. files: path in the run directory -> SHA-256 (hex).
    """

    study: str
    settings: dict[str, Any]
    text: str | None = None
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    def identity_in(self, folder: str) -> str:
        """Return the SHA-256 (hex) of what the run is and of a folder below it, whose checkpoints carry it."""
        return digest_of_json({"study": self.study, "settings": self.settings, "text": self.text, "folder": folder})

    def write(self, folder: Path) -> None:
        """Write run.json as one act."""
        content = {"study": self.study, "format": FORMAT, "settings": self.settings, "text": self.text, "files": self.files}
        replace(folder / KIND, json.dumps({**content, "digest": digest_of_json(content)}, indent=1).encode())


def read(folder: Path) -> Manifest:
    """Return what run.json in a folder says; raises NoManifest, or OSError where the system lets nobody read it."""
    damage = NoManifest(f"{KIND}, which says which study made it, is damaged")
    try:
        content = json.loads(read_own_file(folder / KIND, MOST_BYTES))
        study, version = str(content["study"]), content["format"]
    except FileNotFoundError:
        raise NoManifest(
            f"without {KIND} nothing says which study made it; runs of earlier versions of tiejax are so"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damage from None
    if version != FORMAT:
        raise NoManifest(f"it has format {version}, this version of tiejax reads format {FORMAT}", study)
    if content.pop("digest", None) != digest_of_json(content) or not _is_whole(content):
        raise damage
    return Manifest(study, content["settings"], content["text"], content["files"])


def _is_whole(content: Mapping[str, Any]) -> bool:
    """Say whether everything is there, of its type: anyone can give what they wrote a digest."""
    files = content.get("files")
    return (
        isinstance(content.get("settings"), dict)
        and (content.get("text") is None or isinstance(content["text"], str))
        and "text" in content
        and isinstance(files, dict)
        and all(isinstance(digest, str) for digest in files.values())
    )


def settings_of(settings: Any, free: Sequence[str]) -> dict[str, Any]:
    """Return resolved settings as JSON holds them, without the directory and those that are free to change."""
    fields = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ("out", *free)}
    read_back: dict[str, Any] = json.loads(json.dumps(fields))
    return read_back


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all runs, with the value of each run, None where it has none."""
    names = dict.fromkeys(name for of_run in settings for name in of_run)
    values = {name: [of_run.get(name) for of_run in settings] for name in names}
    # As text, since the order of a mapping decides which of its names has which place in arrays.
    return {name: of_runs for name, of_runs in values.items() if len(set(map(json.dumps, of_runs))) > 1}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Write the settings in which two runs differ, as `field: before -> now`."""
    return [f"{name}: {one} -> {other}" for name, (one, other) in differing([before, now]).items()]


def damaged(folder: Path, made: Manifest) -> list[str]:
    """Return the files, of those that a run lists, that are missing or not what was written."""
    return [name for name, digest in made.files.items() if not is_as_written(folder / name, digest)]


def is_as_written(path: Path, digest: str) -> bool:
    """Say whether a file is there, with this digest."""
    return path.is_file() and digest_of(path) == digest


def digest_of_bytes(content: bytes) -> str:
    """Return the SHA-256 (hex) of what a file holds."""
    return hashlib.sha256(content).hexdigest()


def digest_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_json(content: object) -> str:
    """Return the SHA-256 (hex) of what JSON can hold; the order of a mapping is part of it."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
