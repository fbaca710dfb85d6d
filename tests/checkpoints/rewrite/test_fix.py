"""Repairs that need a decision, and a killed process; `test_fix_parity.py` loads repaired checkpoints."""

import json

import numpy as np
import pytest
from hub_checkpoints import checkpoint, refused, values
from killed_rewrite import kill_while_it_writes
from safetensors.numpy import load_file

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.hub.checkpoint import INDEX
from tiejax.checkpoints.rewrite.fix import fix

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED = {"model_type": "llama", "tie_word_embeddings": True}
UNTIED = TIED | {"tie_word_embeddings": False}
ONE, TWO, ALONE = {EMBED: values()}, {EMBED: values(), HEAD: values(seed=1)}, {HEAD: values()}
BART = {"model.shared.weight": values(), "model.decoder.embed_tokens.weight": values(seed=1)}


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (ONE, UNTIED, ["needs a decision: the output table is missing", "set tie_word_embeddings to true"]),
        (ALONE, UNTIED, ["needs a decision: the input table is missing"]),
        (TWO | {f"module.{HEAD}": values()}, TIED, [f"needs a decision: which of several tensors is to be called {HEAD}"]),
        (BART, TIED | {"model_type": "bart"}, ["needs a decision: the flag makes", "write an untied copy with `tiejax untie`"]),
        ({"shared.weight": values()}, UNTIED | {"model_type": "t5"}, ["cannot be repaired: versions of the transformers"]),
        (ONE | {"lm_head.trellis": values()}, TIED, ["cannot be repaired: whether its values are those of the other table"]),
        (TWO, TIED | {"model_type": "new"}, ["cannot be repaired: the model_type 'new' is not known"]),
    ],
    ids=["no head", "no input", "two names", "further", "versions", "form", "unknown"],
)
def test_what_needs_a_decision_is_refused(tmp_path, tensors, config, words):
    folder = checkpoint(tmp_path / "c", tensors, config)
    refused(lambda: fix(folder, tmp_path / "out"), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


HALF = np.float16(values())
LLAVA = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        (TWO, {"model_type": "new"}),
        (ONE | {"lm_head.qweight": np.zeros((1, 5), np.int32)}, LLAVA),
        ({"other": values()}, LLAVA),
        (ONE | {HEAD: HALF}, LLAVA),
        (ONE | {HEAD: np.zeros(values().shape, np.int8)}, LLAVA),
    ],
    ids=["unknown", "quantised", "no table", "rounded", "integers"],
)
def test_contradicting_flags_of_tables_that_cannot_be_judged(tmp_path, tensors, config):
    flags = {"tie_word_embeddings": True, "text_config": {"model_type": "llama", "tie_word_embeddings": False}}
    named = {f"language_model.{name}": table for name, table in tensors.items()}
    folder = checkpoint(tmp_path / "c", named, config | flags)
    refused(lambda: fix(folder, tmp_path / "out"), "cannot be repaired")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_repair_whose_result_cannot_be_judged_is_refused(tmp_path):
    """Without its wrapper's prefix, version 4 makes the two different tables one."""
    tables = BART | {"model.encoder.embed_tokens.weight": values(seed=2), HEAD: values(seed=3)}
    config = UNTIED | {"model_type": "bart"}
    folder = checkpoint(tmp_path / "c", {f"module.{name}": table for name, table in tables.items()}, config)
    refused(
        lambda: fix(folder, tmp_path / "out"),
        'cannot be repaired: of the copy, `tiejax check` would say "cannot say"',
        "version 4",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_two_sets_of_weights_are_refused(tmp_path):
    folder = checkpoint(tmp_path / "c", TWO, TIED)
    checkpoint(folder, TWO, TIED, "model-1.safetensors")
    refused(lambda: fix(folder, tmp_path / "out"), "model.safetensors and model-1.safetensors are two sets of weights")


@pytest.mark.parametrize(("tensors", "tied"), [(TWO, False), (ONE, True), (ONE | {HEAD: values()}, True)])
@pytest.mark.parametrize("top", [True, False])
def test_flags_that_contradict_each_other(tmp_path, tensors, tied, top):
    """The tables decide: one table, or two equal ones of which one is dropped, or two that differ."""
    text = {"model_type": "gemma3_text", "tie_word_embeddings": not top}
    config = {"model_type": "gemma3", "tie_word_embeddings": top, "text_config": text}
    named = {f"language_model.{name}": table for name, table in tensors.items()}
    fix(checkpoint(tmp_path / "c", named, config), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"]) == (tied, tied)
    assert len(load_file(tmp_path / "out" / "model.safetensors")) == 1 if tied else 2
    assert check_folder(tmp_path / "out").answer == "agrees"


def test_shard_of_a_copy_alone_is_left_out(tmp_path):
    folder = checkpoint(tmp_path / "c", ONE, TIED, "a.safetensors")
    checkpoint(folder, ALONE, TIED, "b.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": {EMBED: "a.safetensors", HEAD: "b.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index))
    fix(folder, tmp_path / "out")
    assert not (tmp_path / "out" / "b.safetensors").exists()
    assert json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"] == {EMBED: "a.safetensors"}


def test_killed_process_leaves_no_partial_folder(tmp_path):
    folder = checkpoint(tmp_path / "c", TWO | {"big": np.zeros((6000, 6000), np.float32)}, TIED)
    out = tmp_path / "out"
    kill_while_it_writes(folder, out, "check", "--fix", out, folder)
    fix(folder, out)
    assert check_folder(out).answer == "agrees"
