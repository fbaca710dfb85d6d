"""Batches of a task: every sentence once per epoch, whole, with its labels; deterministic for any number of parts."""

import itertools

import numpy as np
import pytest

from tiejax.text.packing import pack
from tiejax.transfer.batches import TaskFeed, TaskRows, all_rows, rows_of_batch
from tiejax.transfer.encoding import NO_LABEL, Encoded

LENGTH, PADDING, SENTENCES = 12, 0, 23


@pytest.fixture
def data():
    """Sentence i has 3 to 9 tokens, all of them i + 1, and the label i % 3 at its second token."""
    lengths = np.random.default_rng(0).integers(3, 10, SENTENCES)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    label = np.full(offsets[-1], NO_LABEL)
    label[offsets[:-1] + 1] = np.arange(SENTENCES) % 3
    return Encoded(np.repeat(np.arange(SENTENCES) + 1, lengths), offsets, label, 0)


def sentences_in(rows: TaskRows, data: Encoded) -> list[int]:
    """The sentences in rows; asserts that each is whole, contiguous, and has its label."""
    found = []
    for tokens, segments, label in zip(*(np.asarray(leaf).reshape(-1, LENGTH) for leaf in rows), strict=True):
        for number in range(1, segments.max(initial=0) + 1):
            here = np.flatnonzero(segments == number)
            sentence = int(tokens[here[0]]) - 1
            assert (tokens[here] == sentence + 1).all()
            assert len(here) == data.lengths[sentence]
            assert (np.diff(here) == 1).all()
            assert label[here].tolist() == [NO_LABEL, sentence % 3, *[NO_LABEL] * (len(here) - 2)]
            found.append(sentence)
        assert (tokens[segments == 0] == PADDING).all()
        assert (label[segments == 0] == NO_LABEL).all()
    return found


def feed_of(data, batch_size=5, window=4):
    return TaskFeed(data, LENGTH, PADDING, batch_size, rows_of_batch(data.lengths, batch_size, LENGTH), window)


def test_epochs_visit_every_sentence_once_in_different_orders(data):
    feed = feed_of(data)
    assert feed.steps_of_epoch == 5
    orders = []
    for epoch in range(2):
        visited = [sentences_in(feed.step((3, 1), 5 * epoch + step, range(1), 1), data) for step in range(5)]
        assert [len(batch) for batch in visited] == [5, 5, 5, 5, 3]
        orders.append([sorted(batch) for batch in visited])
        assert sorted(itertools.chain(*visited)) == list(range(SENTENCES))
    assert orders[0] != orders[1]


def test_order_depends_on_both_seeds(data):
    feed = feed_of(data)
    first = [sentences_in(feed.step(name, 0, range(1), 1), data) for name in ((3, 1), (3, 1), (3, 2), (4, 1))]
    assert sorted(first[0]) == sorted(first[1])
    assert sorted(first[0]) != sorted(first[2])
    assert sorted(first[0]) != sorted(first[3])


def test_parts_together_are_the_whole_batch(data):
    feed = feed_of(data)
    whole = sorted(sentences_in(feed.step((3, 1), 2, range(1), 1), data))
    parts = [feed.step((3, 1), 2, range(part, part + 1), 2) for part in range(2)]
    assert sorted(itertools.chain(*(sentences_in(part, data) for part in parts))) == whole
    together = feed.step((3, 1), 2, range(2), 2)
    np.testing.assert_array_equal(together.tokens, np.concatenate([part.tokens for part in parts]))


def test_parts_leave_out_no_more_sentences_than_the_whole_batch():
    """Each of four parts that packed its own sentences would lose some of them."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, 400)
    label = np.zeros(lengths.sum(), int)
    long = Encoded(label + 1, np.concatenate([[0], np.cumsum(lengths)]), label, 0)
    feed = TaskFeed(long, 64, 0, 32, rows_of_batch(lengths, 32, 64))
    for step in range(120):
        whole, *parts = [feed.step((3, 1), step, own, number) for own, number in ((range(1), 1), (range(4), 4))]
        assert (parts[0].segments > 0).sum() == (whole.segments > 0).sum()


def test_feed_from_a_later_window(data):
    feed = feed_of(data, window=4)
    names = [(3, 1), (4, 1), (4, 1)]
    second = next(feed.open(names, range(1), 1, 1))
    assert second.tokens.shape[:2] == (3, 4)
    for place, name in enumerate(names):
        for step in range(4):
            expected = feed.step(name, 4 + step, range(1), 1)
            for leaf, wanted in zip(second, expected, strict=True):
                np.testing.assert_array_equal(leaf[place, step], wanted)


def test_all_rows(data):
    rows = all_rows(data, LENGTH, PADDING, rows_at_once=4)
    assert rows.tokens.shape[1:] == (4, LENGTH)
    assert sorted(sentences_in(rows, data)) == list(range(SENTENCES))


def test_rows_of_a_batch():
    """More draws than the thousand behind this number: none needs more rows."""
    lengths = np.random.default_rng(1).integers(3, 64, 500)
    rows = rows_of_batch(lengths, 32, 64)
    rng = np.random.default_rng(2)
    needed = [len(pack(lengths, rng.choice(500, 32, replace=False), 64, rng).starts) - 1 for _ in range(1500)]
    assert max(needed) <= rows < 32
    assert rows_of_batch(lengths, 3, 64) == 3
