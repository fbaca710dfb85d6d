"""What a masked and a causal model are asked of a text."""

import numpy as np
import pytest

from tiejax.hub.errors import CheckpointError
from tiejax.hub.tokens import find_tokens
from tiejax.surgery.text_states import causal_task, masked_task


@pytest.fixture
def tokens(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    return find_tokens(tmp_path)


def test_a_causal_model_predicts_all_but_the_first_token_of_each_row():
    task = causal_task(iter(range(100)), 10, 20)
    np.testing.assert_array_equal(task.inputs, np.arange(30).reshape(3, 10))
    for row in range(3):
        for place, target in zip(task.places[row], task.targets[row], strict=True):
            assert target == task.inputs[row, place + 1]
    assert task.targets.size == 27


def test_a_masked_model_predicts_what_its_input_masks(tokens):
    ids = np.resize([5, 6, 6], 200)
    task = masked_task(iter(ids), tokens, 42, 10, seed=0)
    assert task.inputs.shape == (2, 42)
    assert task.places.shape == (2, 6)  # 15 % of 40
    whole = task.inputs.copy()
    np.put_along_axis(whole, task.places, task.targets, axis=1)
    np.testing.assert_array_equal(whole[:, 1:-1], ids[:80].reshape(2, 40))
    assert set(whole[:, 0]) == {2}
    assert set(whole[:, -1]) == {3}
    assert (np.take_along_axis(task.inputs, task.places, axis=1) == 4).all()
    assert (task.inputs == 4).sum() == 12
    assert all(len(set(row)) == 6 for row in task.places)
    assert not np.array_equal(task.places, masked_task(iter(ids), tokens, 42, 10, seed=1).places)


def test_a_text_that_ends_gives_fewer_rows_and_one_row_at_least():
    assert causal_task(iter(range(25)), 10, 900).inputs.shape == (2, 10)
    with pytest.raises(CheckpointError, match="text: holds 9 tokens; at least 10 are needed"):
        causal_task(iter(range(9)), 10, 5)
