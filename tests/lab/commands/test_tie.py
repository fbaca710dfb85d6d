"""The command `tiejax tie`: its report, refusals and flags, and a killed process."""

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from killed_rewrite import kill_while_it_writes

from tiejax.lab.commands import tie as command
from tiejax.lab.settings.command_line import BadInput

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
UNTIED = {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": 23}


def untied(folder, second=None, **tensors):
    second = values() + 1e-4 * values(seed=1) if second is None else second
    norm = np.array([1.0, 2.0, 0.5, 1.5], np.float32)
    return checkpoint(folder, {EMBED: values(), HEAD: second, NORM: norm, **tensors}, UNTIED)


def test_a_report_alone_says_if_a_copy_would_be_refused(tmp_path, capsys):
    for name, second in (("near", None), ("far", values(seed=1))):
        assert command.main([str(untied(tmp_path / name, second))]) == 0
        found = capsys.readouterr().out.splitlines()
        assert found[-1].startswith("a copy would need --force: logits move by") == (name == "far")
        assert "saves 368 B" in found


@pytest.mark.parametrize(
    ("second", "argv", "words"),
    [
        (values(seed=1), [], ["logits move by", "use --force to write it anyway"]),
        (values() + 0.1 * values(seed=1), ["--keep", "output"], ["input table moves by", "keep the input table"]),
        (values(seed=1), ["--hidden", "none.npy"], ["--hidden none.npy: cannot be read"]),
        (
            values(seed=1),
            ["--text", "none.txt"],
            ["--text: ", "is of type llama; only BERT, ALBERT, GPT-2 can be run; for others give --hidden"],
        ),
        (
            values(seed=1),
            ["--text", "a", "--hidden", "b"],
            ["--hidden: states come from this file or from --text"],
        ),
        (values(seed=1), ["--states", "0"], ["--states: expected an integer >= 1, got 0"]),
        (values(25), [], ["2 more rows than its input table"]),
        (values(23, 5), [], ["two tables of different shapes; tying needs two of one shape"]),
        (values(23, 4, dtype=np.float32).astype(np.int32), [], ["it has a table stored as I32 (lm_head.weight)"]),
    ],
)
def test_refused_checkpoints_and_flags(tmp_path, second, argv, words):
    folder = untied(tmp_path / "c", second)
    with pytest.raises(BadInput) as error:
        command.main([str(folder), str(tmp_path / "out"), *argv])
    assert len(str(error.value).splitlines()) == 1
    for word in words:
        assert word in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 5), np.float32), r"expected \[states, 4\]"),
        (np.zeros(4, np.float32), r"expected \[states, 4\]"),
        (np.zeros((2, 4), np.int32), "floating-point"),
        (np.full((100, 4), np.nan), "not finite"),
        (np.ones((99, 4)), "has 99 states; a share of states within 1 % needs at least 100"),
        (np.zeros((100, 4)), "100 of 100 states are zero"),
        (np.eye(100, 4), "96 of 100 states are zero"),
        (np.array([{}]), "not a .npy file of numbers"),
    ],
    ids=["width", "axes", "dtype", "nan", "few", "zero", "some zero", "pickle"],
)
def test_invalid_state_files(tmp_path, array, words):
    np.save(tmp_path / "h.npy", array)
    with pytest.raises(BadInput, match=words):
        command.main([str(untied(tmp_path / "c")), "--hidden", str(tmp_path / "h.npy")])


def test_aligned_needs_a_norm(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: values(), HEAD: values()}, UNTIED)
    with pytest.raises(BadInput, match=r"--keep aligned: no layer normalisation is known to precede the head"):
        command.main([str(folder), "--keep", "aligned"])


def test_killed_process_leaves_no_partial_folder(tmp_path):
    folder = untied(tmp_path / "c", values(), big=np.zeros((6000, 6000), np.float32))
    kill_while_it_writes(folder, tmp_path / "out", "tie")


def test_report(tmp_path, capsys):
    second = values()
    second[0, 0] += 1e-3
    assert command.main([str(untied(tmp_path / "c", second)), str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "two different tables; keeping the input table" in out
    assert "relative change: input table 0.000%, output table 0.0" in out
    assert "on 256 hidden states drawn at random: KL" in out
    assert out.endswith(f"tied: {tmp_path / 'out'}, by {EMBED}\n")
