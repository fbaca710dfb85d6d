"""Tests of the tokens of words, and of counting the occurrences of whole words."""

import numpy as np
import pytest
from tokenizers import models, pre_tokenizers

from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import Files, occurrences, probe_data, within_words
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.text.sequences import Sequences
from tiejax.text.tokenizer import Vocabulary, byte_level
from tiejax.text.twins import Twins

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNIGRAM = Vocabulary(9, 0, 1, 2, 3, 4, (*SPECIAL, "\u2581sun", "flower", ".", "s"), "\u2581")
SUN, FLOWER, STOP, S, SEP = 5, 6, 7, 8, 3


def test_tokens_within_words():
    assert np.flatnonzero(within_words(UNIGRAM)).tolist() == [FLOWER, S]
    pieces = Vocabulary(8, 0, 1, 2, 3, 4, (*SPECIAL, "sun", "##s", "."))
    assert np.flatnonzero(within_words(pieces)).tolist() == [6]


@pytest.mark.parametrize(
    ("pieces", "expected"), [([SUN], 2), ([SUN, FLOWER], 1), ([SUN, FLOWER, S], 1), ([FLOWER, SUN], 0), ([], 0)]
)
def test_occurrences_of_whole_words(pieces, expected):
    """The text is "sun. sunflower. sun sunflowers"."""
    ids = np.array([SUN, STOP, SUN, FLOWER, STOP, SUN, SUN, FLOWER, S, SEP], np.uint16)
    assert occurrences(ids, pieces, within_words(UNIGRAM)) == expected


def test_words_of_byte_level_tokenizers_are_those_of_text():
    """With the space before them, as in "the sun": of the tokens, only that one stands for the word in text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("s", "u"), ("su", "n"), ("\u0120", "sun"), ("\u0120", "s")]
    ids = {token: number for number, token in enumerate([*letters, *map("".join, merges), "<|endoftext|>"])}
    tokenizer = byte_level(models.BPE(ids, merges))
    end, nothing = ids["<|endoftext|>"], Sequences(np.zeros(0, np.int32), np.zeros(1, np.int64))
    vocabulary = Vocabulary(len(ids), end, end, end, end, end, ("",) * len(ids))
    text = Text(tokenizer, vocabulary, Twins(len(ids), (), (), ()), nothing, nothing, None, {}, b"")
    pairs = probe_data(Settings(), text, Files([], [], [("sun", "s", 1.0), ("s", "sun", 2.0), ("sun", "sun", 3.0)])).pairs
    in_text = tokenizer.encode("a sun s").ids[1:]
    assert in_text == [ids["\u0120sun"], ids["\u0120s"]]
    assert pairs.first == [[in_text[0]], [in_text[1]], [in_text[0]]]
    assert pairs.second == [[in_text[1]], [in_text[0]], [in_text[0]]]
