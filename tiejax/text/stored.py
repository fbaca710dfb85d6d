"""Sets of tokens on disk: made once under a lock, whole or not at all, and checked when they are opened."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import tokenizers

from tiejax.text import tokenizer as tokenization
from tiejax.text.array_records import Progress, Sequences, write
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.sources import Source

MANIFEST, TOKENIZER = "manifest.json", "tokenizer.json"
INCOMPLETE = "incomplete-"


class Recipe(NamedTuple):
    """How texts become a set of tokens.

    settings: what the tokens depend on beside the tokenizer, the texts' fingerprint among it, as JSON can hold it.
    vocabulary: the name of a vocabulary that is trained on the texts. train: trains it.
    check: raises CorpusError for a tokenizer that will not do.
    tokenise: (tokenizer) -> splits and counts; raises CorpusError if the texts have changed since their fingerprint was taken.
    """

    settings: Mapping[str, Any]
    vocabulary: str
    train: Callable[[], tokenizers.Tokenizer]
    check: Callable[[tokenizers.Tokenizer], object]
    tokenise: Callable[[tokenizers.Tokenizer], tuple[Mapping[str, Sequences], dict[str, Any]]]


class Stored(NamedTuple):
    """A set on disk. fingerprint: SHA-256 (hex) of texts, tokenizer and settings. facts: settings, counts and bytes."""

    folder: Path
    fingerprint: str
    tokenizer: tokenizers.Tokenizer
    facts: dict[str, Any]


def nothing(*_: object) -> None:
    """Tell nobody."""


def prepare(
    kind: str,
    folder: Path,
    tokenizer: str | None,
    recipe: Callable[[], Recipe],
    say: Callable[[str], None] = nothing,
    progress: Progress = nothing,
) -> Stored:
    """Return a set of tokens of this kind, prepared in `folder` or found there.

    tokenizer: as in `tokenizer.load`; None to train one, once for each text. recipe: finds the texts, while nobody else
    works in the folder. say: is told in one line what the user should know. progress: is told (phase, done, total).
    Raises CorpusError.
    """
    with _workplace(folder, say):
        asked = recipe()
        if tokenizer is None:
            model = _once_trained(folder, asked.vocabulary, asked.train)
        else:
            given = tokenization.load(tokenizer)
            asked.check(given)
            model = given.to_str().encode()
        settings = {**asked.settings, "tokenizer_sha256": hashlib.sha256(model).hexdigest()}
        fingerprint = digest(settings)
        target = folder / f"{kind}-{fingerprint[:16]}"
        if not target.exists():
            say(f"preparing the text in {target}")
            with built(target) as incomplete:
                (incomplete / TOKENIZER).write_bytes(model)
                splits, counts = asked.tokenise(tokenization.load(str(incomplete / TOKENIZER)))
                write(incomplete, f"text_{kind}", splits, progress)
                _seal(incomplete, fingerprint, {**settings, **counts})
        facts = _opened(target, fingerprint)
        return Stored(target, fingerprint, tokenization.load(str(target / TOKENIZER)), facts)


def digest(content: object) -> str:
    """Return the SHA-256 (hex) of something that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def told(progress: Progress, phase: str, sources: Iterable[Source]) -> Callable[[int], None]:
    """Return what is to be told how many bytes of these sources were read."""
    size = sum(source.size for source in sources)
    return lambda taken: progress(phase, taken, size)


# The folder.


@contextlib.contextmanager
def _workplace(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make the folder and hold it against other processes, cleared of what a killed one left.

    say: is told where another process has to be waited for. Raises OSError, with a path, for what the disk refuses inside.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _held(folder, say):
            for left in folder.glob(f"{INCOMPLETE}*"):
                _remove(left)
            yield
    except (NotADirectoryError, FileExistsError) as error:
        raise CorpusError(f"data_dir {folder}: {error.strerror}") from None
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or first_line(error), str(folder)) from None


@contextlib.contextmanager
def _held(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        say(f"another process prepares text in {folder}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def built(target: Path) -> Iterator[Path]:
    """Give a folder beside `target` that becomes it, as one act, where nothing is raised."""
    incomplete = target.with_name(f"{INCOMPLETE}{target.name}")
    _remove(incomplete)  # of a process that was killed
    try:
        incomplete.mkdir(parents=True)
        yield incomplete
        os.replace(incomplete, target)
    finally:
        _remove(incomplete)


def _once_trained(folder: Path, name: str, train: Callable[[], tokenizers.Tokenizer]) -> bytes:
    """Return the tokenizer.json that was trained under this name, or now is; its file has its hash, so that damage shows."""
    stem = f"tokenizer-{name}-"
    for path in sorted(folder.glob(f"{stem}*.json")):
        if path.name != f"{stem}{_sha256(path)[:16]}.json":
            raise CorpusError(f"data_dir {folder}: {path.name} is damaged; remove it, and what was prepared with it is lost")
        return path.read_bytes()
    model = train().to_str().encode()
    path = folder / f"{stem}{hashlib.sha256(model).hexdigest()[:16]}.json"
    beside = folder / f"{INCOMPLETE}{path.name}"
    try:
        beside.write_bytes(model)
        os.replace(beside, path)
    finally:
        _remove(beside)
    return model


# The manifest.


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(folder: Path, fingerprint: str, facts: dict[str, Any]) -> None:
    """Write the manifest: the fingerprint, the facts, and sizes and hashes of every file in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    content = {"fingerprint": fingerprint, "facts": facts, "files": files}
    beside = folder / f".{MANIFEST}.part"
    beside.write_text(json.dumps({**content, "digest": digest(content)}, indent=1))
    os.replace(beside, folder / MANIFEST)


def _opened(folder: Path, fingerprint: str) -> dict[str, Any]:
    """Return the facts of a sealed folder, with its `bytes`, after every file was checked; raises CorpusError."""

    def damaged(file: str, what: str) -> CorpusError:
        return CorpusError(
            f"data_dir {folder.parent}: {file} in {folder} {what}; remove the folder {folder} to prepare it anew"
        )

    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        expected_digest = content.pop("digest")
        files, facts = content["files"], content["facts"]
    except FileNotFoundError:
        raise damaged(MANIFEST, "is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(MANIFEST, "is damaged") from None
    if expected_digest != digest(content) or content["fingerprint"] != fingerprint:
        raise damaged(MANIFEST, "is damaged")
    for file, expected in files.items():
        path = folder / file
        if not path.is_file():
            raise damaged(file, "is missing")
        if (size := path.stat().st_size) != expected["bytes"]:
            raise damaged(file, f"has {size} bytes instead of {expected['bytes']}")
        if _sha256(path) != expected["sha256"]:
            raise damaged(file, "is damaged")
    return {**facts, "bytes": sum(file["bytes"] for file in files.values())}
