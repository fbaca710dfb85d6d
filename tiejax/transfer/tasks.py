"""Tasks: labelled sentences for training, development and testing, from files, TFDS or the default corpus."""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tiejax.system.visible import cut
from tiejax.text.corpus import sentences
from tiejax.text.sources import TFDS
from tiejax.text.standard_library import StandardLibrary
from tiejax.transfer import labelled_data_set
from tiejax.transfer.read import Labelled, TaskError, is_tagged, read_labelled

SPLITS = ("train", "development", "test")
# Ends of the three splits, in tenths of the sentences, when sentences are split by a hash of their text.
ENDS = (6, 8, 10)
LIBRARY_LABELS = 8

Kind = Literal["tagging", "classification"]


@dataclasses.dataclass(frozen=True)
class TaskFiles:
    """The files of a task.

    train: a file, several text files with one class each, or `tfds:NAME`. development, test: likewise; if one is missing, the
    sentences of `train` are split by a hash of their text. text, label: names of the columns or features.
    """

    train: list[str]
    development: list[str] | None = None
    test: list[str] | None = None
    text: str = "text"
    label: str = "label"


class Task(NamedTuple):
    """Labelled sentences by split, with the sorted labels. kind: whether sentences are tagged or classified."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    splits: dict[str, list[Labelled]]


def load_task(name: str, files: TaskFiles | None, examples: int, tfds_dir: str | None = None) -> Task:
    """Load a task with at most `examples` training sentences, chosen deterministically; raises TaskError.

    files: None for the default task: classify sentences of Python's documentation by package or module.
    """
    try:
        kind: Kind = "classification" if files is None or not is_tagged(files.train[0]) else "tagging"
        splits = _default_splits() if files is None else _splits(files, tfds_dir)
    except TaskError as error:
        raise TaskError(f"tasks {name}: {error}") from None
    train = sorted(splits["train"], key=_hash)[:examples]
    if not train:
        raise TaskError(f"tasks {name}: there are no training sentences")
    labels = tuple(sorted({label for sentence in train for label in sentence.labels}))
    for split in SPLITS[1:]:
        for sentence in splits[split]:
            if unseen := [label for label in sentence.labels if label not in labels]:
                raise TaskError(
                    f"tasks {name}: the label {cut(unseen[0])} in {split} occurs in none of the {len(train)} training sentences"
                )
    if len(labels) < 2:
        raise TaskError(f"tasks {name}: training has only the label {cut(labels[0])}; expected at least two labels")
    return Task(name, kind, labels, splits | {"train": train})


def _hash(sentence: Labelled) -> str:
    return hashlib.sha256(sentence.text.encode()).hexdigest()


def _splits(files: TaskFiles, tfds_dir: str | None) -> dict[str, list[Labelled]]:
    given = {split: getattr(files, split) for split in SPLITS}
    own = (
        labelled_data_set.read_splits(files.train[0], files.text, files.label, tfds_dir)
        if files.train[0].startswith(TFDS)
        else {}
    )
    splits = {split: _read(names, split, files, tfds_dir) for split, names in given.items() if names and split != "train"}
    splits = {split: own[split] for split in SPLITS if split in own} | splits
    if all(split in splits for split in SPLITS[1:]):
        return splits | {"train": splits.get("train") or _read(files.train, "train", files, tfds_dir)}
    every = splits.pop("train", []) or _read(files.train, "train", files, tfds_dir)
    found = hashed(every)
    # Sentences for which there are given ones are training sentences too.
    found["train"] = found["train"] + [sentence for split in splits for sentence in found[split]]
    return found | splits


def _read(names: Sequence[str], split: str, files: TaskFiles, tfds_dir: str | None) -> list[Labelled]:
    if not names[0].startswith(TFDS):
        return read_labelled(names, files.text, files.label)
    found = labelled_data_set.read_splits(names[0], files.text, files.label, tfds_dir)
    if split not in found:
        raise TaskError(f"{names[0]}: has no labelled {split} split; it has {', '.join(found)}")
    return found[split]


def hashed(sentences: Sequence[Labelled]) -> dict[str, list[Labelled]]:
    """Split sentences 60/20/20 by a hash of their text, so that repeated sentences are in the same split."""
    splits: dict[str, list[Labelled]] = {split: [] for split in SPLITS}
    for sentence in sentences:
        tenth = int(_hash(sentence)[:8], 16) % ENDS[-1]
        splits[next(split for split, end in zip(SPLITS, ENDS, strict=True) if tenth < end)].append(sentence)
    for split, those in splits.items():
        if not those:
            raise TaskError(f"{len(sentences)} sentences are too few: the {split} split would be empty; use more sentences")
    return splits


def repeated(splits: Mapping[str, Sequence[Labelled]]) -> dict[str, int]:
    """Return for development and test how many sentences have the text of one in a split before them."""
    before, found = {sentence.text for sentence in splits["train"]}, dict[str, int]()
    for split in SPLITS[1:]:
        texts = [sentence.text for sentence in splits[split]]
        found[split] = sum(text in before for text in texts)
        before.update(texts)
    return found


def _default_splits() -> dict[str, list[Labelled]]:
    """Return sentences of the documentation in the standard library, labelled by their package or module."""
    library = StandardLibrary()
    by_part: dict[str, list[str]] = {}
    for file, document in zip(library.files, library.documents(), strict=True):
        by_part.setdefault(_part_of(file), []).extend(sentences(document.text))
    counts = Counter({part: len(those) for part, those in by_part.items()})
    chosen = [part for part, _ in counts.most_common(LIBRARY_LABELS)]
    return hashed([Labelled((sentence,), (part,)) for part in chosen for sentence in by_part[part]])


def _part_of(file: Path) -> str:
    """Return the package of a module, or the module itself; `topics` for the topics of the documentation."""
    if file.parent.name == "pydoc_data":
        return "topics"
    package = re.search(r"python3?\.?\d*[a-z]*/(\w+)/", str(file).lower())
    return package.group(1) if package else file.stem
