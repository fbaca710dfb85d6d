"""Texts prepared as sets of tokens on disk: built once under a lock, atomically, and verified when opened."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import filelock
import tokenizers

from tiejax.system.files import sha256
from tiejax.text import tokenizer as tokenization
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.sequences import Progress, Sequences, ignore, read_split, write
from tiejax.text.splits import Texts, open_texts

MANIFEST, TOKENIZER = "manifest.json", "tokenizer.json"
INCOMPLETE = "incomplete-"
# Increment whenever the files of a set change. It is part of the folder's name but not of the fingerprint: a run whose set was
# stored in another way can be resumed, after its text has been prepared again.
STORAGE = 2
MOST_UNKNOWN = 0.01  # share of unknown tokens from which on it is reported


class Recipe(NamedTuple):
    """How texts are turned into a set of tokens.

    settings: everything except the tokenizer that determines the tokens, including the fingerprint of the texts; can be
    written as JSON. vocabulary: name of the tokenizer trained on the texts, part of its file name. trained: words for that
    tokenizer. train: trains it. check: raises CorpusError if a given tokenizer is unsuitable. tokenise: (tokenizer) ->
    (splits, counts).
    """

    settings: Mapping[str, Any]
    vocabulary: str
    trained: str
    train: Callable[[], tokenizers.Tokenizer]
    check: Callable[[tokenizers.Tokenizer], object]
    tokenise: Callable[[tokenizers.Tokenizer], tuple[Mapping[str, Sequences], dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A set of tokens on disk, verified against its manifest when opened.

    fingerprint: SHA-256 (hex) of texts, tokenizer and settings. facts: the texts, the settings, counts and bytes; can be
    written as JSON.
    """

    KIND: ClassVar[str]  # prefix of the names of such sets

    folder: Path
    fingerprint: str
    tokenizer: tokenizers.Tokenizer
    facts: dict[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        return self.folder / TOKENIZER

    def sequences(self, name: str) -> Sequences:
        """Return the sequences of "train", "validation" or "test" as they were written."""
        return read_split(self.folder, name)


P = TypeVar("P", bound=Prepared)


def prepare(
    form: type[P],
    names: Mapping[str, Sequence[str]],
    recipe: Callable[[Texts, list[str], int], Recipe],
    *,
    tokenizer: str | None,
    vocab_size: int,
    folder: Path,
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    trained: str | None = None,
    say: Callable[[str], None] = ignore,
    progress: Progress = ignore,
) -> P:
    """Tokenise texts into `folder`, or open them if they are prepared there already.

    Args:
        form: the type of the prepared set.
        names: the names of the texts by setting, as in `corpus.sources`, as are `text_feature` and `tfds_dir`.
        recipe: (texts, their fingerprints, vocab_size) -> how to tokenise them; called while the folder is locked.
        tokenizer: as in `tokenizer.load`; None to train one, once per text, of at most `vocab_size` tokens.
        folder: folder of prepared data, created if missing.
        trained: file of a tokenizer trained on this text earlier, used instead of training one.
        say: called with one-line messages for the user.
        progress: called with (phase, done, total) from time to time.

    Raises:
        CorpusError: if a text, the tokenizer or a setting cannot be used.
        OSError: if the disk is full or cannot be written.
    """
    with _locked_folder(folder, say):
        texts = open_texts(names, text_feature, tfds_dir, say, progress)
        hashes = texts.fingerprints()
        how = recipe(texts, hashes, vocab_size)
        if (file := tokenizer or trained) is None:
            model = _trained_once(folder, how.vocabulary, how.train)
        else:
            given = tokenization.load(file)
            how.check(given)
            model = given.to_str().encode()
        settings = {**how.settings, "tokenizer_sha256": hashlib.sha256(model).hexdigest()}
        fingerprint = digest(settings)
        target = folder / f"{form.KIND}-{fingerprint[:16]}-{STORAGE}"
        if not target.exists():
            say(f"preparing the text in {target}")
            with atomic_folder(target) as incomplete:
                (incomplete / TOKENIZER).write_bytes(model)
                splits, counts = how.tokenise(stored := tokenization.load(str(incomplete / TOKENIZER)))
                texts.check(hashes)
                if (share := _unknown_share(splits, stored)) > MOST_UNKNOWN:
                    say(f"{share:.1%} of the tokens of this text are unknown ones; use a tokenizer made for its language")
                write(incomplete, splits, progress)
                _write_manifest(incomplete, fingerprint, {**settings, **counts})
        facts = {**names, "tokenizer": tokenizer or how.trained, **_verified_facts(target, fingerprint)}
        return form(target, fingerprint, tokenization.load(str(target / TOKENIZER)), facts)


def _unknown_share(splits: Mapping[str, Sequences], model: tokenizers.Tokenizer) -> float:
    """Return the share of unknown tokens in all splits, 0 for a tokenizer without one."""
    unknown = tokenization.unknown(model)
    if unknown is None:
        return 0.0
    counts = [(int((part.ids == unknown).sum()), len(part.ids)) for part in splits.values()]
    return sum(found for found, _ in counts) / sum(number for _, number in counts)


def digest(content: object) -> str:
    """Return the SHA-256 (hex) of a value serialised as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Locked and atomically created folders.


@contextlib.contextmanager
def _locked_folder(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Create and lock the folder, and remove the incomplete files of killed processes.

    say: called with a message before waiting for another process. An OSError without a path is given that of the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock")
        try:
            held = lock.acquire(timeout=0)
        except filelock.Timeout:
            say(f"another process is preparing text in {folder}; waiting for it")
            held = lock.acquire()
        with held:
            for left in folder.glob(f"{INCOMPLETE}*"):
                _remove(left)
            yield
    except (NotADirectoryError, FileExistsError) as error:
        raise CorpusError(f"data_dir {folder}: {error.strerror}") from None
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or first_line(error), str(folder)) from None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to `target`, and rename it to `target` at the end.

    After an exception, the folder and any parents created for it are removed. A process that is killed leaves
    `incomplete-...-TARGET`.
    """
    parents = [parent for parent in target.absolute().parents if not os.path.lexists(parent)]
    # The name is unique and has at most 255 bytes: a letter has up to four.
    incomplete = target.with_name(f"{INCOMPLETE}{secrets.token_hex(4)}-{target.name[:50]}")
    try:
        incomplete.mkdir(parents=True)
        yield incomplete
        os.rename(incomplete, target)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        for parent in parents:  # innermost first
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _trained_once(folder: Path, name: str, train: Callable[[], tokenizers.Tokenizer]) -> bytes:
    """Return the stored tokenizer.json of this name, or train and store one; a hash in its file name reveals damage."""
    stem = f"tokenizer-{name}-"
    for path in sorted(folder.glob(f"{stem}*.json")):
        if path.name != f"{stem}{sha256(path)[:16]}.json":
            raise CorpusError(f"data_dir {folder}: {path.name} is damaged; remove it to train and prepare again")
        return path.read_bytes()
    model = train().to_str().encode()
    path = folder / f"{stem}{hashlib.sha256(model).hexdigest()[:16]}.json"
    partial = folder / f"{INCOMPLETE}{path.name}"
    try:
        partial.write_bytes(model)
        os.replace(partial, path)
    finally:
        _remove(partial)
    return model


# The manifest of a prepared folder.


def _write_manifest(folder: Path, fingerprint: str, facts: dict[str, Any]) -> None:
    """Write the manifest: the fingerprint, the facts, and the size and hash of every file in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths}
    content = {"fingerprint": fingerprint, "facts": facts, "files": files}
    (folder / MANIFEST).write_text(json.dumps({**content, "digest": digest(content)}, indent=1))


def _verified_facts(folder: Path, fingerprint: str) -> dict[str, Any]:
    """Verify every file of a prepared folder; return its facts and total `bytes`. Raises CorpusError if a file is damaged."""

    def damaged(file: str, what: str) -> CorpusError:
        return CorpusError(
            f"data_dir {folder.parent}: {file} in {folder} {what}; remove the folder {folder} to prepare it again"
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
        if sha256(path) != expected["sha256"]:
            raise damaged(file, "is damaged")
    return {**facts, "bytes": sum(file["bytes"] for file in files.values())}
