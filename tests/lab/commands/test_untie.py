"""The command `tiejax untie`."""

import pytest
from hub_checkpoints import checkpoint, values
from safetensors.numpy import load_file

from tiejax.lab.commands import check, tie
from tiejax.lab.commands import untie as command
from tiejax.lab.settings.command_line import BadInput


@pytest.mark.parametrize("prefix", ["module.", "student."])
def test_names_that_loaders_do_not_find(tmp_path, capsys, prefix):
    tensors = {f"{prefix}model.embed_tokens.weight": values(), f"{prefix}model.norm.weight": values(4, 1)[:, 0]}
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "llama", "tie_word_embeddings": True})
    untied, tied, fixed = tmp_path / "untied", tmp_path / "tied", tmp_path / "fixed"
    for main, argv in ((command.main, [folder, untied]), (tie.main, [untied, tied])):
        assert main([str(word) for word in argv]) == 0
        warning = f"warning: {argv[1]}: loaders find no tensor under the prefix {prefix}"
        assert capsys.readouterr().err.startswith(warning)
    assert check.main([str(untied), "--fix", str(fixed)]) == 0
    assert set(load_file(fixed / "model.safetensors")) == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def test_result_line_and_refusals(tmp_path, capsys):
    folder = checkpoint(
        tmp_path / "c", {"model.embed_tokens.weight": values()}, {"model_type": "llama", "tie_word_embeddings": True}
    )
    assert command.main([str(folder), str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == (f"untied: {tmp_path / 'out'}, with lm_head.weight\n", "")
    for argv, words in (
        ([], "name the folder"),
        ([str(folder)], "name the folder"),
        (["none", "x"], "not found"),
    ):
        with pytest.raises(BadInput, match=words):
            command.main(argv)
