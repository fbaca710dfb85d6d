"""run.json: the study, settings and text of a run, and the digests of its files.

The digest of study, settings and text is stored in each checkpoint, so that none is resumed with other settings or on another
text. A file belongs to the run only once it is listed here.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.system.files import read_own_file, replace, sha256
from tiejax.system.visible import cut

KIND = "run.json"
# Increased whenever older run directories can no longer be resumed or read.
FORMAT = 3
MOST_BYTES = 2**26


class NoManifest(ValueError):
    """The manifest of a run cannot be read. str: the reason. study: the study that made the run, if it is known."""

    def __init__(self, reason: str, study: str = "") -> None:
        super().__init__(reason)
        self.study = study


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The identity of a run, and its files.

    study: its name. settings: resolved, as JSON values, without those that do not affect results. text: fingerprint of the
    training text, None without text or before it is known. files: path in the run directory -> SHA-256 (hex). lengths: path ->
    number of bytes, of files that were written since lengths are recorded. parts: the seeds of each part that has begun to
    train, as values of the setting `seeds`; empty if all seeds train together. tested: the numbers of seeds with which the run
    had finished, and its claims were tested, before seeds were appended or runs joined.
    """

    study: str
    settings: dict[str, Any]
    text: str | None = None
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    lengths: dict[str, int] = dataclasses.field(default_factory=dict)
    parts: tuple[int | list[int], ...] = ()
    tested: tuple[int, ...] = ()

    @property
    def all_parts(self) -> list[int | list[int]]:
        """The seeds of each part, also if there is only one, as values of the setting `seeds`."""
        return list(self.parts) or [self.settings["seeds"]]

    def identity_in(self, folder: str, part: int = 0) -> str:
        """Return the SHA-256 (hex) of study, settings, text and checkpoint folder; every checkpoint in the folder stores it.

        part: number of the part whose seeds are trained there. Its digest does not change when others are appended.
        """
        settings = self.settings | ({"seeds": self.parts[part]} if self.parts else {})
        return digest_of_json({"study": self.study, "settings": settings, "text": self.text, "folder": folder})

    def write(self, folder: Path) -> None:
        """Write run.json atomically."""
        content = {"study": self.study, "format": FORMAT, "settings": self.settings, "text": self.text, "files": self.files}
        lengths = {name: length for name, length in self.lengths.items() if name in self.files}
        optional = {"lengths": lengths, "parts": list(self.parts), "tested": list(self.tested)}
        content |= {name: value for name, value in optional.items() if value}
        replace(folder / KIND, json.dumps({**content, "digest": digest_of_json(content)}, indent=1).encode())


def read(folder: Path) -> Manifest:
    """Return the manifest in a folder; raises NoManifest if it is missing or invalid, OSError if it cannot be read."""
    damage = NoManifest(f"{KIND} is damaged")
    try:
        content = json.loads(read_own_file(folder / KIND, MOST_BYTES))
        study, version = str(content["study"]), content["format"]
    except FileNotFoundError:
        raise NoManifest(f"{KIND} is missing: this is not a run directory, or one of an early version of tiejax") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damage from None
    if version != FORMAT:
        raise NoManifest(f"it has format {cut(version)}, but this version of tiejax reads format {FORMAT}", study)
    if content.pop("digest", None) != digest_of_json(content) or not _is_whole(content):
        raise damage
    parts, tested = tuple(content.get("parts", ())), tuple(content.get("tested", ()))
    return Manifest(study, content["settings"], content["text"], content["files"], content.get("lengths", {}), parts, tested)


def _is_whole(content: Mapping[str, Any]) -> bool:
    """Return whether all keys are present with values of their types; a valid digest does not guarantee that."""
    files, lengths = content.get("files"), content.get("lengths", {})
    return (
        isinstance(content.get("settings"), dict)
        and (content.get("text") is None or isinstance(content["text"], str))
        and "text" in content
        and isinstance(files, dict)
        and all(isinstance(digest, str) for digest in files.values())
        and isinstance(lengths, dict)
        and all(type(length) is int for length in lengths.values())
        and _is_parts(content.get("parts", []))
        and _is_parts(content.get("tested", []))
    )


def _is_parts(parts: Any) -> bool:
    """Return whether a value is a list of values of the setting `seeds`."""
    return isinstance(parts, list) and all(
        type(seed) is int for part in parts for seed in (part if isinstance(part, list) else [part])
    )


def settings_of(settings: Any, free: Sequence[str]) -> dict[str, Any]:
    """Return resolved settings as JSON values, without the run directory and the settings in `free`."""
    fields = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ("out", *free)}
    read_back: dict[str, Any] = json.loads(json.dumps(fields))
    return read_back


def with_later(settings: Mapping[str, Any], default: Any, free: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a run in the present version: with the defaults of later settings.

    settings: those of a manifest. default: the settings of the study with all defaults. free: as in `settings_of`.
    """
    later = {name: value for name, value in settings_of(default, free).items() if name not in settings}
    return {**later, **settings}


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs, each with the values of all runs, None for a run without it."""
    names = dict.fromkeys(name for run in settings for name in run)
    values = {name: [run.get(name) for run in settings] for name in names}
    # Compared as text, because the order of the keys in a mapping matters: it is their order in the arrays.
    return {name: by_run for name, by_run in values.items() if len(set(map(json.dumps, by_run))) > 1}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings in which two runs differ, as `field: before -> now`."""
    return [f"{name}: {cut(one)} -> {cut(other)}" for name, (one, other) in differing([before, now]).items()]


def damaged(folder: Path, manifest: Manifest) -> list[str]:
    """Return the listed files of a run that are missing or have been changed."""
    return [name for name in manifest.files if not is_as_written(folder, name, manifest)]


def is_as_written(folder: Path, name: str, manifest: Manifest) -> bool:
    """Return whether a file of a run exists and has its listed length and digest."""
    return has_length(folder, name, manifest) and sha256(folder / name) == manifest.files[name]


def has_length(folder: Path, name: str, manifest: Manifest) -> bool:
    """Return whether a file of a run exists and has its listed length, if there is one.

    It is compared before a file is read, because reading another one in its place, perhaps a sparse one, may take minutes.
    """
    path = folder / name
    return path.is_file() and path.stat().st_size == manifest.lengths.get(name, path.stat().st_size)


def digest_of_bytes(content: bytes) -> str:
    """Return the SHA-256 (hex) of the content of a file."""
    return hashlib.sha256(content).hexdigest()


def digest_of_json(content: object) -> str:
    """Return the SHA-256 (hex) of a JSON value; it depends on the order of mappings."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
