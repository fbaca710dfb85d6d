"""The command `tiejax untie`."""

import pytest
from hub_checkpoints import checkpoint, values

from tiejax.lab.commands import untie as command
from tiejax.lab.settings.command_line import BadInput


def test_result_line_and_refusals(tmp_path, capsys):
    folder = checkpoint(
        tmp_path / "c", {"model.embed_tokens.weight": values()}, {"model_type": "llama", "tie_word_embeddings": True}
    )
    assert command.main([str(folder), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"untied: {tmp_path / 'out'}, with lm_head.weight\n"
    for argv, words in (
        ([], "name the folder"),
        ([str(folder)], "name the folder"),
        (["none", "x"], "not found"),
    ):
        with pytest.raises(BadInput, match=words):
            command.main(argv)
