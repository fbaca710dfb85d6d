"""Tests of the bigram models that pre-trained shapes are compared with."""

import numpy as np
import pytest
from coupling_runs import arguments, write_files

from tiejax.lab.runs import resume
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.encoders import build_ensemble, losses_of_bigrams, validation_stream
from tiejax.lab.studies.embedding_coupling.preparation import prepare
from tiejax.lab.studies.embedding_coupling.settings import STUDY
from tiejax.text import masked_bigrams
from tiejax.text.ngram import masked_losses
from tiejax.text.sequences import Sequences


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("coupling"))


def prepared(folder, *more):
    settings = resume.read(STUDY, arguments(folder, "--out", folder / "run", *more)).settings
    return settings, prepare(settings, Console(quiet=True))


def sentences(rows):
    """Return the sentences of rows (tokens and segments)."""
    found = [tokens[segments == number] for tokens, segments in rows for number in range(1, int(segments.max()) + 1)]
    return Sequences(np.concatenate(found).astype(int), np.cumsum([0, *map(len, found)]))


def rows_of_run(settings, given):
    """Return the rows of the steps, as the ensemble of a shape reads them, and of a validation."""
    text, plan = given.text, given.plan
    source = build_ensemble(settings, settings.every_shape["coupled"], text, plan).source
    window = next(source.open([(settings.seed_list[0], 0)], range(1), 1, 0))
    steps = (leaf[0, : plan.steps].reshape(-1, settings.max_length) for leaf in (window.tokens, window.segments))
    held_out = validation_stream(settings, text).rows(0, settings.validation_batches * plan.rows)
    return zip(*steps, strict=True), zip(*held_out, strict=True)


def test_losses_are_those_of_the_sentences_that_the_steps_read(folder):
    settings, given = prepared(folder)
    found = losses_of_bigrams(settings, given.text, given.plan)
    read, held_out = map(sentences, rows_of_run(settings, given))
    ordinary = ~np.isin(np.arange(300), given.text.vocabulary.special)
    assert found == pytest.approx(masked_losses(read, held_out, 300, ordinary), rel=1e-9)
    longer = losses_of_bigrams(settings, given.text, given.plan._replace(steps=2000))
    assert min(longer.values()) < min(found.values())


def write_chain(file):
    """Write sentences of 100 words, in which one of three words follows each, so that a neighbour says much about a word."""
    rng = np.random.default_rng(0)
    ends = ("ab", "ed", "if", "og", "uk", "al", "em", "in", "or", "us")
    words = [first + end for first in "bdfgklmnpr" for end in ends]
    follow = rng.integers(len(words), size=(len(words), 3))
    sentences = []
    for _ in range(1500):
        chain = [rng.integers(len(words))]
        while len(chain) < 10:
            chain.append(rng.choice(follow[chain[-1]]))
        sentences.append(" ".join(words[word] for word in chain).capitalize() + ".")
    file.write_text(" ".join(sentences))
    return file


def test_sentences_are_whole_in_one_language_of_a_cipher(folder):
    cipher = ("--corpus", f"[{write_chain(folder / 'chain.txt')}]", "--cipher", "true", "--parallel", f"[{folder}/first.txt]")
    settings, given = prepared(folder, *cipher, "--steps", 2000)
    found, text = losses_of_bigrams(settings, given.text, given.plan), given.text
    mixed = masked_bigrams.losses_of_bigrams(text.train, text.validation, text.twins, text.vocabulary.special)
    assert found["both"] < mixed["both"] - 0.3
