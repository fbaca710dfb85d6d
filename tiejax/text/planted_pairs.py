"""Pairs of symbols planted into causal text, for which it is known whether the two are equally likely and have equal effects.

In a causal language model the *conditional* meaning of a symbol is its probability given the past, and its *semantic* meaning
its effect on the future. Four kinds of pairs have all combinations of both (`KINDS`):

    holding      a word and its twin, which replaces it with probability 1/2: equal in both
    constant     a word and its twin, which replaces it with probability .1: equal effects, unequal probabilities, whose ratio
                 a bias of the logits can express
    contextual   a word and its twin, which replaces it with probability .1 or .9, by a bit of the token before: equal effects,
                 unequal probabilities that no bias can express
    reverse      markers A and B before a sentence, each with probability 1/2: equal probabilities, unequal effects, since after
                 B some words are written as other symbols, their *cipher*, up to the end of the sentence

All probabilities are known, so that the least possible loss of the choice between the two symbols of a pair is exact.
Source of the twins with probability 1/2: Bertolotti and Cazzola, ICML 2024; everything else is ours.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from tiejax.text.errors import CorpusError

RANKS, CIPHER_RANKS = (50, 500), (50, 1000)  # of words in pairs, and of those with a cipher, by frequency
PAIRS, CIPHERED = 20, 64  # pairs of each kind, words with a cipher
RARE = 0.1  # the probability of conflict twins; 1 - RARE in the other contexts of contextual ones
MOST_PLANTED = 0.15  # of all tokens
MOST_CONTINUED = 0.2  # of the occurrences of a whole word
TWINS = ("holding", "constant", "contextual")
KINDS = (*TWINS, "reverse")  # pairs of symbols between which the text chooses
CIPHER = "cipher"  # the choice between a word and its cipher, which the marker decides
CHOICES = (*KINDS, CIPHER)


@dataclasses.dataclass(frozen=True)
class Planting:
    """What is planted into a vocabulary of `size` original tokens; new ids follow them.

    The new ids are the twins of `twins` kind by kind, the ciphers of `ciphered`, and the markers A_0, B_0, A_1, B_1, ...

    twins: kind -> original ids that have a twin. ciphered: original ids that have a cipher. markers: number of pairs of
    markers. unrelated: pairs of original ids, for comparison.
    """

    size: int
    twins: dict[str, tuple[int, ...]]
    ciphered: tuple[int, ...]
    markers: int
    unrelated: tuple[tuple[int, int], ...]

    @property
    def replaced(self) -> tuple[int, ...]:
        """The original ids of all twins and ciphers, in the order of their new ids."""
        return (*(word for kind in TWINS for word in self.twins[kind]), *self.ciphered)

    @property
    def first_marker(self) -> int:
        """The id of marker A_0."""
        return self.size + len(self.replaced)

    @property
    def vocabulary(self) -> int:
        """The number of ids, planted ones included."""
        return self.first_marker + 2 * self.markers

    def original(self) -> Int[np.ndarray, "vocabulary"]:
        """Return for each id the original token that it stands for; markers stand for themselves."""
        ids = np.arange(self.vocabulary)
        ids[self.size : self.first_marker] = self.replaced
        return ids

    def other(self) -> Int[np.ndarray, "vocabulary"]:
        """Return for each original id its twin or cipher, and for A_i its B_i; all other ids themselves."""
        ids = np.arange(self.vocabulary)
        ids[list(self.replaced)] = self.size + np.arange(len(self.replaced))
        ids[self.first_marker :: 2] += 1
        return ids

    def kind(self) -> Int[np.ndarray, "vocabulary"]:
        """Return for each original id and marker its number in `CHOICES`; -1 for tokens without an alternative."""
        kinds = np.full(self.vocabulary, -1)
        for number, name in enumerate(TWINS):
            kinds[list(self.twins[name])] = number
        kinds[list(self.ciphered)] = CHOICES.index(CIPHER)
        kinds[self.first_marker :] = CHOICES.index("reverse")
        return kinds

    def pairs(self) -> dict[str, Int[np.ndarray, "pairs 2"]]:
        """Return the pairs of each kind in `KINDS`, and `unrelated` ones."""
        other = self.other()
        markers = self.first_marker + 2 * np.arange(self.markers)
        firsts = {**{kind: np.array(self.twins[kind], int) for kind in TWINS}, "reverse": markers}
        found = {kind: np.stack([first, other[first]], axis=1) for kind, first in firsts.items()}
        return {**found, "unrelated": np.array(self.unrelated, int).reshape(-1, 2)}


def choose(count: Integer[np.ndarray, " size"], is_word: Bool[np.ndarray, " size"], seed: int = 0) -> Planting:
    """Choose words with twins, and unrelated ones, at random among whole words of ranks 50 to 500; ciphers, of 50 to 1,000.

    Every word is used once. Unrelated words are paired by frequency. count: occurrences of each token in the training text.
    is_word: whether a token is a whole word.

    Raises CorpusError, beginning with `planted`, if there are too few words.
    """
    rng, count = np.random.default_rng(seed), count.astype(np.int64)
    in_pairs = _drawn(rng, count, is_word, RANKS, (len(TWINS) + 2) * PAIRS)
    ciphered = _drawn(rng, count, is_word & ~np.isin(np.arange(len(count)), in_pairs), CIPHER_RANKS, CIPHERED)
    twins = [in_pairs[first : first + PAIRS] for first in range(0, len(TWINS) * PAIRS, PAIRS)]
    unrelated = sorted(in_pairs[len(TWINS) * PAIRS :], key=lambda word: (-count[word], word))
    return Planting(
        len(count),
        {kind: tuple(part) for kind, part in zip(TWINS, twins, strict=True)},
        tuple(ciphered),
        PAIRS,
        tuple(zip(unrelated[::2], unrelated[1::2], strict=True)),
    )


def _drawn(rng: np.random.Generator, count: np.ndarray, is_word: np.ndarray, ranks: tuple[int, int], number: int) -> list[int]:
    """Draw words of these frequency ranks."""
    ranked = np.argsort(-count, kind="stable")[ranks[0] - 1 : ranks[1]]
    words = ranked[is_word[ranked] & (count[ranked] > 0)]
    if len(words) < number:
        raise CorpusError(
            f"planted: {len(words)} of the tokens of frequency rank {ranks[0]} to {ranks[1]} are whole words, expected at "
            f"least {number}; use more text or another vocabulary"
        )
    drawn: list[int] = rng.choice(words, number, replace=False).tolist()
    return drawn


def with_markers(
    planting: Planting,
    ids: Integer[np.ndarray, " tokens"],
    ends: Bool[np.ndarray, " size"],
    probability: float,
    rng: np.random.Generator,
) -> Integer[np.ndarray, " more_tokens"]:
    """Insert a random marker before a sentence with this probability; ends: whether an original token ends a sentence."""
    starts = np.flatnonzero(ends[ids[:-1]] & ~ends[ids[1:]]) + 1
    starts = starts[rng.random(len(starts)) < probability]
    markers = planting.first_marker + rng.integers(0, 2 * planting.markers, len(starts))
    return np.insert(ids.astype(np.int32), starts, markers)


def bit(planting: Planting, ids: Int[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
    """Return the bit of tokens that decides how contextual twins after them are spelled: a hash; false for markers."""
    originals = planting.original()[ids].astype(np.uint64)
    return ((originals * 2_654_435_761) % 2**32 >= 2**31) & (ids < planting.first_marker)


def in_cipher(
    planting: Planting, blocks: Int[np.ndarray, "number context"], ends: Bool[np.ndarray, " size"]
) -> Bool[np.ndarray, "number context"]:
    """Return whether each token is after a marker B of its block and in the sentence that begins with it."""
    originals = planting.original()[blocks]
    begins = (originals >= planting.first_marker) & ((originals - planting.first_marker) % 2 == 1)
    plain = (originals >= planting.first_marker) | ends[np.minimum(originals, planting.size - 1)]
    state = np.zeros(blocks.shape, bool)
    for place in range(1, blocks.shape[1]):
        state[:, place] = begins[:, place - 1] | (state[:, place - 1] & ~plain[:, place - 1])
    return state


class Choices(NamedTuple):
    """The choice that is made at each place of planted blocks, `[number, context]`.

    kind: its number in `CHOICES`, -1 where there is none. first, second: the two symbols; 0 where there is no choice.
    probability: of the second, given the past in the block.
    """

    kind: Int[np.ndarray, "number context"]
    first: Int[np.ndarray, "number context"]
    second: Int[np.ndarray, "number context"]
    probability: Float[np.ndarray, "number context"]


def choices(planting: Planting, blocks: Int[np.ndarray, "number context"], ends: Bool[np.ndarray, " size"]) -> Choices:
    """Return the choice at each place of blocks, planted or with markers only: both symbols, and the second's probability."""
    first = planting.original()[blocks]
    first = np.where(first >= planting.first_marker, first - (first - planting.first_marker) % 2, first)
    kind = planting.kind()[first]
    kind[:, 0] = -1  # the token that begins a block is given
    before = np.concatenate([blocks[:, :1], blocks[:, :-1]], axis=1)
    probability = np.zeros(kind.shape)
    for name, values in (
        ("holding", 0.5),
        ("constant", RARE),
        ("contextual", np.where(bit(planting, before), 1 - RARE, RARE)),
        ("reverse", 0.5),
        (CIPHER, in_cipher(planting, blocks, ends)),
    ):
        probability = np.where(kind == CHOICES.index(name), values, probability)
    has = kind >= 0
    second = planting.other()[first]
    return Choices(kind, np.where(has, first, 0), np.where(has, second, 0), probability)


def write(
    planting: Planting,
    blocks: Integer[np.ndarray, "number context"],
    ends: Bool[np.ndarray, " size"],
    rng: np.random.Generator,
) -> Int[np.ndarray, "number context"]:
    """Write blocks of original tokens and markers with twins and ciphers."""
    blocks = blocks.astype(np.int32)
    made = choices(planting, blocks, ends)
    second = (rng.random(blocks.shape) < made.probability) & (made.kind >= 0) & (made.kind != CHOICES.index("reverse"))
    return np.where(second, made.second, blocks).astype(np.int32)


def least_loss(made: Choices) -> dict[str, float]:
    """Return the least possible mean loss of the choices of each kind that occurs, in nats: the entropy of probabilities."""
    p = np.clip(made.probability, 1e-300, 1)
    q = np.clip(1 - made.probability, 1e-300, 1)
    entropies = -(made.probability * np.log(p) + (1 - made.probability) * np.log(q))
    kinds = {name: made.kind == number for number, name in enumerate(CHOICES)}
    return {name: float(entropies[of_kind].mean()) for name, of_kind in kinds.items() if of_kind.any()}


def share(planting: Planting, blocks: Int[np.ndarray, "number context"]) -> float:
    """Return the share of planted symbols among the tokens of blocks."""
    return float((blocks[:, 1:] >= planting.size).mean())


def words_of(
    texts: Sequence[str], ids: Integer[np.ndarray, " tokens"]
) -> tuple[Bool[np.ndarray, " size"], Bool[np.ndarray, " size"]]:
    """Return whether each token is a whole word, and whether it ends a sentence.

    A whole word is a space and at least two letters, and in at most a fifth of its occurrences a letter follows, which would
    make it the beginning of a longer word. A token that ends in a period, an exclamation or a question mark, or contains the
    end of a line, ends a sentence. texts: of each token, with leading spaces. ids: a text, such as the training text.
    """
    begins_with_letter = np.array([text[:1].isalpha() for text in texts])
    counts = np.bincount(ids[:-1], minlength=len(texts))
    continued = np.bincount(ids[:-1], weights=begins_with_letter[ids[1:]], minlength=len(texts))
    looks = [text.startswith(" ") and len(text) > 2 and text[1:].isalpha() for text in texts]
    ends = [text.endswith((".", "!", "?")) or "\n" in text for text in texts]
    return np.array(looks, bool) & (continued <= MOST_CONTINUED * counts), np.array(ends, bool)
