"""Checkpoints that are as they say, and those that are not: every way in which flag and file can disagree."""

import json

import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, values

from tiejax.lab.commands import check as command
from tiejax.lab.commands.check import checked
from tiejax.lab.settings.command_line import BadInput

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TWO = {EMBED: values(), HEAD: values(seed=1)}
ONE, EQUAL = {EMBED: values()}, {EMBED: values(), HEAD: values()}
SCALED, ALONE = {EMBED: values(), HEAD: 2.5 * values()}, {HEAD: values()}
NEARLY = {EMBED: values(), HEAD: values() + 1e-5 * values(seed=1)}
PADDED = {EMBED: values(), HEAD: np.concatenate([values(), np.zeros((3, 4), np.float32)])}
QUANTISED = {EMBED: values(), "lm_head.qweight": np.ones((2, 2), np.int32), "lm_head.scales": values(2, 2)}
NARROW = {EMBED: values(), HEAD: values(width=6)}


def found(tmp_path, tensors, tied, **config):
    flag = {} if tied is None else {"tie_word_embeddings": tied}
    return checked(checkpoint(tmp_path / "c", tensors, {"model_type": "llama", **flag, **config}))


@pytest.mark.parametrize(
    ("tensors", "tied", "answer", "stored", "edit"),
    [
        (ONE, True, "agrees", "one table", None),
        (ONE, False, "disagrees", "one table", "set tie_word_embeddings to true in config.json, if it was trained tied"),
        (EQUAL, True, "agrees", "two equal tables", None),
        (EQUAL, False, "agrees", "two equal tables", None),
        (TWO, False, "agrees", "two different tables", None),
        (TWO, True, "disagrees", "two different tables", "set tie_word_embeddings to false in config.json"),
        (SCALED, True, "disagrees", "one a multiple of the other (2.5 times the input)", "set tie_word_embeddings to false"),
        (SCALED, False, "agrees", "(2.5 times the input)", None),
        (NEARLY, True, "disagrees", "two different tables", "set tie_word_embeddings to false"),
        (PADDED, True, "agrees", "two equal tables, the output 3 rows longer", None),
        (QUANTISED, True, "disagrees", "a quantised head", "set tie_word_embeddings to false"),
        (QUANTISED, False, "agrees", "a quantised head", None),
        (NARROW, True, "disagrees", "two tables of different shapes", "set tie_word_embeddings to false"),
        (NARROW, False, "agrees", "two tables of different shapes", None),
        (ALONE, True, "disagrees", "the output table alone", "rename lm_head.weight to that of the input table"),
        (ALONE, False, "disagrees", "the output table alone", None),
        ({"other": values()}, True, "cannot say", "no table by a known name", None),
    ],
    ids=str,
)
def test_flag_and_file(tmp_path, tensors, tied, answer, stored, edit):
    one = found(tmp_path, tensors, tied)
    assert one.answer == answer
    assert stored in one.stored
    assert one.says == f"tie_word_embeddings: {str(tied).lower()}"
    assert (one.edit is None) == (edit is None)
    assert edit is None or one.edit.startswith(edit)


def test_the_default_of_a_family_counts_where_nothing_is_said(tmp_path):
    assert found(tmp_path, ONE, None).answer == "disagrees"  # untied, unless it is said
    gemma = found(tmp_path, ONE, None, model_type="gemma")
    assert (gemma.answer, gemma.family) == ("agrees", "Gemma")
    assert found(tmp_path, ONE, None, model_type="new").answer == "cannot say"


def test_levels_of_a_configuration(tmp_path):
    text = {"model_type": "gemma3_text", "tie_word_embeddings": False}
    both = found(tmp_path, TWO, True, model_type="gemma3", text_config=text)
    assert both.answer == "disagrees"
    assert both.edit == "give both levels the value false"
    inner = found(tmp_path, TWO, None, model_type="gemma3", text_config=text | {"tie_word_embeddings": True})
    assert inner.edit == "set text_config.tie_word_embeddings to false in config.json"


def test_a_family_that_ties_nothing(tmp_path):
    tensors = {"rembert.embeddings.word_embeddings.weight": values(), "cls.predictions.decoder.weight": values(width=6)}
    assert found(tmp_path, tensors, True, model_type="rembert").answer == "agrees"


def test_an_encoder_without_a_head_has_nothing_to_tie(tmp_path):
    one = found(
        tmp_path, {"embeddings.word_embeddings.weight": values()}, False, model_type="bert", architectures=["BertModel"]
    )
    assert (one.answer, one.edit) == ("agrees", None)


@pytest.mark.parametrize("place", [0, ROWS - 1])
def test_one_number_that_differs_is_found_wherever_it_is(tmp_path, place):
    other = values()
    other[place, 3] += 1
    assert found(tmp_path, {EMBED: values(), HEAD: other}, False).answer == "agrees"
    assert found(tmp_path, {EMBED: values(), HEAD: other}, True).answer == "disagrees"


def test_other_numbers_of_bits_are_compared_by_value(tmp_path):
    exact = values().round().astype(np.float16)
    assert found(tmp_path, {EMBED: exact, HEAD: exact.astype(np.float32)}, True).answer == "agrees"


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: values()}, {"model_type": "llama"}, file="a.safetensors")
    checkpoint(tmp_path / "c", {HEAD: values()}, {"model_type": "llama", "tie_word_embeddings": True}, file="b.safetensors")
    index = {"weight_map": {EMBED: "a.safetensors", HEAD: "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checked(folder).stored == "two equal tables"


def said(argv, capsys):
    status = command.main([str(word) for word in argv])
    return status, capsys.readouterr().out.splitlines()


def test_lines_and_status(tmp_path, capsys):
    llama = {"model_type": "llama", "tie_word_embeddings": True}
    good = checkpoint(tmp_path / "good", ONE, llama)
    bad = checkpoint(tmp_path / "bad", TWO, llama)
    odd = tmp_path / "odd\x1b[31m"
    status, lines = said([good], capsys)
    assert status == 0
    assert lines[0] == f"{good}: agrees: one table; tie_word_embeddings: true; stored as the configuration says"
    assert any("adapter" in line for line in lines[1:])
    status, lines = said([good, bad, odd], capsys)
    assert status == 1
    assert lines[1].startswith(f"{bad}: disagrees: two different tables")
    assert lines[-3] == "    Mend it: set tie_word_embeddings to false in config.json."
    assert lines[-2].startswith(f"{tmp_path}/odd\\x1b[31m: there is no such folder")
    assert lines[-1] == "1 agrees, 1 disagrees, 1 cannot say"
    assert said([good, odd], capsys)[0] == 2


def test_json(tmp_path, capsys):
    bad = checkpoint(tmp_path / "bad", TWO, {"model_type": "llama", "tie_word_embeddings": True})
    assert command.main([str(bad), "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (one["answer"], one["family"], len(one["follows"])) == ("disagrees", "Llama", 2)


def test_no_folder():
    with pytest.raises(BadInput, match="name at least one folder"):
        command.main([])
