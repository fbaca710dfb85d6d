"""Untying a checkpoint: added tensors, bitwise copies, refused checkpoints, and a killed process."""

import json
import re

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from killed_rewrite import kill_while_it_writes
from processes import tree
from safetensors.numpy import load_file

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite.untie import untie

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED = {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 23}


def tied(folder, **tensors):
    return checkpoint(folder, {EMBED: values(), "model.norm.weight": values(4, 1, seed=2)[:, 0], **tensors}, TIED)


def test_output_table_is_stored_separately(tmp_path):
    folder = tied(tmp_path / "c")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("mine")
    before = tree(folder)
    assert untie(folder, tmp_path / "out") == HEAD
    assert tree(folder) == before
    old, new = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(new) == {*old, HEAD}
    assert new[HEAD].tobytes() == old[EMBED].tobytes()
    for name, array in old.items():
        assert (new[name].dtype, new[name].tobytes()) == (array.dtype, array.tobytes())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == TIED | {"tie_word_embeddings": False}
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert (tmp_path / "out" / "extra" / "notes.txt").read_text() == "mine"
    assert (check_folder(tmp_path / "out").stored, check_folder(tmp_path / "out").answer) == ("two equal tables", "agrees")


def test_two_equal_tables_change_only_the_flag(tmp_path):
    folder = tied(tmp_path / "c", **{HEAD: values()})
    untie(folder, tmp_path / "out")
    new, old = (load_file(path / "model.safetensors") for path in (tmp_path / "out", folder))
    assert {name: array.tobytes() for name, array in new.items()} == {name: array.tobytes() for name, array in old.items()}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False


def test_names_without_the_prefix_of_the_base_model_get_it(tmp_path):
    """As in the oldest GPT-2: version 4 reads such a file only if it has no head."""
    old = {"wte.weight": values(), "ln_f.weight": values(4, 1, seed=2)[:, 0]}
    config = {"model_type": "gpt2", "tie_word_embeddings": True}
    untie(checkpoint(tmp_path / "c", old, config), tmp_path / "out")
    new = load_file(tmp_path / "out" / "model.safetensors")
    expected = {f"transformer.{name}": array for name, array in old.items()} | {HEAD: old["wte.weight"]}
    assert {name: array.tobytes() for name, array in new.items()} == {name: array.tobytes() for name, array in expected.items()}
    assert check_folder(tmp_path / "out").answer == "agrees"
    assert "The tensors of the base model got the prefix `transformer.`." in (tmp_path / "out" / "README.md").read_text()


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: values()}, TIED, file="a.safetensors")
    checkpoint(folder, {"w": values(2, 2)}, TIED, file="b.safetensors")
    index = {"metadata": {"total_size": 384}, "weight_map": {EMBED: "a.safetensors", "w": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    untie(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert written["weight_map"] == {EMBED: "a.safetensors", HEAD: "a.safetensors", "w": "b.safetensors"}
    assert written["metadata"]["total_size"] == 384 + values().nbytes
    assert (tmp_path / "out" / "b.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes()
    assert check_folder(tmp_path / "out").stored == "two equal tables"


def test_decoder_bias_is_stored_separately(tmp_path):
    tensors = {"bert.embeddings.word_embeddings.weight": values(), "cls.predictions.bias": np.arange(23, dtype=np.float32)}
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "bert"})
    assert untie(folder, tmp_path / "out") == "cls.predictions.decoder.weight"
    new = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(new["cls.predictions.decoder.bias"], np.arange(23))


def test_flag_is_set_at_both_levels(tmp_path):
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "tie_word_embeddings": True}}
    folder = checkpoint(tmp_path / "c", {"language_model.model.embed_tokens.weight": values()}, config)
    assert untie(folder, tmp_path / "out") == "language_model.lm_head.weight"
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"]) == (False, False)


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (
            {EMBED: values(), HEAD: values(seed=1)},
            TIED,
            "is not tied: it has two different tables; set tie_word_embeddings to false",
        ),
        ({EMBED: values()}, {"model_type": "new"}, "cannot be untied: the model_type 'new' is not known"),
        ({"shared.weight": values()}, {"model_type": "t5"}, "cannot be untied: version 5 of the transformers library ties T5"),
        ({EMBED: values()}, TIED | {"architectures": ["LlamaModel"]}, "cannot be untied: its architecture predicts no tokens"),
        ({"x": values()}, TIED | {"architectures": ["ElectraForPreTraining"]}, "its architecture predicts no tokens"),
        ({EMBED: values()}, TIED | {"tie_word_embeddings": False}, "nothing says that it is tied .*cannot be restored"),
        ({EMBED: values(), "lm_head.qweight": values()}, TIED, "is not tied: it has a table stored quantised"),
    ],
)
def test_refused_checkpoints(tmp_path, tensors, config, words):
    with pytest.raises(CheckpointError, match=words):
        untie(checkpoint(tmp_path / "c", tensors, config), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_head_outside_the_index_is_missing(tmp_path):
    """A file that the index does not list is not part of the checkpoint, as for the transformers library."""
    config = TIED | {"tie_word_embeddings": False}
    folder = checkpoint(tmp_path / "c", {EMBED: values()}, config, file="a.safetensors")
    checkpoint(folder, {HEAD: values(seed=1)}, config, file="b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EMBED: "a.safetensors"}}))
    assert check_folder(folder).answer == "disagrees"
    with pytest.raises(CheckpointError, match="nothing says that it is tied"):
        untie(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tables_of_encoder_and_decoder(tmp_path):
    """Of a tied BART the library stores the shared table alone, of an untied one all of them."""
    config = {"architectures": ["BartForConditionalGeneration"], "tie_word_embeddings": True}
    folder = checkpoint(tmp_path / "c", {"model.shared.weight": values(), "x": values(2, 2)}, config)
    assert untie(folder, tmp_path / "out") == HEAD
    new = load_file(tmp_path / "out" / "model.safetensors")
    sides = {f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")}
    assert set(new) == {"model.shared.weight", "x", HEAD, *sides}
    for name in (HEAD, *sides):
        np.testing.assert_array_equal(new[name], values())


@pytest.mark.parametrize("name", ["model.encoder.embed_tokens", "model.decoder.embed_tokens", "encoder.embed_tokens", "shared"])
def test_shared_table_under_another_name(tmp_path, name):
    """That of one side, also without the prefix of the base model."""
    config = {"architectures": ["BartForConditionalGeneration"], "tie_word_embeddings": True}
    folder = checkpoint(tmp_path / "c", {f"{name}.weight": values()}, config)
    assert untie(folder, tmp_path / "out") == HEAD
    sides = {f"model.{one}.embed_tokens.weight" for one in ("encoder", "decoder")}
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"model.shared.weight", HEAD, *sides}
    assert check_folder(tmp_path / "out").answer == "agrees"


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "module._orig_mod.", "student."])
def test_new_head_has_the_prefix_of_all_names(tmp_path, prefix):
    """Also where all names begin with more than the prefix, as those of a tied model of one module do."""
    tensors = {prefix + EMBED: values(), f"{prefix}model.norm.weight": values(4, 1)[:, 0]}
    assert untie(checkpoint(tmp_path / "c", tensors, TIED), tmp_path / "out") == prefix + HEAD
    assert check_folder(tmp_path / "out").stored == "two equal tables"


def test_new_head_beside_a_wrapped_module(tmp_path):
    """The prefix of the input table's module is not that of the head."""
    assert untie(checkpoint(tmp_path / "c", {"model._orig_mod.embed_tokens.weight": values()}, TIED), tmp_path / "out") == HEAD


def test_weights_in_other_formats_are_not_copied(tmp_path):
    folder = tied(tmp_path / "tied")
    others = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "pytorch_model-00001-of-00002.bin", "original", "onnx")
    for name in others[-2:]:
        (folder / name / "deep").mkdir(parents=True)
        (folder / name / "deep" / "weights").write_bytes(b"old")
    for name in (*others[:-2], "training_args.bin"):
        (folder / name).write_bytes(b"old")
    untie(folder, tmp_path / "untied")
    assert not {path.name for path in (tmp_path / "untied").iterdir()} & set(others)
    assert (tmp_path / "untied/training_args.bin").read_bytes() == b"old"
    card = (tmp_path / "untied/README.md").read_text()
    assert all(f"`{name}`" in card for name in others)


def test_existing_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="already exists"):
        untie(tied(tmp_path / "c"), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_killed_process_leaves_no_partial_folder(tmp_path):
    folder = tied(tmp_path / "c", big=np.zeros((6000, 6000), np.float32))
    kill_while_it_writes(folder, tmp_path / "out", "untie")
    untie(folder, tmp_path / "out")
    # The leftover folder stays: it might belong to the user.
    left = [path.name for path in tmp_path.iterdir() if path.name not in ("c", "out")]
    assert [bool(re.fullmatch("incomplete-[0-9a-f]{8}-out", name)) for name in left] == [True]
    assert check_folder(tmp_path / "out").answer == "agrees"
