"""Labelled sentences as sequences of tokens, with the number of a label wherever one is asked for."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Int, Int64

from tiejax.text.array_records import Sequences
from tiejax.text.tokenizer import Vocabulary
from tiejax.transfer.read import Labelled
from tiejax.transfer.tasks import Kind

NOTHING = -1  # asked at a token


class Encoded(NamedTuple):
    """Sentences as tokens, one after the other. label: the number of each token's label, `NOTHING` where none is asked for.

    A tagged word is asked for at its first token, a sentence at [CLS] (causal models: at the last token, and [SEP]); of two
    words that one token spells, the second is.
    unasked: labels of words that were cut off.
    """

    ids: Int[np.ndarray, "tokens"]
    offsets: Int64[np.ndarray, "sentences+1"]
    label: Int[np.ndarray, "tokens"]
    unasked: int

    @property
    def lengths(self) -> Int64[np.ndarray, "sentences"]:
        """The tokens of each sentence."""
        return np.diff(self.offsets)


def encode_texts(
    tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary, texts: Sequence[str], max_length: int
) -> tuple[Sequences, list[Int64[np.ndarray, "tokens"]]]:
    """Return sentences as tokens, [CLS] and [SEP] included, and for each token between these two where its characters end.

    Sentences are cut at `max_length` tokens.
    """
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    kept = [encoding.ids[: max_length - 2] for encoding in encodings]
    ids = [np.array([vocabulary.cls, *tokens, vocabulary.sep], np.int32) for tokens in kept]
    ends = [np.array([end for _, end in encoding.offsets[: max_length - 2]], np.int64) for encoding in encodings]
    offsets = np.concatenate([[0], np.cumsum([len(sentence) for sentence in ids])]).astype(np.int64)
    return Sequences(np.concatenate(ids), offsets), ends


def encode(
    tokenizer: tokenizers.Tokenizer,
    vocabulary: Vocabulary,
    sentences: Sequence[Labelled],
    labels: Sequence[str],
    kind: Kind,
    max_length: int,
    causal: bool = False,
) -> Encoded:
    """Return labelled sentences as tokens and label numbers; every label must be one of `labels`.

    causal: for a model that sees what came before, so that a word is asked for at its last token, a sentence at [SEP].
    """
    tokens, ends = encode_texts(tokenizer, vocabulary, [sentence.text for sentence in sentences], max_length)
    number = {label: index for index, label in enumerate(labels)}
    asked, unasked = np.full(len(tokens.ids), NOTHING, np.int32), 0
    for start, sentence, of_tokens in zip(tokens.offsets.tolist(), sentences, ends, strict=False):
        if kind == "classification":
            asked[start + 1 + len(of_tokens) if causal else start] = number[sentence.labels[0]]
            continue
        for place, label in zip(_places(of_tokens, sentence.words, causal), sentence.labels, strict=True):
            if place == len(of_tokens):
                unasked += 1
            else:
                asked[start + 1 + place] = number[label]
    return Encoded(tokens.ids, tokens.offsets, asked, unasked)


def _places(ends: Int64[np.ndarray, "tokens"], words: Sequence[str], last: bool) -> list[int]:
    """Return the number of each word's first token, or of its last; where each token ends is given.

    The first is the first that reaches beyond where the word begins, the last the first that reaches its end.
    """
    begins = np.cumsum([0, *map(len, words[:-1])])
    letters = np.array([len(word.rstrip()) for word in words])
    found = np.searchsorted(ends, begins + letters, side="left") if last else np.searchsorted(ends, begins, side="right")
    return [int(place) for place in found]
