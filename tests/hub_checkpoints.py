"""Small checkpoints in the hub's format, and an assertion that one is rejected."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from tiejax.checkpoints.hub.errors import CheckpointError

ROWS, WIDTH = 23, 4


def values(rows=ROWS, width=WIDTH, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(dtype)


def checkpoint(folder, tensors, config=None, file="model.safetensors"):
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / file)
    (folder / "config.json").write_text(json.dumps(config or {}))
    return folder


def refused(call, *words):
    """Assert that a call raises a CheckpointError of one line with all `words`; options have dashes only on a command line."""
    with pytest.raises(CheckpointError) as error:
        call()
    message = error.value.as_options()
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, message
    assert str(error.value) == message.replace("--", "")


def sparse_checkpoint(folder, tensors, config, file="model.safetensors"):
    """Write a checkpoint whose float32 tensors, given by shape, are a hole in its file: any size takes no space on the disk."""
    folder.mkdir()
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / file).open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
