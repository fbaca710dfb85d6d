"""The command `tiejax check`: its lines, JSON and exit status."""

import json

import pytest
from hub_checkpoints import checkpoint, values
from processes import tree

from tiejax.lab.commands import check as command
from tiejax.lab.settings.command_line import BadInput

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ONE, TWO = {EMBED: values()}, {EMBED: values(), HEAD: values(seed=1)}


def run(argv, capsys):
    status = command.main([str(word) for word in argv])
    return status, capsys.readouterr().out.splitlines()


def test_lines_and_exit_status(tmp_path, capsys):
    llama = {"model_type": "llama", "tie_word_embeddings": True}
    good = checkpoint(tmp_path / "good", ONE, llama)
    bad = checkpoint(tmp_path / "bad", TWO, llama)
    odd = tmp_path / "odd\x1b[31m"
    status, lines = run([good], capsys)
    assert status == 0
    assert lines[0] == f"{good}: agrees: one table; tie_word_embeddings: true; tied as the configuration says"
    assert any("adapter" in line for line in lines[1:])
    status, lines = run([good, bad, odd], capsys)
    assert status == 1
    assert lines[1].startswith(f"{bad}: disagrees: two different tables")
    assert lines[-3] == "    Fix: set tie_word_embeddings to false in config.json."
    assert lines[-2].startswith(f"{tmp_path}/odd\\x1b[31m: not found")
    assert lines[-1] == "1 agrees, 1 disagrees, 1 cannot say"
    assert run([good, odd], capsys)[0] == 2
    text = checkpoint(tmp_path / "text", ONE, {"model_type": "llama", "tie_word_embeddings": "false"})
    assert run([good, text], capsys)[1][1].startswith(f"{text}/config.json: tie_word_embeddings: expected true or false")


def test_json(tmp_path, capsys):
    bad = checkpoint(tmp_path / "bad", TWO, {"model_type": "llama", "tie_word_embeddings": True})
    assert command.main([str(bad), "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (one["answer"], one["family"], len(one["follows"])) == ("disagrees", "Llama", 2)


def test_repaired_copy(tmp_path, capsys):
    bad = checkpoint(tmp_path / "bad", TWO, {"model_type": "llama", "tie_word_embeddings": True})
    before = tree(bad)
    status, lines = run(["--fix", tmp_path / "out", bad], capsys)
    assert (status, lines[0]) == (0, f"repaired: {tmp_path / 'out'}")
    assert run([tmp_path / "out"], capsys)[0] == 0
    status, lines = run(["--fix", tmp_path / "again", tmp_path / "out"], capsys)
    assert (status, lines) == (0, [f"{tmp_path / 'out'}: nothing to repair; no copy was written"])
    status, lines = run(["--fix", tmp_path / "json", bad, "--json"], capsys)
    assert json.loads("".join(lines))["changes"] == ["`tie_word_embeddings` is false at every level."]
    assert not (tmp_path / "again").exists()
    assert tree(bad) == before


@pytest.mark.parametrize("number", [0, 2])
def test_one_checkpoint_is_repaired(tmp_path, number):
    with pytest.raises(BadInput, match=f"--fix: expected a new folder and one checkpoint, got {number}"):
        command.main(["--fix", str(tmp_path / "out"), *["x"] * number])


def test_no_folder_is_refused():
    with pytest.raises(BadInput, match="name the folder of at least one checkpoint"):
        command.main([])
