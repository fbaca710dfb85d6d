"""Where labels are asked for among tokens, by hand; a WordPiece of a few tokens, and a unigram vocabulary with its spaces."""

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from tiejax.text.tokenizer import Vocabulary
from tiejax.transfer.encoding import NOTHING, encode, encode_texts
from tiejax.transfer.read import Labelled

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "##ing", "it", ",", "go"]
VOCABULARY = Vocabulary(len(TOKENS), 0, 1, 2, 3, 4, tuple(TOKENS))
CLS, SEP = 2, 3


@pytest.fixture
def word_piece():
    tokenizer = tokenizers.Tokenizer(models.WordPiece({token: index for index, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


SENTENCE = Labelled(("undoing ", "it", ", ", "go"), ("VERB", "PRON", "PUNCT", "VERB"))
IDS = [CLS, 5, 6, 7, 8, 9, 10, SEP]
LABELS = ("PRON", "PUNCT", "VERB")


def test_a_word_is_asked_for_at_its_first_token(word_piece):
    encoded = encode(word_piece, VOCABULARY, [SENTENCE, SENTENCE], LABELS, "tagging", 64)
    assert encoded.ids.tolist() == IDS * 2
    assert encoded.offsets.tolist() == [0, 8, 16]
    assert encoded.label.tolist() == [NOTHING, 2, NOTHING, NOTHING, 0, 1, 2, NOTHING] * 2
    assert encoded.unasked == 0


def test_a_causal_model_is_asked_at_the_last_token(word_piece):
    encoded = encode(word_piece, VOCABULARY, [SENTENCE], LABELS, "tagging", 64, causal=True)
    assert encoded.label.tolist() == [NOTHING, NOTHING, NOTHING, 2, 0, 1, 2, NOTHING]
    one = Labelled((SENTENCE.text,), ("PRON",))
    assert encode(word_piece, VOCABULARY, [one], LABELS, "classification", 64, causal=True).label.tolist() == [NOTHING] * 7 + [
        0
    ]


def test_words_that_are_cut_off_are_counted(word_piece):
    encoded = encode(word_piece, VOCABULARY, [SENTENCE], LABELS, "tagging", 6)
    assert encoded.ids.tolist() == [*IDS[:5], SEP]
    assert encoded.label.tolist() == [NOTHING, 2, NOTHING, NOTHING, 0, NOTHING]
    assert encoded.unasked == 2


def test_a_sentence_is_asked_for_at_its_beginning(word_piece):
    rows = [Labelled(("go, go",), ("yes",)), Labelled(("undo",), ("no",))]
    encoded = encode(word_piece, VOCABULARY, rows, ("no", "yes"), "classification", 64)
    assert encoded.label.tolist() == [1, *[NOTHING] * 4, 0, *[NOTHING] * 3]


def test_a_space_that_is_a_token_belongs_to_the_word_behind_it():
    """As a unigram vocabulary may spell a word: its space, then its letters."""
    letters = [("[UNK]", 0.0), ("\u2581", -1.0), ("a", -2.0), ("b", -2.0), ("\u2581b", -1.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(letters, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens, ends = encode_texts(tokenizer, VOCABULARY, ["a b"], 64)
    assert tokens.ids.tolist() == [CLS, 1, 2, 4, SEP]
    np.testing.assert_array_equal(ends[0][-1], 3)
    encoded = encode(tokenizer, VOCABULARY, [Labelled(("a ", "b"), ("X", "Y"))], ("X", "Y"), "tagging", 64)
    # The label of a word stands at a token of it, and nowhere else.
    assert sorted(encoded.label[encoded.label != NOTHING].tolist()) == [0, 1]
    assert encoded.label[3] == 1
