"""Hidden states of a masked and a causal model on a text."""

import numpy as np
import pytest
from hub_checkpoints import checkpoint
from hub_weights import CONFIGS, POSITIONS, tensors

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.tokens import find_tokens
from tiejax.checkpoints.rewrite.text_states import causal_task, masked_task
from tiejax.checkpoints.rewrite.tie import tie


@pytest.fixture
def tokens(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    return find_tokens(tmp_path)


def test_causal_task_predicts_all_but_the_first_token():
    task = causal_task(iter(range(100)), 10, 20)
    np.testing.assert_array_equal(task.inputs, np.arange(30).reshape(3, 10))
    for row in range(3):
        for place, target in zip(task.places[row], task.targets[row], strict=True):
            assert target == task.inputs[row, place + 1]
    assert task.targets.size == 27


def test_masked_task_predicts_the_masked_tokens(tokens):
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


def test_short_text_gives_fewer_rows():
    assert causal_task(iter(range(25)), 10, 900).inputs.shape == (2, 10)
    with pytest.raises(CheckpointError, match="text: has 9 tokens; one row takes at least 10; use more text"):
        causal_task(iter(range(9)), 10, 5)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]


def runnable(tmp_path, kind, positions=POSITIONS, words=WORDS, **changed):
    """Write an untied checkpoint that tiejax can run, a vocabulary of letters, and a text of letters."""
    config = CONFIGS[kind] | {"tie_word_embeddings": False}
    config["n_positions" if kind == "gpt2" else "max_position_embeddings"] = positions
    written = tensors(kind, tied=False) | changed
    places = "transformer.wpe.weight" if kind == "gpt2" else "bert.embeddings.position_embeddings.weight"
    written[places] = written[places][:positions]
    folder = checkpoint(tmp_path / "c", written, config)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (tmp_path / "text.txt").write_text(" ".join("abcdef" * 50))
    return folder


def tie_on_text(folder, tmp_path, keep="input"):
    return tie(folder, tmp_path / "out", keep, text=str(tmp_path / "text.txt"), force=True)


@pytest.mark.parametrize(("kind", "least"), [("bert", 3), ("gpt2", 2)])
def test_too_few_positions_are_refused(tmp_path, kind, least):
    for positions in range(1, least):
        with pytest.raises(CheckpointError, match=f"text: .*c has {positions} positions; .* takes at least {least}"):
            tie_on_text(runnable(tmp_path, kind, positions), tmp_path)
    assert not (tmp_path / "out").exists()
    assert tie_on_text(runnable(tmp_path, kind, least), tmp_path).whole


def test_special_token_outside_the_table_is_refused(tmp_path):
    """jax would clamp the id and read the last row."""
    words = [word for word in WORDS if word != "[MASK]"] + ["g", "[MASK]"]
    with pytest.raises(
        CheckpointError, match=r"vocab.txt: the id of \[MASK\] is 11, but the input table has 11 rows; replace the tokenizer"
    ):
        tie_on_text(runnable(tmp_path, "bert", words=words), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", ["input", "output"])
def test_states_that_are_not_finite_are_refused(tmp_path, keep):
    name = "bert.embeddings.position_embeddings.weight"
    spoilt = tensors("bert", tied=False)[name]
    spoilt[0, 0] = np.nan
    with pytest.raises(CheckpointError, match=r"text .*text.txt: .*c computes hidden states that are not finite"):
        tie_on_text(runnable(tmp_path, "bert", **{name: spoilt}), tmp_path, keep)
    assert not (tmp_path / "out").exists()
