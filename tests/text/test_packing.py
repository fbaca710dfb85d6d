"""Packing: every sentence once and whole, in rows of equal length; any window, on any number of processes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiejax.text.packing import Stream, TextFeed, pack, row_averages, rows_for

PAD = 99


def corpus(lengths):
    """Sentences whose tokens encode sentence and position: sentence s is s * 200 + (0, 1, ...)."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([number * 200 + np.arange(length) for number, length in enumerate(lengths)]).astype(np.int32)
    return ids, offsets


def natural_lengths(number, seed=0):
    """Lengths as in novels: median 22 tokens, few above 100."""
    return np.clip(np.random.default_rng(seed).lognormal(3.1, 0.7, number).astype(int) + 2, 3, 128)


def sentences_of(tokens, segments):
    """The tokens of every segment, row by row."""
    found = []
    for row, numbers in zip(tokens, segments, strict=True):
        own = [row[numbers == number].tolist() for number in range(1, numbers.max() + 1)]
        # Segments are contiguous, with padding at the end.
        assert [token for one in own for token in one] == row[numbers > 0].tolist()
        assert (numbers[sum(map(len, own)) :] == 0).all()
        assert (row[numbers == 0] == PAD).all()
        found += own
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_every_sentence_is_in_one_row(lengths, seed):
    rng = np.random.default_rng(seed)
    packing = pack(np.array(lengths), rng.permutation(len(lengths)), 16, rng)
    assert sorted(packing.order.tolist()) == list(range(len(lengths)))
    assert (packing.starts[0], packing.starts[-1]) == (0, len(lengths))
    sizes = [sum(lengths[s] for s in packing.order[low:high]) for low, high in itertools.pairwise(packing.starts)]
    assert all(0 < size <= 16 for size in sizes)


def test_sentence_longer_than_a_row():
    with pytest.raises(ValueError, match="17 tokens"):
        pack(np.array([3, 17]), np.arange(2), 16, np.random.default_rng(0))


def test_share_of_padding():
    """Below 5 % of an epoch and of (nearly) every step."""
    lengths = natural_lengths(20_000)
    stream = Stream(*corpus(lengths), 128, PAD, seed=3)
    packing = stream.packing(0)
    number = len(packing.starts) - 1
    assert 1 - lengths.sum() / (number * 128) < 0.05
    _, segments = stream.rows(0, number // 30 * 30)
    step_segments = (segments == 0).reshape(-1, 30 * 128).mean(1)
    assert np.quantile(step_segments, 0.95) < 0.05
    # The rows of a pool are not sorted by the lengths of their sentences.
    counts = np.diff(packing.starts)[:900]
    assert abs(np.corrcoef(counts, np.arange(900))[0, 1]) < 0.15


def test_every_epoch_contains_every_sentence():
    lengths = natural_lengths(300)
    ids, offsets = corpus(lengths)
    stream = Stream(ids, offsets, 128, PAD, seed=5)
    expected = {tuple(ids[low:high]) for low, high in itertools.pairwise(offsets)}
    seen = []
    begin = 0
    for epoch in range(3):
        rows = len(stream.packing(epoch).starts) - 1
        found = sentences_of(*stream.rows(begin, rows))
        assert len(found) == 300
        assert {tuple(one) for one in found} == expected
        seen.append([one[0] for one in found])
        begin += rows
    assert seen[0] != seen[1] != seen[2]
    other = Stream(ids, offsets, 128, PAD, seed=6)
    assert [one[0] for one in sentences_of(*other.rows(0, len(other.packing(0).starts) - 1))] != seen[0]


def test_rows_do_not_depend_on_the_rows_read_before():
    """Also across the end of an epoch, and out of order."""
    data = corpus(natural_lengths(120))
    rows = len(Stream(*data, 128, PAD, seed=1).packing(0).starts) - 1
    whole = Stream(*data, 128, PAD, seed=1).rows(0, 4 * rows)
    for first, number in ((0, 1), (rows - 2, 5), (2 * rows + 1, rows), (3, 2 * rows)):
        part = Stream(*data, 128, PAD, seed=1).rows(first, number)
        for one, other in zip(part, whole, strict=True):
            np.testing.assert_array_equal(one, other[first : first + number])


def test_feed_of_parts_and_from_a_later_window():
    data = corpus(natural_lengths(200))
    feed = TextFeed(*data, 128, PAD, rows=6, window=4)
    whole = [next(windows) for windows in [feed.open([(3, 0), (8, 0)], range(1), 1, 0)] for _ in range(5)]
    for place, seed in enumerate((3, 8)):
        tokens, segments = Stream(*data, 128, PAD, seed).rows(0, 5 * 4 * 6)
        np.testing.assert_array_equal(np.concatenate([window.tokens[place] for window in whole]).reshape(-1, 128), tokens)
        np.testing.assert_array_equal(np.concatenate([window.segments[place] for window in whole]).reshape(-1, 128), segments)
    for parts in (2, 4):  # 6 rows in four parts: two more rows, which are empty
        several = [feed.open([(8, 0)], range(part, part + 1), parts, 2) for part in range(parts)]
        for window in whole[2:]:
            found = [np.concatenate(leaves, axis=2) for leaves in zip(*(next(part) for part in several), strict=True)]
            for leaf, joined, empty in zip(window, found, (PAD, 0, None), strict=True):
                np.testing.assert_array_equal(joined[:, :, :6], leaf[1:])
                assert empty is None or (joined[:, :, 6:] == empty).all()
    joined = next(
        feed.open([(8, 0)], range(2, 4), 4, 0)
    ).tokens  # a process with the last two of four devices: 2 rows, 2 empty ones
    np.testing.assert_array_equal(joined[:, :, :2], whole[0].tokens[1:, :, 4:])
    assert (joined[:, :, 2:] == PAD).all()
    np.testing.assert_array_equal(whole[0].row, np.broadcast_to(np.arange(6), (2, 4, 6)))


def test_epochs_apart_begin_with_a_new_step():
    """Seven sentences, three per step: steps of 3, 3 and 1, then the next epoch in another order."""
    lengths = np.array([3, 5, 4, 8, 6, 7, 2])
    feed = TextFeed(*corpus(lengths), 8, PAD, rows=3, packed=False, window=2, epochs_apart=True)
    windows = feed.open([(1, 0)], range(1), 1, 0)
    read = [next(windows) for _ in range(3)]
    tokens, segments = (np.concatenate([getattr(window, name)[0] for window in read]) for name in ("tokens", "segments"))
    number = [int((step_segments.max(axis=1) > 0).sum()) for step_segments in segments]
    assert number == [3, 3, 1, 3, 3, 1]
    orders = []
    for epoch in (slice(0, 3), slice(3, 6)):
        found = sentences_of_rows(tokens[epoch], segments[epoch])
        assert [len(sentence) for sentence in found] == [lengths[sentence[0] // 200] for sentence in found]
        orders.append([sentence[0] // 200 for sentence in found])
        assert sorted(orders[-1]) == list(range(7))
    assert orders[0] != orders[1]
    assert (tokens[2, 1:] == PAD).all()
    # Otherwise the third step is filled from the second epoch.
    joined = TextFeed(*corpus(lengths), 8, PAD, rows=3, packed=False, window=6).open([(1, 0)], range(1), 1, 0)
    assert (next(joined).segments.max(axis=-1) == 1).all()


def sentences_of_rows(tokens, segments):
    """The sentences of rows with one sentence each."""
    rows = zip(tokens.reshape(-1, tokens.shape[-1]), segments.reshape(-1, segments.shape[-1]), strict=True)
    return [row[own == 1].tolist() for row, own in rows if own.any()]


def test_state_of_the_grain_iterator():
    feed = TextFeed(*corpus(natural_lengths(200)), 128, PAD, rows=2, window=3)
    windows = feed.open([(0, 0)], range(1), 1, 0)
    for _ in range(2):
        next(windows)
    state = windows.get_state()
    then = next(windows)
    again = feed.open([(0, 0)], range(1), 1, 0)
    again.set_state(state)
    np.testing.assert_array_equal(next(again).tokens, then.tokens)


def test_number_of_rows():
    lengths = np.array([10, 20, 30])  # 20 on average: 128 sentences are 2,560 tokens, 20 rows of 128
    assert rows_for(lengths, 128, 128) == 20
    assert rows_for(lengths, 1, 128) == 1


def test_row_of_more_than_255_segments():
    tokens, segments = Stream(*corpus(np.full(700, 2)), 1400, PAD, seed=0).rows(0, 1)
    assert segments.max() == 700
    assert len(sentences_of(tokens, segments)) == 700


def test_no_sentences():
    with pytest.raises(ValueError, match=r"^expected at least one sentence, got none$"):
        Stream(np.zeros(0, np.int32), np.zeros(1, np.int64), 16, PAD, 0)


def test_rows_of_one_sentence_each():
    ids, offsets = corpus(natural_lengths(50))
    tokens, segments = Stream(ids, offsets, 128, PAD, seed=2, packed=False).rows(0, 50)
    assert set(segments.ravel()) == {0, 1}
    found = [row[own == 1].tolist() for row, own in zip(tokens, segments, strict=True)]
    assert sorted(found) == sorted(ids[low:high].tolist() for low, high in itertools.pairwise(offsets))


def test_averages_over_rows():
    lengths = np.array([10, 6, 6, 4])  # rows of 12: 10 and 6 + 6 and 4, since neither 4 nor 6 fits next to 10
    assert row_averages(lengths, 12, packed=True) == pytest.approx((26 / 3, 6.0, 8.0))  # maskable: 8, 8, 2
    assert row_averages(lengths, 12, packed=False) == pytest.approx((6.5, 4.5, 4.75))  # maskable: 8, 4, 4, 2
