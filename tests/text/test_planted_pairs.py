"""Planted symbols have the probabilities that are claimed of them, given what comes before, and nothing else is changed."""

import itertools
import math

import numpy as np
import pytest

from tiejax.text import planted_pairs
from tiejax.text.blocks import blocks
from tiejax.text.planted_pairs import CHOICES, Planting

END = 0  # the token that ends a sentence
TEXTS = [" .", *(" " + "".join(letters) for letters in itertools.islice(itertools.product("abcdefghij", repeat=3), 999))]
ENDS = np.arange(len(TEXTS)) == END


@pytest.fixture(scope="module")
def ids():
    """A text whose tokens are independent, with frequencies 1 / (rank + 20), and one in twelve that ends a sentence."""
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(20, 20 + len(TEXTS) - 1)
    words = rng.choice(np.arange(1, len(TEXTS)), 1_000_000, p=frequency / frequency.sum())
    return np.where(rng.random(len(words)) < 1 / 12, END, words).astype(np.uint16)


@pytest.fixture(scope="module")
def planting(ids):
    is_word, ends = planted_pairs.words_of(TEXTS, ids)
    np.testing.assert_array_equal(ends, ENDS)
    return planted_pairs.choose(np.bincount(ids, minlength=len(TEXTS)), is_word)


@pytest.fixture(scope="module")
def marked(ids, planting):
    return planted_pairs.with_markers(planting, ids, ENDS, 0.8, np.random.default_rng(1))


@pytest.fixture(scope="module")
def in_blocks(marked):
    return blocks(marked, 100, END).astype(np.int32)


@pytest.fixture(scope="module")
def written(planting, in_blocks):
    return planted_pairs.write(planting, in_blocks, ENDS, np.random.default_rng(2))


def test_unsigned_counts_choose_the_same_words(ids, planting):
    count = np.bincount(ids, minlength=len(TEXTS)).astype(np.uint32)
    assert planted_pairs.choose(count, planted_pairs.words_of(TEXTS, ids)[0]) == planting


def deviation(successes, number, probability):
    """Return by how many standard errors a share differs from a probability."""
    return abs(successes / number - probability) / math.sqrt(probability * (1 - probability) / number)


def test_every_word_is_used_once_and_is_of_its_rank(ids, planting):
    used = [*planting.replaced, *itertools.chain(*planting.unrelated)]
    assert len(set(used)) == len(used) == 60 + 64 + 40
    count = np.bincount(ids, minlength=len(TEXTS))
    rank = 1 + np.argsort(np.argsort(-count, kind="stable"))
    of_pairs = [*itertools.chain(*planting.twins.values()), *itertools.chain(*planting.unrelated)]
    assert rank[of_pairs].min() >= 50
    assert rank[of_pairs].max() <= 500
    assert 50 <= rank[list(planting.ciphered)].min() <= rank[list(planting.ciphered)].max() <= 1000
    assert planting.vocabulary == len(TEXTS) + 60 + 64 + 40
    assert {kind: pairs.shape for kind, pairs in planting.pairs().items()} == dict.fromkeys(
        ["holding", "constant", "contextual", "reverse", "unrelated"], (20, 2)
    )
    assert sorted(np.concatenate([*planting.pairs().values()]).ravel()[1:160:2]) == sorted(
        [*range(1000, 1060), *range(1125, 1164, 2)]
    )


def test_without_planted_symbols_the_text_is_as_before(ids, planting, marked, in_blocks, written):
    np.testing.assert_array_equal(marked[marked < planting.first_marker], ids)
    np.testing.assert_array_equal(planting.original()[written], in_blocks)


def test_markers_begin_sentences(ids, planting, marked):
    places = np.flatnonzero(marked >= planting.first_marker)
    assert (marked[places - 1] == END).all()
    assert (marked[places + 1] != END).all()
    sentences = ((ids[:-1] == END) & (ids[1:] != END)).sum()
    assert deviation(len(places), sentences, 0.8) < 4


def test_both_markers_are_equally_likely_whatever_the_past(planting, marked):
    """Given each of the 50 commonest tokens two places before, since the one before always ends a sentence."""
    places = np.flatnonzero(marked >= planting.first_marker)
    before = marked[places - 2]
    second = (marked[places] - planting.first_marker) % 2 == 1
    commonest = np.argsort(-np.bincount(before))[:50]
    numbers = [(second[before == past].sum(), (before == past).sum()) for past in commonest]
    assert min(number for _, number in numbers) > 100
    assert max(deviation(of_second, number, 0.5) for of_second, number in numbers) < 4
    by_pair = np.bincount(marked[places] - planting.first_marker, minlength=40)
    assert max(deviation(number, len(places), 1 / 40) for number in by_pair) < 4


def test_twins_have_their_probabilities_given_the_token_before(planting, in_blocks, written):
    before = np.roll(in_blocks, 1, axis=1)
    bit = planted_pairs.bit(planting, before)
    inside = np.arange(100) > 0
    for kind, probabilities in {"holding": (0.5, 0.5), "constant": (0.1, 0.1), "contextual": (0.1, 0.9)}.items():
        of_kind = np.isin(in_blocks, planting.twins[kind]) & inside
        for value, probability in enumerate(probabilities):
            here = of_kind & (bit == value)
            assert here.sum() > 1000
            assert deviation((written[here] >= planting.size).sum(), here.sum(), probability) < 4


def test_about_half_of_all_tokens_have_each_bit(planting):
    bits = planted_pairs.bit(planting, np.arange(planting.size))
    assert deviation(bits.sum(), planting.size, 0.5) < 4
    assert not planted_pairs.bit(planting, np.arange(planting.first_marker, planting.vocabulary)).any()


def test_a_cipher_lasts_from_marker_b_to_the_end_of_the_sentence():
    """Words 1 and 2 have a cipher, 5 and 6, and there is one pair of markers, A = 7 and B = 8; 0 ends a sentence."""
    empty = dict.fromkeys(("holding", "constant", "contextual"), ())
    planting = Planting(5, empty, (1, 2), 1, ())
    ends = np.arange(5) == 0
    before = np.array([[0, 1, 0, 8, 1, 3, 2, 0, 1, 7, 2, 0, 8, 1], [4, 2, 8, 7, 1, 0, 8, 8, 2, 0, 2, 3, 4, 1]])
    after = np.array([[0, 1, 0, 8, 5, 3, 6, 0, 1, 7, 2, 0, 8, 5], [4, 2, 8, 7, 1, 0, 8, 8, 6, 0, 2, 3, 4, 1]])
    np.testing.assert_array_equal(planted_pairs.write(planting, before, ends, np.random.default_rng(0)), after)
    made = planted_pairs.choices(planting, after, ends)
    np.testing.assert_array_equal(made.kind[0] >= 0, np.isin(before[0], [1, 2, 7, 8]))
    assert made.probability[0].tolist() == [0, 0, 0, 0.5, 1, 0, 1, 0, 0, 0.5, 0, 0, 0.5, 1]
    assert made.first[0].tolist() == [0, 1, 0, 7, 1, 0, 2, 0, 1, 7, 2, 0, 7, 1]
    assert made.second[0].tolist() == [0, 5, 0, 8, 5, 0, 6, 0, 5, 8, 6, 0, 8, 5]


def test_choices_are_the_same_after_they_are_made(planting, in_blocks, written):
    before, after = (planted_pairs.choices(planting, text, ENDS) for text in (in_blocks, written))
    for first, second in zip(before, after, strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_least_loss_is_the_entropy_of_each_choice(planting, written):
    of_rare = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    expected = {"holding": math.log(2), "constant": of_rare, "contextual": of_rare, "reverse": math.log(2), "cipher": 0.0}
    assert list(expected) == list(CHOICES)
    assert planted_pairs.least_loss(planted_pairs.choices(planting, written, ENDS)) == pytest.approx(expected)


def test_the_share_counts_planted_symbols(planting, written):
    assert planted_pairs.share(planting, written) == (written[:, 1:] >= 1000).sum() / written[:, 1:].size
    assert 0.05 < planted_pairs.share(planting, written) < 0.15


def test_whole_words_are_seldom_continued():
    """`the` is followed by `n` in one of five occurrences, `un` in one of four."""
    texts = [" the", " un", "n", ".", " a", " x1", "\n", "?!", "word"]
    ids = np.array([0, 2, 0, 3, 0, 3, 0, 3, 0, 3, 1, 2, 1, 3, 1, 3, 1, 3, 4])
    is_word, ends = planted_pairs.words_of(texts, ids)
    assert np.flatnonzero(is_word).tolist() == [0]
    assert np.flatnonzero(ends).tolist() == [3, 6, 7]


def test_too_few_words_are_an_error():
    count = np.arange(400, 0, -1)
    with pytest.raises(ValueError, match=r"planted: 99 of the tokens of frequency rank 50 to 500 .* at least 100"):
        planted_pairs.choose(count, np.arange(400) >= 301)
