"""Opening checkpoints in the hub's format: shards, headers, and broken checkpoints."""

import json
import os

import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, refused, values
from safetensors.numpy import save_file

from tiejax.checkpoints.diagnose.tables import INPUT
from tiejax.checkpoints.hub.checkpoint import INDEX, open_checkpoint
from tiejax.checkpoints.hub.tables import table


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {"a": values(seed=1)}, file="model-1.safetensors")
    checkpoint(folder, {"b": values(seed=2)}, file="model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    for indexed in (False, True):  # the index is not needed
        if indexed:
            (folder / INDEX).write_text(json.dumps(index))
        opened = open_checkpoint(folder)
        assert {name: one.file.name for name, one in opened.tensors.items()} == index["weight_map"]
        np.testing.assert_array_equal(table(opened, "b", INPUT)[0:ROWS], values(seed=2))


OUTSIDE = "not the name of a file in the same folder"


def write_index(folder, content):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / INDEX).write_text(content)


def truncate(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])


def index_of(name):
    """Make the index name a valid file outside the folder."""

    def spoil(folder):
        (folder.parent / "outside.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        write_index(folder, json.dumps({"weight_map": {"t": name.format(parent=folder.parent)}}))

    return spoil


def pipe(name):
    def spoil(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config is invalid JSON": (lambda f: (f / "config.json").write_text("{"), "config.json", "invalid JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "config.json", "object", "list"),
    "config is binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json", "invalid JSON"),
    "config is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        "config.json",
        "cannot be read",
    ),
    "truncated": (truncate, "model.safetensors", "damaged or truncated"),
    "empty file": (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors", "damaged or truncated"),
    "random bytes": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 99),
        "model.safetensors",
        "damaged or truncated",
    ),
    "no tensors": (lambda f: save_file({}, f / "model.safetensors"), "no tensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights", "safetensors"),
    "only pickle": (only_pickle, "pytorch_model.bin", "pickle", "arbitrary code", "safetensors"),
    "index is invalid JSON": (lambda f: write_index(f, "nothing"), INDEX, "invalid JSON"),
    "index without a map": (lambda f: write_index(f, "{}"), INDEX, "weight_map"),
    "index of numbers": (lambda f: write_index(f, '{"weight_map": {"t": 3}}'), INDEX, "weight_map"),
    "index with a file in the parent folder": (
        index_of("../outside.safetensors"),
        INDEX,
        "'../outside.safetensors'",
        OUTSIDE,
    ),
    "index with an absolute path": (
        index_of("{parent}/outside.safetensors"),
        INDEX,
        "outside.safetensors",
        OUTSIDE,
    ),
    "index with a Windows path": (index_of(r"..\\outside.safetensors"), INDEX, OUTSIDE),
    "index with NUL": (index_of("a\0b"), INDEX, r"a\x00b", OUTSIDE),
    "index with the folder itself": (index_of("."), INDEX, OUTSIDE),
    "weights are a pipe": (pipe("model.safetensors"), "model.safetensors", "named pipe"),
    "config is a pipe": (pipe("config.json"), "config.json", "named pipe"),
    "index is a pipe": (lambda f: (write_index(f, ""), pipe(INDEX)(f)), INDEX, "named pipe"),
    "shard is a pipe": (
        lambda f: (write_index(f, '{"weight_map": {"t": "model-2.safetensors"}}'), pipe("model-2.safetensors")(f)),
        "model-2.safetensors",
        "named pipe",
    ),
    "missing shard": (
        lambda f: write_index(f, '{"weight_map": {"t": "model-1.safetensors", "u": "model-2.safetensors"}}'),
        "model-2.safetensors, named in",
        "not found",
    ),
    "duplicate name": (
        lambda f: write_index(f, "") or (f / INDEX).unlink() or save_file({"t": values()}, f / "b.safetensors"),
        "b.safetensors",
        "model-1.safetensors",
        "both contain t",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_checkpoints(tmp_path, name):
    spoil, *words = BROKEN[name]
    folder = checkpoint(tmp_path / "c", {"t": values()})
    spoil(folder)
    refused(lambda: open_checkpoint(folder), *words)


def test_not_a_folder(tmp_path):
    refused(lambda: open_checkpoint(tmp_path / "none"), "none", "not found")
    (tmp_path / "file.safetensors").write_bytes(b"")
    refused(lambda: open_checkpoint(tmp_path / "file.safetensors"), "is a file", "folder that contains it")


def test_link_to_a_file_outside_the_folder(tmp_path):
    """The hub's cache stores files like this."""
    folder = checkpoint(tmp_path / "c", {"t": values()})
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model-1.safetensors").symlink_to(tmp_path / "blob")
    (folder / INDEX).write_text('{"weight_map": {"t": "model-1.safetensors"}}')
    assert list(open_checkpoint(folder).tensors) == ["t"]


def sharded(folder, weight_map=None, **metadata):
    """Write two shards, and an index that lists `weight_map`."""
    checkpoint(folder, {"a": values(seed=1), "b": values(seed=2)}, file="model-1.safetensors")
    checkpoint(folder, {"c": values(seed=3)}, file="model-2.safetensors")
    right = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    index = {"metadata": {"total_size": 1}, "weight_map": right if weight_map is None else weight_map}
    (folder / INDEX).write_text(json.dumps(index | metadata))
    return folder


ONE, OTHER = "model-1.safetensors", "model-2.safetensors"
STALE = {
    "right": ({"a": ONE, "b": ONE, "c": OTHER}, "abc", []),
    "omits": ({"a": ONE, "c": OTHER}, "abc", ["omits b, which transformers 4 initialises at random"]),
    "lists": ({"a": ONE, "b": ONE, "c": OTHER, "d": ONE}, "abc", ["lists d, which no shard contains"]),
    "wrong shard": ({"a": OTHER, "b": ONE, "c": ONE}, "abc", ["names the wrong shard for a, c"]),
    "omits a shard": ({"a": ONE, "b": ONE}, "ab", []),
    "two faults": ({"a": ONE, "d": OTHER}, "abc", ["omits b, c", "lists d"]),
}


@pytest.mark.parametrize("name", STALE)
def test_tensors_are_those_of_the_shards_that_the_index_lists(tmp_path, name):
    weight_map, tensors, clauses = STALE[name]
    opened = open_checkpoint(sharded(tmp_path / "c", weight_map))
    assert "".join(sorted(opened.tensors)) == tensors
    assert len(opened.stale) == len(clauses)
    assert all(found.startswith(clause) for found, clause in zip(opened.stale, clauses, strict=True))


def test_index_without_metadata_and_without_an_index(tmp_path):
    assert "has no metadata" in open_checkpoint(sharded(tmp_path / "c", metadata=None)).stale[0]
    (tmp_path / "c" / INDEX).unlink()
    assert open_checkpoint(tmp_path / "c").stale[0].startswith("is missing")


def test_two_sets_of_weights(tmp_path):
    """The single file is read; shards without an index, another set of shards and other names count as a set too."""
    folder = sharded(tmp_path / "c")
    assert open_checkpoint(folder).twice is None
    save_file({"c": values()}, folder / "model-3.safetensors")
    assert open_checkpoint(folder).twice.startswith("model-2.safetensors and model-3.safetensors are two sets")
    (folder / "model-3.safetensors").unlink()
    save_file({"a": values()}, folder / "model.safetensors")
    opened = open_checkpoint(folder)
    assert opened.twice.startswith(
        "model.safetensors and model-1.safetensors are two sets of weights (both contain a), of which"
    )
    assert opened.twice.endswith("loaders read model.safetensors")
    assert list(opened.tensors) == ["a"]


def test_tensor_in_two_shards(tmp_path):
    folder = sharded(tmp_path / "c")
    save_file({"a": values(), "c": values()}, folder / OTHER)
    opened = open_checkpoint(folder)
    assert (opened.tensors["a"].file.name, opened.twice.split(",")[0]) == (OTHER, f"{ONE} and {OTHER} both contain a")


def test_adapter_names_its_base(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    save_file({"base_model.model.lm_head.lora_A.weight": values()}, tmp_path / "c" / "adapter_model.safetensors")
    refused(lambda: open_checkpoint(tmp_path / "c"), "is an adapter (LORA) of org/base")


@pytest.mark.parametrize("numbered", [True, False])
def test_adapter_beside_shards_without_an_index_is_not_read(tmp_path, numbered):
    """Numbered shards need no other file; of files without numbers, all but an adapter are weights."""
    files = [f"model-0000{place}-of-00002.safetensors" if numbered else f"{place}.safetensors" for place in (1, 2)]
    for name, file in zip("ab", files, strict=True):
        folder = checkpoint(tmp_path / "c", {name: values()}, {}, file)
    others = ["adapter_model.safetensors", "adapter_model-00001-of-00001.safetensors"]
    for file in [*others, "optimizer.safetensors"] if numbered else others:
        checkpoint(folder, {f"base_model.model.{file}": values()}, {}, file)
    (folder / "adapter_config.json").write_text("{}")
    assert {name: tensor.file.name for name, tensor in open_checkpoint(folder).tensors.items()} == dict(
        zip("ab", files, strict=True)
    )
