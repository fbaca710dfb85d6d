"""Tests of counting the occurrences of whole words."""

import numpy as np
import pytest

from tiejax.lab.studies.embedding_coupling.task_data import occurrences, within_words
from tiejax.text.tokenizer import Vocabulary

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
