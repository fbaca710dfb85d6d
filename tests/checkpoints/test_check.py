"""Every way in which the flag and the stored tables of a checkpoint can agree or disagree."""

import json

import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, values

from tiejax.checkpoints.check import check_folder

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TWO = {EMBED: values(), HEAD: values(seed=1)}
ONE, EQUAL = {EMBED: values()}, {EMBED: values(), HEAD: values()}
SCALED, ALONE = {EMBED: values(), HEAD: 2.5 * values()}, {HEAD: values()}
NEARLY = {EMBED: values(), HEAD: values() + 1e-5 * values(seed=1)}
PADDED = {EMBED: values(), HEAD: np.concatenate([values(), np.zeros((3, 4), np.float32)])}
QUANTISED = {EMBED: values(), "lm_head.qweight": np.ones((2, 2), np.int32), "lm_head.scales": values(2, 2)}
NARROW = {EMBED: values(), HEAD: values(width=6)}


def check_tensors(tmp_path, tensors, tied, **config):
    flag = {} if tied is None else {"tie_word_embeddings": tied}
    return check_folder(checkpoint(tmp_path / "c", tensors, {"model_type": "llama", **flag, **config}))


@pytest.mark.parametrize(
    ("tensors", "tied", "answer", "stored", "edit"),
    [
        (ONE, True, "agrees", "one table", None),
        (ONE, False, "disagrees", "one table", "set tie_word_embeddings to true in config.json, if the model was trained tied"),
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
    ids=range(17),
)
def test_flag_and_file(tmp_path, tensors, tied, answer, stored, edit):
    one = check_tensors(tmp_path, tensors, tied)
    assert one.answer == answer
    assert stored in one.stored
    assert one.says == f"tie_word_embeddings: {str(tied).lower()}"
    assert (one.edit is None) == (edit is None)
    assert edit is None or one.edit.startswith(edit)


def test_default_of_the_family_without_a_flag(tmp_path):
    assert check_tensors(tmp_path, ONE, None).answer == "disagrees"  # the default of Llama is untied
    gemma = check_tensors(tmp_path, ONE, None, model_type="gemma")
    assert (gemma.answer, gemma.family) == ("agrees", "Gemma")
    assert check_tensors(tmp_path, ONE, None, model_type="new").answer == "cannot say"


def test_flag_at_both_levels(tmp_path):
    text = {"model_type": "gemma3_text", "tie_word_embeddings": False}
    both = check_tensors(tmp_path, TWO, True, model_type="gemma3", text_config=text)
    assert both.answer == "disagrees"
    assert both.edit == "set tie_word_embeddings to false at both levels"
    inner = check_tensors(tmp_path, TWO, None, model_type="gemma3", text_config=text | {"tie_word_embeddings": True})
    assert inner.edit == "set text_config.tie_word_embeddings to false in config.json"


def test_family_that_is_never_tied(tmp_path):
    tensors = {"rembert.embeddings.word_embeddings.weight": values(), "cls.predictions.decoder.weight": values(width=6)}
    assert check_tensors(tmp_path, tensors, True, model_type="rembert").answer == "agrees"


def test_encoder_without_a_head(tmp_path):
    one = check_tensors(
        tmp_path, {"embeddings.word_embeddings.weight": values()}, False, model_type="bert", architectures=["BertModel"]
    )
    assert (one.answer, one.edit) == ("agrees", None)


@pytest.mark.parametrize("place", [0, ROWS - 1])
def test_one_differing_value_is_found(tmp_path, place):
    other = values()
    other[place, 3] += 1
    assert check_tensors(tmp_path, {EMBED: values(), HEAD: other}, False).answer == "agrees"
    assert check_tensors(tmp_path, {EMBED: values(), HEAD: other}, True).answer == "disagrees"


def test_different_dtypes_are_compared_by_value(tmp_path):
    exact = values().round().astype(np.float16)
    assert check_tensors(tmp_path, {EMBED: exact, HEAD: exact.astype(np.float32)}, True).answer == "agrees"


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: values()}, {"model_type": "llama"}, file="a.safetensors")
    checkpoint(tmp_path / "c", {HEAD: values()}, {"model_type": "llama", "tie_word_embeddings": True}, file="b.safetensors")
    index = {"weight_map": {EMBED: "a.safetensors", HEAD: "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert check_folder(folder).stored == "two equal tables"
