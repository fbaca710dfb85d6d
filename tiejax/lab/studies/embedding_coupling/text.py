"""The text of a run: sentences of one corpus or of several languages, their vocabulary, and the cipher."""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from tiejax.checkpoints.hub.checkpoint import CONFIG
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.tokens import find_tokens
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.text import preparing
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.pretraining.step_plan import StepPlan, plan_steps
from tiejax.text import sentences
from tiejax.text import tokenizer as tokenization
from tiejax.text.buckets import entropy
from tiejax.text.errors import CorpusError
from tiejax.text.languages import Languages
from tiejax.text.sequences import Sequences
from tiejax.text.stored import digest
from tiejax.text.tokenizer import Vocabulary
from tiejax.text.twins import Twins, cipher


class Text(NamedTuple):
    """The text of pre-training. twins: with a cipher, one for every ordinary token, otherwise none."""

    tokenizer: tokenizers.Tokenizer
    vocabulary: Vocabulary
    twins: Twins
    train: Sequences
    validation: Sequences
    languages: Languages | None
    facts: dict[str, Any]
    tokenizer_file: bytes


def prepare_text(settings: Settings, console: Console, resume: bool) -> Text:
    """Prepare the text of a run; raises BadInput. resume: use the vocabulary with which the run was started."""
    with preparing(settings, console, resume) as asked:
        asked |= {"max_length": settings.max_length, "min_length": settings.min_length, "kind": "unigram"}
        sentences_of = functools.partial(sentences.prepare, **asked)
        if settings.languages is None:
            whole = sentences_of()
            splits = [whole.split(name) for name in ("train", "validation")]
            languages, facts, fingerprint = None, whole.facts, whole.fingerprint
        else:
            # Train one vocabulary on all languages, then prepare each: its splits do not depend on the others.
            every = [name for corpus in settings.languages.values() for name in corpus]
            whole = sentences_of(corpus=every)
            file = str(whole.tokenizer_file)
            each = {name: sentences_of(corpus=corpus, tokenizer=file) for name, corpus in settings.languages.items()}
            splits = [joined([prepared.split(name) for prepared in each.values()]) for name in ("train", "validation")]
            numbers = [len(prepared.split("train").offsets) - 1 for prepared in each.values()]
            of_sentence = np.repeat(np.arange(len(each)), numbers)
            languages = Languages(tuple(each), of_sentence, settings.language_exponent)
            facts = whole.facts | {"languages": {name: prepared.facts["splits"] for name, prepared in each.items()}}
            fingerprint = digest([prepared.fingerprint for prepared in each.values()])
    vocabulary = whole.vocabulary
    twins = cipher(vocabulary.tokens, vocabulary.special) if settings.cipher else Twins(vocabulary.size, (), (), ())
    facts = facts | {"fingerprint": fingerprint}
    model = whole.tokenizer_file.read_bytes()
    return Text(whole.tokenizer, vocabulary, twins, splits[0], splits[1], languages, facts, model)


def text_of_checkpoint(settings: Settings, folder: Path, vocabulary_size: int) -> Text:
    """Return the vocabulary of a checkpoint as an empty text; raises BadInput. vocabulary_size: rows of its input table."""
    try:
        found = find_tokens(folder, settings.tokenizer)
        if found is None or not found.whole:
            raise BadInput(f"--tokenizer: required, since {folder} has no tokenizer that can encode text")
        vocabulary = sentence_vocabulary(found.tokenizer)
    except (CorpusError, CheckpointError) as error:
        raise BadInput(f"--start: {error}") from None
    if vocabulary.size > vocabulary_size:
        raise BadInput(
            f"--tokenizer {found.file}: expected at most {vocabulary_size:,} tokens, the size of the checkpoint in {folder}, "
            f"got {vocabulary.size:,}"
        )
    model = found.tokenizer.to_str().encode()
    nothing = Sequences(np.zeros(0, np.int32), np.zeros(1, np.int64))
    fingerprint = hashlib.sha256(model + (folder / CONFIG).read_bytes()).hexdigest()
    facts = {"checkpoint": str(folder), "vocabulary": vocabulary.size, "splits": {}, "fingerprint": fingerprint}
    return Text(found.tokenizer, vocabulary, Twins(vocabulary.size, (), (), ()), nothing, nothing, None, facts, model)


def sentence_vocabulary(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer; without BERT's special tokens, the end-of-text token replaces them."""
    try:
        return tokenization.vocabulary(tokenizer)
    except CorpusError:
        end = tokenization.end_of_text(tokenizer)
        size = tokenization.number_of_ids(tokenizer)
        return Vocabulary(size, end, end, end, end, end, ("",) * size)


def joined(parts: Sequence[Sequences]) -> Sequences:
    """Concatenate lists of sequences."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Sequences(np.concatenate([part.ids for part in parts]), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def plan(settings: Settings, text: Text, mesh: int) -> StepPlan:
    """Plan the steps of pre-training with `mesh` devices per member."""
    lengths = np.diff(text.train.offsets)
    if text.languages is not None:
        lengths = lengths[text.languages.sample(np.arange(len(lengths)), np.random.default_rng(0))]
    return plan_steps(lengths, settings.batch_rows, settings.max_length, True, mesh, settings.steps)


def unigram_entropy(text: Text) -> float:
    """Return the entropy of the ordinary training tokens in nats; a cipher, which every token shows, does not increase it."""
    count = np.bincount(text.train.ids, minlength=text.vocabulary.size)
    count[list(text.vocabulary.special)] = 0
    return entropy(count)
