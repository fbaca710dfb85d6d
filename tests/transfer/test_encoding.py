"""Positions of labels among tokens, by hand, for a small WordPiece vocabulary and a unigram vocabulary with spaces."""

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from tiejax.text.tokenizer import Vocabulary, byte_level
from tiejax.transfer.encoding import NO_LABEL, encode, encode_texts
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


def test_tags_at_first_tokens(word_piece):
    encoded = encode(word_piece, VOCABULARY, [SENTENCE, SENTENCE], LABELS, "tagging", 64)
    assert encoded.ids.tolist() == IDS * 2
    assert encoded.offsets.tolist() == [0, 8, 16]
    assert encoded.label.tolist() == [NO_LABEL, 2, NO_LABEL, NO_LABEL, 0, 1, 2, NO_LABEL] * 2
    assert encoded.cut_off == 0


def test_causal_models_predict_at_last_tokens(word_piece):
    encoded = encode(word_piece, VOCABULARY, [SENTENCE], LABELS, "tagging", 64, causal=True)
    assert encoded.label.tolist() == [NO_LABEL, NO_LABEL, NO_LABEL, 2, 0, 1, 2, NO_LABEL]
    one = Labelled((SENTENCE.text,), ("PRON",))
    assert encode(word_piece, VOCABULARY, [one], LABELS, "classification", 64, causal=True).label.tolist() == [NO_LABEL] * 7 + [
        0
    ]


def test_labels_of_words_that_are_cut_off_are_counted(word_piece):
    encoded = encode(word_piece, VOCABULARY, [SENTENCE], LABELS, "tagging", 6)
    assert encoded.ids.tolist() == [*IDS[:5], SEP]
    assert encoded.label.tolist() == [NO_LABEL, 2, NO_LABEL, NO_LABEL, 0, NO_LABEL]
    assert encoded.cut_off == 2


def test_classes_at_the_first_token(word_piece):
    rows = [Labelled(("go, go",), ("yes",)), Labelled(("undo",), ("no",))]
    encoded = encode(word_piece, VOCABULARY, rows, ("no", "yes"), "classification", 64)
    assert encoded.label.tolist() == [1, *[NO_LABEL] * 4, 0, *[NO_LABEL] * 3]


def test_token_of_a_space_belongs_to_the_next_word():
    """A unigram vocabulary can spell a word as a space, then its letters."""
    letters = [("[UNK]", 0.0), ("\u2581", -1.0), ("a", -2.0), ("b", -2.0), ("\u2581b", -1.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(letters, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens, spans = encode_texts(tokenizer, VOCABULARY, ["a b"], 64)
    assert tokens.ids.tolist() == [CLS, 1, 2, 4, SEP]
    np.testing.assert_array_equal(spans[0][-1], [1, 3])
    encoded = encode(tokenizer, VOCABULARY, [Labelled(("a ", "b"), ("X", "Y"))], ("X", "Y"), "tagging", 64)
    # The label of a word is at one of its tokens, and nowhere else.
    assert sorted(encoded.label[encoded.label != NO_LABEL].tolist()) == [0, 1]
    assert encoded.label[3] == 1


def test_the_last_token_of_a_word_that_ends_in_a_split_character():
    """Bytes of one character end at the same place in the text."""
    characters = byte_level(
        models.BPE({letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    _, spans = encode_texts(characters, VOCABULARY, ["a \u65e5 b"], 64)
    ends = spans[0][:, 1]
    assert np.bincount(ends)[3] == 3  # three bytes
    sentence = Labelled(("a ", "\u65e5 ", "b"), ("X", "Y", "X"))
    encoded = encode(characters, VOCABULARY, [sentence], ("X", "Y"), "tagging", 64, causal=True)
    places = np.flatnonzero(encoded.label == 1)
    assert places.tolist() == [1 + int(np.flatnonzero(ends == 3)[-1])]


@pytest.mark.parametrize(
    ("words", "tags", "labels"),
    [  # the normaliser removes a word, the end of a word, or both
        (("it ", "\u200b ", "undoing ", "go"), "XYZZ", [0, NO_LABEL, NO_LABEL, 2, 2]),
        (("\u200b ", "it\u200b ", "undoing"), "YXZ", [0, NO_LABEL, NO_LABEL, 2]),
    ],
)
def test_a_word_without_a_token_labels_no_other_word_in_causal_models(word_piece, words, tags, labels):
    sentence = Labelled(words, tuple(tags))
    encoded = encode(word_piece, VOCABULARY, [sentence], ("X", "Y", "Z"), "tagging", 64, causal=True)
    assert encoded.label.tolist() == [NO_LABEL, *labels, NO_LABEL]
    assert encoded.cut_off == 1
