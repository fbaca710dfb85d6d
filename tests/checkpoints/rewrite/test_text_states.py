"""What a masked and a causal model are asked of a text."""

import numpy as np
import pytest
from hub_checkpoints import checkpoint
from hub_weights import CONFIGS, POSITIONS, tensors

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.tokens import find_tokens
from tiejax.checkpoints.rewrite.text_states import causal_task, masked_task
from tiejax.lab.commands import tie as command
from tiejax.lab.settings.command_line import BadInput


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


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]


def runnable(tmp_path, kind, positions=POSITIONS, words=WORDS, **changed):
    """An untied checkpoint that can be run, with a vocabulary of letters, and a text of letters."""
    config = CONFIGS[kind] | {"tie_word_embeddings": False}
    config["n_positions" if kind == "gpt2" else "max_position_embeddings"] = positions
    written = tensors(kind, tied=False) | changed
    places = "transformer.wpe.weight" if kind == "gpt2" else "bert.embeddings.position_embeddings.weight"
    written[places] = written[places][:positions]
    folder = checkpoint(tmp_path / "c", written, config)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (tmp_path / "text.txt").write_text(" ".join("abcdef" * 50))
    return folder


def tied(folder, tmp_path, *flags):
    return command.main([str(folder), str(tmp_path / "out"), "--text", str(tmp_path / "text.txt"), "--force", *flags])


@pytest.mark.parametrize(("kind", "least"), [("bert", 3), ("gpt2", 2)])
def test_a_model_needs_positions_for_one_place_to_predict(tmp_path, kind, least):
    for positions in range(1, least):
        with pytest.raises(BadInput, match=f"--text: .*c has {positions} positions; for one .* it needs {least}"):
            tied(runnable(tmp_path, kind, positions), tmp_path)
    assert not (tmp_path / "out").exists()
    assert tied(runnable(tmp_path, kind, least), tmp_path) == 0


def test_a_special_token_that_the_table_has_not_is_refused(tmp_path):
    """jax would read the table's last row for it."""
    words = [word for word in WORDS if word != "[MASK]"] + ["g", "[MASK]"]
    with pytest.raises(BadInput, match=r"vocab.txt: gives \[MASK\] the id 11; the input table has 11 rows"):
        tied(runnable(tmp_path, "bert", words=words), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", ["input", "output"])
def test_a_model_whose_states_are_not_finite_is_refused(tmp_path, keep):
    name = "bert.embeddings.position_embeddings.weight"
    spoilt = tensors("bert", tied=False)[name]
    spoilt[0, 0] = np.nan
    with pytest.raises(BadInput, match=r"--text .*text.txt: .*c makes states of it that are not finite"):
        tied(runnable(tmp_path, "bert", **{name: spoilt}), tmp_path, "--keep", keep)
    assert not (tmp_path / "out").exists()
