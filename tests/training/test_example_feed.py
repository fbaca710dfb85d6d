"""Every seed sees each block once an epoch, in its own order, wherever training continues."""

import itertools

import jax
import numpy as np
import pytest

from tiejax.training.placement import DATA, SEEDS, Layout
from tiejax.training.sources import ExampleFeed, FeedWindows, FunctionFeed

BLOCKS = np.arange(10)[:, None] * np.ones(3, int)


def stream(feed, seeds, number, first=0, own=range(1), parts=1):
    windows = itertools.islice(feed.open([(seed, 0) for seed in seeds], own, parts, first), number)
    return np.concatenate(list(windows), axis=1)[..., 0]


def test_every_epoch_has_every_block_once():
    read = stream(ExampleFeed(BLOCKS, rows=2, window=5), [7], 3)
    for epoch in range(3):
        assert sorted(read[0, 5 * epoch : 5 * epoch + 5].ravel()) == list(range(10))
    assert (read[0, :5] != read[0, 5:10]).any()


def test_an_epoch_may_end_within_a_step():
    read = stream(ExampleFeed(BLOCKS, rows=4, window=5), [7], 1).ravel()
    assert sorted(read[:10]) == sorted(read[10:]) == list(range(10))


def test_seeds_do_not_depend_on_the_others():
    feed = ExampleFeed(BLOCKS, rows=2, window=4)
    np.testing.assert_array_equal(stream(feed, [3, 7], 2)[1], stream(feed, [7], 2)[0])
    assert (stream(feed, [3, 7], 2)[0] != stream(feed, [3, 7], 2)[1]).any()


def test_training_that_continues_at_a_step_reads_on_there():
    whole = stream(ExampleFeed(BLOCKS, rows=3, window=4), [7], 4)
    np.testing.assert_array_equal(stream(ExampleFeed(BLOCKS, rows=3, first=6, window=4), [7], 2)[0], whole[0, 6:14])
    np.testing.assert_array_equal(stream(ExampleFeed(BLOCKS, rows=3, window=4), [7], 2, first=2)[0], whole[0, 8:])


def test_parts_split_the_rows():
    whole = stream(ExampleFeed(BLOCKS, rows=4, window=2), [7], 1)
    parts = [stream(ExampleFeed(BLOCKS, rows=4, window=2), [7], 1, own=range(part, part + 1), parts=2) for part in range(2)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), whole)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 7, 10, 20])
def test_a_function_is_asked_only_for_steps_before_the_last(window):
    """The training visits step 10 only to record its end."""
    asked = []

    def make(seed, step):
        asked.append(step)
        return BLOCKS[:5] + step

    windows = FunctionFeed(make, window=window, last=10).open([(7, 0)], range(1), 1, 0)
    steps = np.concatenate([next(windows)[0] for _ in range(-(-11 // window))])
    assert set(asked) == set(range(10))
    np.testing.assert_array_equal(steps[:11], [BLOCKS[:5] + min(step, 9) for step in range(11)])


@pytest.mark.parametrize(
    "feed",
    [ExampleFeed(BLOCKS, rows=5), FunctionFeed(lambda seed, step: {"a": BLOCKS, "b": BLOCKS[:5]})],
    ids=["arrays", "function"],
)
def test_rows_that_devices_cannot_share_are_refused(feed):
    with pytest.raises(ValueError, match="rows: 2 devices cannot share 5 rows of a step evenly"):
        stream(feed, [7], 1, own=range(2), parts=2)


def test_examples_that_a_seed_sees():
    """Those of the batches of its first steps, each once; all of them from the end of the first epoch on."""
    feed = ExampleFeed(np.arange(23), 4, window=1)
    windows = feed.open([(5, 0)], range(1), 1, 0)
    read = [next(windows)[0, 0] for _ in range(9)]
    for steps in (1, 3, 5, 6, 9):
        np.testing.assert_array_equal(feed.seen(5, steps), np.unique(np.concatenate(read[:steps])))
    assert len(feed.seen(5, 6)) == 23
    np.testing.assert_array_equal(ExampleFeed(np.arange(23), 4, first=3).seen(5, 3), np.unique(np.concatenate(read[3:6])))


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        (
            ExampleFeed({"x": np.arange(8), "y": np.arange(10)}, rows=4),
            r"examples: expected arrays of one length, at least 1, got \[8, 10\]",
        ),
        (ExampleFeed(BLOCKS[:0], rows=2), r"of one length, at least 1, got \[0\]"),
        (ExampleFeed(BLOCKS, rows=0), "rows and window: expected at least 1, got 0 and 64"),
        (ExampleFeed(BLOCKS, rows=2, window=0), "rows and window: expected at least 1, got 2 and 0"),
        (FunctionFeed(lambda seed, step: np.float32(1)), "make: expected arrays whose first axis is that of the rows"),
        (FunctionFeed(lambda seed, step: BLOCKS[: 4 - step], window=2), "the batch of seed 7 and step 1 is .*; make all alike"),
    ],
)
def test_feeds_that_cannot_be_read(feed, words):
    with pytest.raises(ValueError, match=words):
        next(feed.open([(7, 0)], range(1), 1, 0))


def test_a_function_may_use_its_buffer_again():
    buffer = np.zeros((2, 1))

    def make(seed, step):
        buffer[:] = 10 * seed + step
        return buffer

    assert stream(FunctionFeed(make, window=3), [7, 8], 2)[..., 0].tolist() == [[*range(70, 76)], [*range(80, 86)]]


class OneBuffer:
    """A feed that fills the same memory for every window: aligned, so that jax on a CPU could use it without a copy."""

    window = 2

    def open(self, seeds, own, parts, first):
        memory = np.empty(1024 + 16, np.float32)
        start = -memory.ctypes.data % 64 // 4
        buffer = memory[start : start + 1024].reshape(1, 2, 512)
        while True:
            buffer[0] = 2 * first + np.arange(2)[:, None]
            yield buffer
            first += 1


def test_a_feed_may_use_its_buffer_again():
    """A window is read ahead while the devices train on the one before it."""
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 1), (SEEDS, DATA), axis_types=kinds, devices=jax.devices()[:1])
    windows = FeedWindows(OneBuffer(), Layout(mesh, 1), [(7, 0)])
    before = windows.at(0)
    windows.read_ahead(2)
    np.testing.assert_array_equal(before[0, :, 0], [0, 1])
    np.testing.assert_array_equal(windows.at(2)[0, :, 0], [2, 3])
