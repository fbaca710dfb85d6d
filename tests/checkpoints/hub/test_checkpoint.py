"""Checkpoints in the hub's format: shards and headers, and every way to be broken."""

import json
import os

import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, refused, values
from safetensors.numpy import save_file

from tiejax.checkpoints.hub.checkpoint import INDEX, open_checkpoint
from tiejax.checkpoints.hub.families import INPUT
from tiejax.checkpoints.hub.tables import table


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {"a": values(seed=1)}, file="model-1.safetensors")
    checkpoint(folder, {"b": values(seed=2)}, file="model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    for indexed in (False, True):  # the shards alone tell as much
        if indexed:
            (folder / INDEX).write_text(json.dumps(index))
        opened = open_checkpoint(folder)
        assert {name: one.file.name for name, one in opened.tensors.items()} == index["weight_map"]
        np.testing.assert_array_equal(table(opened, "b", INPUT)[0:ROWS], values(seed=2))


def write_index(folder, content):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / INDEX).write_text(content)


def cut(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])


def leading_out(name):
    """Let the index name a sound file that is not in the folder."""

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
    "index is no JSON": (lambda f: write_index(f, "nothing"), INDEX, "not JSON"),
    "index without a map": (lambda f: write_index(f, "{}"), INDEX, "weight_map"),
    "index of numbers": (lambda f: write_index(f, '{"weight_map": {"t": 3}}'), INDEX, "weight_map"),
    "index that leads to the folder above": (
        leading_out("../outside.safetensors"),
        INDEX,
        "'../outside.safetensors'",
        "out of its",
    ),
    "index that leads anywhere": (leading_out("{parent}/outside.safetensors"), INDEX, "outside.safetensors", "out of its"),
    "index with a path of other systems": (leading_out(r"..\\outside.safetensors"), INDEX, "out of its"),
    "index with NUL": (leading_out("a\0b"), INDEX, r"a\x00b", "out of its"),
    "index of the folder": (leading_out("."), INDEX, "out of its"),
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
        "names model-2.safetensors",
        "not there",
    ),
    "missing tensor": (
        lambda f: write_index(f, '{"weight_map": {"u": "model-1.safetensors"}}'),
        "model-1.safetensors",
        "no tensor u",
    ),
    "two of one name": (
        lambda f: write_index(f, "") or (f / INDEX).unlink() or save_file({"t": values()}, f / "b.safetensors"),
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


def test_a_link_of_the_folder_may_lead_out(tmp_path):
    """As the hub's own cache keeps its files."""
    folder = checkpoint(tmp_path / "c", {"t": values()})
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model-1.safetensors").symlink_to(tmp_path / "blob")
    (folder / INDEX).write_text('{"weight_map": {"t": "model-1.safetensors"}}')
    assert list(open_checkpoint(folder).tensors) == ["t"]
