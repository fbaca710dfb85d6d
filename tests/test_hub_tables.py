"""Checkpoints in the hub's format: rows against arrays that were written, names of families, and every way to be broken."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tiejax.hub import tables as hub_tables
from tiejax.hub.families import FAMILIES, find_tables, flag_of
from tiejax.hub.tables import CheckpointError, HubTable, open_checkpoint, table

ROWS, WIDTH = 23, 4


def values(rows=ROWS, width=WIDTH, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(dtype)


def checkpoint(folder, tensors, config=None, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / file)
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


def refused(call, *words):
    with pytest.raises(CheckpointError) as error:
        call()
    message = str(error.value)
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_those_that_were_written(tmp_path, monkeypatch, dtype, transposed):
    monkeypatch.setattr(hub_tables, "BLOCK_BYTES", 5 * 4 * WIDTH)  # several blocks where a transposed table is gathered
    written = values(dtype=dtype)
    folder = checkpoint(tmp_path / "c", {"t": written.T if transposed else written, "other": values(3, 3)})
    found = table(open_checkpoint(folder), "t", "--input_table", ROWS)
    expected = written.astype(np.float32)
    assert (found.shape, found.dtype, found.transposed) == ((ROWS, WIDTH), np.dtype(dtype).name, transposed)
    assert found.nbytes == written.nbytes
    for rows in (slice(0, ROWS), slice(3, 9), slice(20, 99), slice(5, 5)):
        np.testing.assert_array_equal(found[rows], expected[rows])
    for rows in ([0], [ROWS - 1], [1, 2, 3, 7, 9, 10, 22], range(ROWS), []):
        index = np.array(list(rows), np.int64)
        got = found[index]
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected[index])


def test_values_that_are_not_finite_are_named(tmp_path):
    written = values()
    written[7, 2] = np.nan
    found = table(open_checkpoint(checkpoint(tmp_path / "c", {"t": written})), "t", "--input_table")
    np.testing.assert_array_equal(found[0:7], written[:7])
    refused(lambda: found[5:9], "model.safetensors", "row 7 of t", "not finite")


def test_file_that_vanishes_while_it_is_read(tmp_path):
    folder = checkpoint(tmp_path / "c", {"t": values()})
    found = table(open_checkpoint(folder), "t", "--input_table")
    (folder / "model.safetensors").unlink()
    refused(lambda: found[0:2], "model.safetensors", "cannot be read")


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {"a": values(seed=1)}, file="model-1.safetensors")
    checkpoint(folder, {"b": values(seed=2)}, file="model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    for indexed in (False, True):  # the shards alone tell as much
        if indexed:
            (folder / hub_tables.INDEX).write_text(json.dumps(index))
        opened = open_checkpoint(folder)
        assert {name: one.file.name for name, one in opened.tensors.items()} == index["weight_map"]
        np.testing.assert_array_equal(table(opened, "b", "")[0:ROWS], values(seed=2))


def write_index(folder, content):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / hub_tables.INDEX).write_text(content)


def cut(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json", "not JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json", "object", "list"),
    "config is binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json", "not JSON"),
    "config is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        "config.json",
        "cannot be read",
    ),
    "cut off": (cut, "model.safetensors", "damaged or cut off"),
    "empty file": (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors", "damaged or cut off"),
    "noise": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 99), "model.safetensors", "damaged or cut off"),
    "no tensors": (lambda f: save_file({}, f / "model.safetensors"), "no tensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights", "safetensors"),
    "only pickle": (only_pickle, "pytorch_model.bin", "pickle", "any code", "safetensors"),
    "index is no JSON": (lambda f: write_index(f, "nothing"), hub_tables.INDEX, "not JSON"),
    "index without a map": (lambda f: write_index(f, "{}"), hub_tables.INDEX, "weight_map"),
    "index of numbers": (lambda f: write_index(f, '{"weight_map": {"t": 3}}'), hub_tables.INDEX, "weight_map"),
    "missing shard": (
        lambda f: write_index(f, '{"weight_map": {"t": "model-1.safetensors", "u": "model-2.safetensors"}}'),
        "names model-2.safetensors",
        "not there",
    ),
    "missing tensor": (
        lambda f: write_index(f, '{"weight_map": {"u": "model-1.safetensors"}}'),
        "model-1.safetensors",
        "no tensor u",
    ),
    "two of one name": (
        lambda f: write_index(f, "") or (f / hub_tables.INDEX).unlink() or save_file({"t": values()}, f / "b.safetensors"),
        "b.safetensors",
        "model-1.safetensors",
        "both hold t",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_checkpoints_are_refused_in_one_line(tmp_path, name):
    spoil, *words = BROKEN[name]
    folder = checkpoint(tmp_path / "c", {"t": values()})
    spoil(folder)
    refused(lambda: open_checkpoint(folder), *words)


def test_folders_that_are_none(tmp_path):
    refused(lambda: open_checkpoint(tmp_path / "none"), "none", "no such folder")
    (tmp_path / "file.safetensors").write_bytes(b"")
    refused(lambda: open_checkpoint(tmp_path / "file.safetensors"), "is a file", "folder that it is in")


def test_tensors_that_are_no_tables(tmp_path):
    tensors = {"line": np.zeros(5, np.float32), "codes": np.zeros((5, 2), np.int8), "none": np.zeros((0, 2), np.float32)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors))
    refused(lambda: table(opened, "lime", "--input_table"), "--input_table lime", "no such tensor", "did you mean line?")
    refused(lambda: table(opened, "line", "--output_table"), "--output_table line", "[5]")
    refused(lambda: table(opened, "none", "--input_table"), "[0, 2]")
    refused(lambda: table(opened, "codes", "--input_table"), "I8", "quantised")


# As the library names them in the files that it saves, with and without the prefix of a bare model.
STORED = {
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "cls.predictions.bias", True),
    "roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight", "lm_head.bias", True),
    "gpt2": ("wte.weight", "lm_head.weight", None, True),
    "gpt_neox": ("gpt_neox.embed_in.weight", "embed_out.weight", None, False),
    "llama": ("model.embed_tokens.weight", "lm_head.weight", None, False),
    "qwen2": ("model.embed_tokens.weight", "lm_head.weight", None, False),
    "gemma": ("model.embed_tokens.weight", "lm_head.weight", None, True),
    "olmo": ("model.embed_tokens.weight", "lm_head.weight", None, False),
    "t5": ("shared.weight", "lm_head.weight", None, True),
    "modernbert": ("model.embeddings.tok_embeddings.weight", "decoder.weight", "decoder.bias", True),
}


@pytest.mark.parametrize("kind", list(STORED))
@pytest.mark.parametrize("known", [True, False])
def test_tables_are_found_by_the_usual_names(tmp_path, kind, known):
    """Also where `model_type` says nothing: then by the names of all families."""
    first, second, bias, ties = STORED[kind]
    tensors = {first: values(), second: values(seed=1), "other.weight": values(6, 6), "position.weight": values(9, 4)}
    if kind == "t5" and known:  # to an unknown family both would be candidates
        tensors["encoder.embed_tokens.weight"] = values()
    if bias:
        tensors[bias] = np.zeros(ROWS, np.float32)
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": kind if known else "new"})))
    assert (found.input.name, found.output.name, found.bias) == (first, second, bias)
    assert found.flag.tied == (ties if known else None)
    assert (found.family is None) == (not known)


def test_families_name_a_type_once():
    types = [kind for family in FAMILIES for kind in family.types]
    assert len(types) == len(set(types))


def test_output_that_is_not_stored(tmp_path):
    folder = checkpoint(tmp_path / "c", {"model.embed_tokens.weight": values()}, {"model_type": "llama"})
    found = find_tables(open_checkpoint(folder))
    assert (found.output, found.flag.tied, found.head) == (None, False, True)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("LlamaForCausalLM", True),
        ("BertForMaskedLM", True),
        ("GPT2LMHeadModel", True),
        ("T5ForConditionalGeneration", True),
        ("BertModel", False),
        ("XLMRobertaModel", False),
        ("LlamaForSequenceClassification", False),
    ],
)
def test_architectures_that_predict_tokens(tmp_path, name, head):
    config = {"model_type": "llama", "architectures": [name]}
    assert find_tables(open_checkpoint(checkpoint(tmp_path / "c", {"embed_tokens.weight": values()}, config))).head is head


def test_transposed_output_and_input(tmp_path):
    tensors = {"model.embed_tokens.weight": values().T, "lm_head.weight": values(seed=1).T}
    config = {"model_type": "llama", "vocab_size": ROWS}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, config)))
    assert found.input.transposed
    assert found.output.transposed
    np.testing.assert_array_equal(found.output[2:5], values(seed=1)[2:5])


def test_tables_by_their_own_names(tmp_path):
    tensors = {"x": values(), "y": values(seed=1), "model.embed_tokens.weight": values(5, 4)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"}))
    found = find_tables(opened, "x", "y")
    assert (found.input.name, found.output.name) == ("x", "y")
    refused(lambda: find_tables(opened, "x", "x"), "--output_table x", "itself")
    refused(lambda: find_tables(opened, "x", "z"), "--output_table z", "no such tensor")
    refused(lambda: find_tables(opened, None, "x"), "--output_table x", f"[{ROWS}, 4]", "[5, 4]", "one row per token")


def test_head_that_does_not_fit_is_no_tied_model(tmp_path):
    tensors = {"model.embed_tokens.weight": values(), "lm_head.weight": values(ROWS + 1, 4)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"}))
    refused(lambda: find_tables(opened), "lm_head.weight", f"[{ROWS + 1}, 4]", f"[{ROWS}, 4]")


def test_several_and_no_candidates(tmp_path):
    tensors = {"a.wte.weight": values(), "b.wte.weight": values(seed=1)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "gpt2"}))
    refused(lambda: find_tables(opened), "several", "input", "--input_table", "a.wte.weight", "b.wte.weight")
    opened = open_checkpoint(checkpoint(tmp_path / "d", {"in.weight": values(), "w": values(3, 3)}))
    refused(lambda: find_tables(opened), "no tensor", "--input_table", f"in.weight [{ROWS}, 4]")
    tensors = {"wte.weight": values(), "lm_head.weight": values(seed=1), "two.lm_head.weight": values(seed=2)}
    opened = open_checkpoint(checkpoint(tmp_path / "e", tensors, {"model_type": "gpt2"}))
    refused(lambda: find_tables(opened), "several", "output", "--output_table")


def test_flag():
    assert flag_of({"model_type": "llama", "tie_word_embeddings": True}).tied is True
    nested = {"model_type": "seen", "text_config": {"model_type": "gemma3_text", "tie_word_embeddings": False}}
    assert flag_of(nested) == (False, "text_config.tie_word_embeddings: false")
    assert flag_of({"model_type": "seen", "text_config": {"model_type": "gemma3_text"}}).tied is True
    assert flag_of({"model_type": "mt5"}).tied is None
    assert flag_of({"tie_word_embeddings": "yes"}).tied is None


def test_scales_are_noted(tmp_path):
    config = {"model_type": "gemma", "final_logit_softcapping": 30.0, "logit_scale": 1.0}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", {"embed_tokens.weight": values()}, config)))
    assert any("square root of the width" in note for note in found.notes)
    assert [note for note in found.notes if re.search("final_logit_softcapping 30", note) and "logit_scale" not in note]


def test_a_table_is_one_for_the_analysis(tmp_path):
    from tiejax.geometry.tables import Table

    opened = open_checkpoint(checkpoint(tmp_path / "c", {"t": values()}))
    found = table(opened, "t", "--input_table")
    assert isinstance(found, HubTable)
    assert isinstance(found, Table)
