"""The tasks of a run as rows of tokens, and the data of its probes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Integer

from tiejax.geometry.word_similarity import WordPairs
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.system.files import read_bytes
from tiejax.text.tokenizer import Vocabulary, encoded
from tiejax.transfer.batches import TaskFeed, TaskRows, all_rows, rows_of_batch
from tiejax.transfer.encoding import NO_LABEL, Encoded, encode, encode_texts
from tiejax.transfer.read import TaskError, read_sentences
from tiejax.transfer.tasks import SPLITS, Kind, Task, TaskFiles, load_task, repeated

ROWS_AT_ONCE = 16
FEWEST_PAIRS = 4  # minimum of parallel sentences: two to fit the difference, two to retrieve
LEAST_OCCURRENCES = 50  # minimum in the training text for the vector of a word to be meaningful


class TaskData(NamedTuple):
    """A task as rows of tokens.

    splits: "development" and "test", [batches, rows, length], and with a cipher also "development_cipher" and "test_cipher".
    facts: numbers of sentences and labels, for results.json.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    feed: TaskFeed
    splits: dict[str, TaskRows]
    facts: dict[str, Any]


class ParallelRows(NamedTuple):
    """Parallel sentences, one per row, [batches, rows, length]; the first `number` rows are used, the others are empty."""

    source: TaskRows
    target: TaskRows
    number: int


class ProbeData(NamedTuple):
    """The data of the probes: parallel sentences and word pairs, each None if not given."""

    parallel: ParallelRows | None
    pairs: WordPairs | None
    facts: dict[str, Any]


class Files(NamedTuple):
    """The content of a run's files before tokenisation.

    parallel: the sentences of each side. pairs: (word, word, judgement).
    """

    tasks: list[Task]
    parallel: list[list[str]]
    pairs: list[tuple[str, str, float]] | None


def read_files(settings: Settings) -> Files:
    """Read the files named by the settings; raises BadInput."""
    try:
        tasks = [_read_task(settings, name, fields) for name, fields in (settings.tasks or {}).items()]
        parallel = _read_parallel(settings.parallel)
        pairs = None if settings.similarity is None else _read_pairs(settings.similarity)
    except TaskError as error:
        raise BadInput(f"--{error}") from None
    return Files(tasks, parallel, pairs)


def _read_task(settings: Settings, name: str, fields: Mapping[str, Any]) -> Task:
    """Read a task from its settings, where each split is a file or a list of files."""
    given: dict[str, Any] = {
        key: [value] if key in SPLITS and isinstance(value, str) else value for key, value in fields.items()
    }
    examples = given.pop("examples", settings.examples)
    return load_task(name, TaskFiles(**given) if given else None, examples, settings.tfds_dir)


def _read_parallel(files: Sequence[str]) -> list[list[str]]:
    sides = []
    for file in files:
        try:
            sides.append(read_sentences(file))
        except TaskError as error:
            raise TaskError(f"parallel {error}") from None
    if sides and len(sides[0]) < FEWEST_PAIRS:
        raise TaskError(f"parallel {files[0]}: expected at least {FEWEST_PAIRS} sentences, got {len(sides[0])}")
    if len(sides) == 2 and len(sides[0]) != len(sides[1]):
        numbers = " and ".join(f"{file} has {len(side)}" for file, side in zip(files, sides, strict=True))
        raise TaskError(f"parallel: expected the same number of sentences in both files, but {numbers}")
    return sides


def _read_pairs(file: str) -> list[tuple[str, str, float]]:
    """Read word pairs from a file with lines of word, word, judgement."""
    try:
        lines = read_bytes(Path(file)).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise TaskError(f"similarity {file}: cannot be read: {reason}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        parts = line.split()
        try:
            rows.append((parts[0], parts[1], float(parts[2])))
            if not math.isfinite(rows[-1][2]):
                raise ValueError
        except (IndexError, ValueError):
            raise TaskError(f"similarity {file}: line {number}: expected two words and a number, got {line[:80]!r}") from None
    return rows


def task_data(settings: Settings, text: Text, task: Task, devices: int, causal: bool) -> TaskData:
    """Encode a task as rows. devices: devices per member. causal: whether encoders attend only to earlier tokens."""
    vocabulary, length = text.vocabulary, settings.max_length
    data = {
        split: encode(text.tokenizer, vocabulary, sentences, task.labels, task.kind, length, causal)
        for split, sentences in task.splits.items()
    }
    train = data["train"]
    rows = devices * rows_of_batch(train.lengths, -(-settings.fine_tuning_batch // devices), length)
    splits = {split: all_rows(data[split], length, vocabulary.pad, ROWS_AT_ONCE) for split in SPLITS[1:]}
    if settings.cipher:
        splits |= {f"{split}_cipher": in_cipher(text, rows_of_split) for split, rows_of_split in splits.items()}
    count = np.bincount(data["test"].label[data["test"].label != NO_LABEL])
    facts = {
        "kind": task.kind,
        "labels": list(task.labels),
        "sentences": {split: len(sentences) for split, sentences in task.splits.items()},
        "asked": {split: int((encoded.label != NO_LABEL).sum()) for split, encoded in data.items()},
        "cut_off": {split: encoded.cut_off for split, encoded in data.items()},
        "repeated": repeated(task.splits),
        # The accuracy on test of always predicting the most frequent label.
        "most_frequent_label": float(count.max() / count.sum()),
    }
    feed = TaskFeed(train, length, vocabulary.pad, settings.fine_tuning_batch, rows)
    return TaskData(task.name, task.kind, task.labels, feed, splits, facts)


def in_cipher(text: Text, rows: TaskRows) -> TaskRows:
    """Return rows with every ordinary token written as its twin."""
    return rows._replace(tokens=np.asarray(text.twins.tables()[0][rows.tokens]))


def probe_data(settings: Settings, text: Text, files: Files) -> ProbeData:
    """Encode the data of the probes; raises BadInput."""
    facts: dict[str, Any] = {}
    parallel = pairs = None
    if files.parallel:
        rows = [_one_a_row(settings, text, side) for side in files.parallel]
        target = in_cipher(text, rows[0]) if settings.cipher else rows[1]
        parallel = ParallelRows(rows[0], target, len(files.parallel[0]))
        facts["parallel_sentences"] = parallel.number
    if files.pairs is not None:
        pairs = _word_pairs(settings, text, files.pairs)
        facts["word_pairs"] = len(pairs.judgement)
    return ProbeData(parallel, pairs, facts)


def _one_a_row(settings: Settings, text: Text, sentences: list[str]) -> TaskRows:
    tokens, _ = encode_texts(text.tokenizer, text.vocabulary, sentences, settings.max_length)
    data = Encoded(tokens.ids, tokens.offsets, np.full(len(tokens.ids), NO_LABEL, np.int32), 0)
    return all_rows(data, settings.max_length, text.vocabulary.pad, ROWS_AT_ONCE, packed=False)


def _word_pairs(settings: Settings, text: Text, rows: Sequence[tuple[str, str, float]]) -> WordPairs:
    """Return the pairs in which both words occur often enough in the training text."""
    words = sorted({word for first, second, _ in rows for word in (first, second)})
    # In text, a byte-level token that begins a word has the space before it.
    spelled = [f" {word}" for word in words] if "ByteLevel" in repr(text.tokenizer.pre_tokenizer) else words
    pieces = {word: encoding.ids for word, encoding in zip(words, encoded(text.tokenizer, spelled), strict=True)}
    # The training text of a checkpoint is unknown: use all words that its tokenizer can encode.
    unknown_text = not len(text.train.ids)
    within = within_words(text.vocabulary)
    often = {
        word
        for word, ids in pieces.items()
        if ids and (unknown_text or occurrences(text.train.ids, ids, within) >= LEAST_OCCURRENCES)
    }
    usable = [row for row in rows if row[0] in often and row[1] in often]
    if len(usable) < 3:
        raise BadInput(
            f"--similarity {settings.similarity}: expected at least 3 pairs with words that occur {LEAST_OCCURRENCES} times in "
            f"the training text, got {len(usable)} of {len(rows)}"
        )
    return WordPairs(
        [pieces[first] for first, *_ in usable],
        [pieces[second] for _, second, _ in usable],
        np.array([row[2] for row in usable]),
    )


def within_words(vocabulary: Vocabulary) -> Bool[np.ndarray, " vocabulary"]:
    """Return for every token whether it continues a word."""

    def continues(token: str) -> bool:
        begins = token.startswith(vocabulary.space) if vocabulary.space else not token.startswith("##")
        return not begins and token.removeprefix("##")[:1].isalnum()

    return np.array([continues(token) for token in vocabulary.tokens])


def occurrences(ids: Integer[np.ndarray, " tokens"], pieces: list[int], within: Bool[np.ndarray, " vocabulary"]) -> int:
    """Count the occurrences of a sequence of tokens that are not followed by a continuation of the word."""
    positions = len(ids) - len(pieces)  # each sentence ends with [SEP], so a word is never the end of `ids`
    found = np.ones(max(positions, 0), bool)
    for offset, piece in enumerate(pieces):
        found &= ids[offset : positions + offset] == piece
    return int((found & ~within[ids[len(pieces) :]]).sum()) if pieces and positions > 0 else 0
