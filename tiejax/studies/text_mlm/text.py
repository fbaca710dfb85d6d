"""The text of a run, and what follows from it: twins, pairs of words, frequency buckets, the plan of the steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.runs.console import Console
from tiejax.runs.resume import own_tokenizer
from tiejax.settings.command_line import BadInput
from tiejax.studies.text_mlm.settings import Settings
from tiejax.text import masking as text_batches
from tiejax.text import packing as text_rows
from tiejax.text import twins as planting
from tiejax.text.corpus import CorpusError
from tiejax.text.sentences import Prepared, Sentences
from tiejax.text.sentences import prepare as prepare_text
from tiejax.text.tokenizer import Vocabulary

UNRELATED_PAIRS = 100  # as published


class Text(NamedTuple):
    """What is trained on: sentences, their vocabulary, and its twins."""

    vocabulary: "Vocabulary"
    twins: planting.Twins
    train: "Sentences"
    validation: "Sentences"
    facts: dict[str, Any]
    tokenizer: bytes


class StepPlan(NamedTuple):
    """What the text decides of a run. rows: of a step. slots: of a device's part of them. mesh: devices a member."""

    steps: int
    half_period: int
    rows: int
    slots: int
    mesh: int
    padding: float  # its share of the rows
    tokens: float  # real tokens of one step


def prepare(settings: Settings, console: Console, resume: bool = False) -> tuple[Text, StepPlan]:
    """Return the text of a configuration and the plan that follows from it; raises BadInput.

    resume: with the vocabulary that the run was started with.
    """

    try:
        with console.preparing() as progress:
            assert settings.data_dir is not None
            prepared = prepare_text(
                settings.corpus,
                own_tokenizer(settings, resume),
                settings.vocab_size,
                settings.max_length,
                settings.min_length,
                Path(settings.data_dir).expanduser(),
                text_feature=settings.text_feature,
                tfds_dir=settings.tfds_dir,
                say=console.say,
                progress=progress,
            )
            text = read(settings, prepared, console.warn)
    except CorpusError as error:
        raise BadInput(str(error)) from None
    return text, plan(settings, text, jax.device_count(), jax.local_device_count())


def read(settings: Settings, prepared: "Prepared", warn: Callable[[str], None] = lambda line: None) -> Text:
    """Return the sentences of a prepared text, with the twins of a configuration; raises BadInput."""
    vocabulary = prepared.vocabulary
    unknown = vocabulary.unknown if settings.missing_words == "as_unknown" else None
    try:
        twins, missing = planting.plant(settings.sets, vocabulary.size, vocabulary.id_of, unknown)
    except ValueError as error:
        raise BadInput(f"--twins: {error}") from None
    if missing:
        become = "a twin of the unknown token" if unknown is not None else "left out"
        warn(f"not in the vocabulary, so {become}: {', '.join(missing)}")
    train, validation = prepared.split("train"), prepared.split("validation")
    for name, sentences in (("training", train), ("validation", validation)):
        if len(sentences.offsets) < 2:
            raise BadInput(f"--corpus: {prepared.facts['corpus']} leaves no sentence for {name}; give more text")
    facts = prepared.facts | {"fingerprint": prepared.fingerprint}
    return Text(vocabulary, twins, train, validation, facts, prepared.tokenizer_file.read_bytes())


def plan(settings: Settings, text: Text, devices: int, local: int) -> StepPlan:
    """Return steps, rows and devices a member for so many devices, so many of them to a process; raises BadInput."""

    # A process holds whole members, or an equal part of one.
    fitting = [size for size in range(1, devices + 1) if devices % size == 0 and (local % size == 0 or size % local == 0)]
    mesh = settings.mesh
    if mesh is None:
        mesh = min(size for size in fitting if len(settings.seed_list) % (devices // size) == 0)
    elif mesh not in fitting:
        raise BadInput(f"--mesh: {mesh} devices a member do not fit {devices} devices; give {', '.join(map(str, fitting))}")
    lengths, packed = np.diff(text.train.offsets), settings.packing == "packed"
    rows = text_rows.rows_for(lengths, settings.batch_size, settings.max_length) if packed else settings.batch_size
    if rows * settings.max_length > 2**24:
        raise BadInput(f"--batch_size: {settings.batch_size} sentences make {rows * settings.max_length:,} places, too many")
    row = text_rows.filling(lengths, settings.max_length, packed)
    visited = settings.steps
    if visited is None:
        assert settings.epochs is not None
        visited = max(1, round(settings.epochs * float(lengths.sum()) / (rows * row.tokens)))
    own = -(-rows // mesh)
    slots = text_batches.slots_for(own * row.maskable, own * row.variance, own * settings.max_length)
    padding = 1 - row.tokens / settings.max_length
    return StepPlan(visited, settings.half_period or visited, rows, slots, mesh, padding, rows * row.tokens)


def pairs_of(text: Text) -> tuple[list[tuple[int, int]], dict[str, np.ndarray]]:
    """Return the pairs of ids whose distances are recorded, and what metrics.npz says of them.

    Every word and its twin, set by set, then as many unrelated pairs of words as the paper takes.
    """
    twins, unknown = text.twins, text.vocabulary.unknown
    # The unknown token is never a target, its twin is: as targets go, the twin is all there is.
    target = [1.0 if own == unknown else p for own, p in zip(twins.ids, twins.probability, strict=True)]
    probabilities = sorted(set(target), key=lambda p: (p != 0.5, -p))
    found: list[tuple[int, int]] = []
    words: list[str] = []
    of_set: list[int] = []
    for number, probability in enumerate(probabilities):
        for place, own in enumerate(target):
            if own == probability:
                found.append((twins.ids[place], twins.size + place))
                words.append(twins.words[place])
                of_set.append(number)
    known = [place for place, own in enumerate(twins.ids) if own != unknown]
    for one, other in planting.unrelated(len(known), UNRELATED_PAIRS):
        first, second = known[one], known[other]
        found.append((twins.ids[first], twins.ids[second]))
        words.append(f"{twins.words[first]}/{twins.words[second]}")
        of_set.append(len(probabilities))
    names = ["twin of the unknown token" if p == 1 else f"twins {f'{p:g}'.removeprefix('0')}" for p in probabilities]
    return found, {
        "pair_words": np.array(words),
        "pair_set": np.array(of_set, dtype=int),
        "set_names": np.array([*names, "unrelated"]),
        "set_probability": np.array([*probabilities, np.nan]),
    }


def buckets_of(text: Text) -> tuple[list[str], np.ndarray]:
    """Return the token-frequency buckets of the training split: their names, and the bucket of every id."""

    return text_batches.buckets(np.bincount(text.train.ids, minlength=text.vocabulary.size), text.twins)
