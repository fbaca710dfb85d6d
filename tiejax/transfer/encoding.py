"""Labelled sentences encoded as tokens, with the index of a label at each token that predicts one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Int, Int64

from tiejax.text.sequences import Sequences
from tiejax.text.tokenizer import Vocabulary, encoded
from tiejax.transfer.read import Labelled
from tiejax.transfer.tasks import Kind

NO_LABEL = -1  # marks a token that predicts no label


class Encoded(NamedTuple):
    """Concatenated tokens of labelled sentences. label: the index of the label to predict at each token, or `NO_LABEL`.

    The tag of a word is predicted at its first token, the class of a sentence at [CLS]; in causal models, at the last token of
    the word and at [SEP]. If one token spells two words, it predicts the tag of the second. cut_off: number of labels that
    were dropped with words beyond the maximum length, or without a token in causal models.
    """

    ids: Int[np.ndarray, " tokens"]
    offsets: Int64[np.ndarray, " sentences+1"]
    label: Int[np.ndarray, " tokens"]
    cut_off: int

    @property
    def lengths(self) -> Int64[np.ndarray, " sentences"]:
        """The number of tokens of each sentence."""
        return np.diff(self.offsets)


def encode_texts(
    tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary, texts: Sequence[str], max_length: int
) -> tuple[Sequences, list[Int64[np.ndarray, "tokens 2"]]]:
    """Encode sentences with [CLS] and [SEP], cut at `max_length` tokens.

    Returns the tokens, and for each sentence where in the text each token between [CLS] and [SEP] begins and ends.
    """
    encodings = encoded(tokenizer, list(texts), offsets=True)
    cut = [encoding.ids[: max_length - 2] for encoding in encodings]
    ids = [np.array([vocabulary.cls, *tokens, vocabulary.sep], np.int32) for tokens in cut]
    spans = [np.array(encoding.offsets[: max_length - 2], np.int64).reshape(-1, 2) for encoding in encodings]
    offsets = np.concatenate([[0], np.cumsum([len(sentence) for sentence in ids])]).astype(np.int64)
    return Sequences(np.concatenate(ids), offsets), spans


def encode(
    tokenizer: tokenizers.Tokenizer,
    vocabulary: Vocabulary,
    sentences: Sequence[Labelled],
    labels: Sequence[str],
    kind: Kind,
    max_length: int,
    causal: bool = False,
) -> Encoded:
    """Encode labelled sentences; every label must be one of `labels`.

    causal: predict the tag of a word at its last token and the class of a sentence at [SEP], for causal models.
    """
    tokens, spans = encode_texts(tokenizer, vocabulary, [sentence.text for sentence in sentences], max_length)
    number = {label: index for index, label in enumerate(labels)}
    asked, cut_off = np.full(len(tokens.ids), NO_LABEL, np.int32), 0
    for start, sentence, own in zip(tokens.offsets.tolist(), sentences, spans, strict=False):
        if kind == "classification":
            asked[start + 1 + len(own) if causal else start] = number[sentence.labels[0]]
            continue
        for place, label in zip(_places(own, sentence.words, causal), sentence.labels, strict=True):
            if place == len(own):
                cut_off += 1
            else:
                asked[start + 1 + place] = number[label]
    return Encoded(tokens.ids, tokens.offsets, asked, cut_off)


def _places(spans: Int64[np.ndarray, "tokens 2"], words: Sequence[str], last: bool) -> list[int]:
    """Return the index of the first (or `last`) token of each word. spans: where in the text each token begins and ends.

    The first token of a word is the first that ends after the word begins. Its last is the first that reaches its end, or the
    last of several that end there, as those of a character that is split into bytes do. A word without a token, such as a
    zero-width space, has the first token of the next word, which predicts the label of that; or, with `last`, the index behind
    all tokens.
    """
    begun, ends = spans.T
    begins = np.cumsum([0, *map(len, words[:-1])])
    stops = begins + np.array([len(word.rstrip()) for word in words])
    if not last:
        return [int(place) for place in np.searchsorted(ends, begins, side="right")]
    reaching, beyond = (np.searchsorted(ends, stops, side=side) for side in ("left", "right"))
    places = np.maximum(reaching, beyond - 1)
    # If a token of the next word is the first to reach its end, the one before is the last of the word, or it has none.
    next_word = np.append(begun, 0)[places] >= stops
    places = places - next_word
    return [int(place) for place in np.where(next_word & (np.append(ends, 0)[places] <= begins), len(ends), places)]
