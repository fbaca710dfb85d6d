"""Blocks of a stream and random batches of them."""

import numpy as np
import pytest

from tiejax.text import blocks
from tiejax.text.errors import CorpusError


def test_blocks_of_a_stream():
    ids = np.arange(10, 21, dtype=np.uint16)
    expected = [[7, 10, 11, 12], [7, 13, 14, 15], [7, 16, 17, 18]]
    found = blocks.blocks(ids, 4, 7)
    assert found.tolist() == expected
    assert found.dtype == np.uint16
    assert blocks.blocks(ids[:9], 4, 7).tolist() == expected
    assert blocks.blocks(ids[:8], 4, 7).tolist() == expected[:2]
    assert blocks.blocks(ids, 2, 7)[:, 1].tolist() == ids.tolist()
    # A begin token that the stream's integers cannot hold.
    assert blocks.blocks(ids, 4, 70_000)[:, 0].tolist() == [70_000] * 3


@pytest.mark.parametrize("context", [1, 0, -3])
def test_context_too_small(context):
    with pytest.raises(CorpusError, match=f"^context {context}: expected at least 2"):
        blocks.blocks(np.arange(5), context, 0)


def test_stream_shorter_than_a_block():
    assert len(blocks.blocks(np.arange(5), 6, 0)) == 1
    with pytest.raises(
        CorpusError,
        match=r"^context 7: a stream of the corpus has 5 tokens, a block needs 6; use more text or a smaller context$",
    ):
        blocks.blocks(np.arange(5), 7, 0)


def test_batches_depend_on_seed_and_group_alone_and_are_without_replacement():
    stream = blocks.blocks(np.arange(600), 4, 0)  # 200 blocks; block i is 0, 3 i, 3 i + 1, 3 i + 2

    def drawn(seed: int, group: int, batch_size: int = 8, per_group: int = 5) -> list[int]:
        found = stream[blocks.drawn(len(stream), batch_size, seed, group, per_group)]
        assert found.shape == (per_group, batch_size, 4)
        number = found[..., 1] // 3
        assert np.array_equal(found, np.stack([0 * number, 3 * number, 3 * number + 1, 3 * number + 2], -1))
        return number.ravel().tolist()

    groups = {(seed, group): drawn(seed, group) for group in (2, 0, 1) for seed in (7, 8)}
    assert all(len(set(numbers)) == 40 for numbers in groups.values())
    assert len({tuple(numbers) for numbers in groups.values()}) == 6
    # The same in another order of calls.
    assert {key: drawn(*key) for key in sorted(groups)} == groups
    # All blocks once each; then more than there are.
    assert sorted(drawn(0, 0, 20, 10)) == list(range(200))
    assert len(set(drawn(0, 0, 20, 11))) < 200
    # Every block is equally likely: in 400 groups of 40 blocks each occurs 80 times, with standard deviation 8.
    counts = np.bincount(np.concatenate([drawn(3, group) for group in range(400)]), minlength=200)
    assert abs(counts.std() - np.sqrt(400 * 0.2 * 0.8)) < 1.5
    assert counts.min() > 80 - 5 * 8
    assert counts.max() < 80 + 5 * 8


def test_one_group_of_millions_of_blocks():
    many = np.broadcast_to(np.arange(5_000_000, dtype=np.int32)[:, None], (5_000_000, 1024))
    found = many[blocks.drawn(len(many), 20, 1, 1, 4)]
    assert found.nbytes == 80 * 1024 * 4
    assert len(set(found[..., 0].ravel().tolist())) == 80


def test_draws_of_one_group_are_independent():
    """Each draw is without replacement; two draws of 15 of 30 blocks share 15 x 15 / 30 = 7.5 on average."""
    stream = blocks.blocks(np.arange(90), 4, 0)

    def drawn(group: int, draw: int) -> set[int]:
        return set(stream[blocks.drawn(len(stream), 5, 0, group, 3, draw=draw)][..., 1].ravel().tolist())

    shared = [len(drawn(group, 0) & drawn(group, 1)) for group in range(300)]
    assert all(len(drawn(group, 1)) == 15 for group in range(10))
    # The variance of that number is 15 (15 / 30) (15 / 30) (15 / 29) = 1.94.
    assert abs(np.mean(shared) - 7.5) < 4 * np.sqrt(1.94 / 300)
    np.testing.assert_array_equal(blocks.drawn(30, 5, 0, 3, 2, draw=1), blocks.drawn(30, 5, 0, 3, 2, draw=1))
