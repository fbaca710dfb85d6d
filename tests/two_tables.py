"""Checkpoints with an input and an output table, and their diagnosis, for tests."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tiejax.checkpoints.diagnose.checkpoint import diagnose_checkpoint
from tiejax.checkpoints.diagnose.options import Options

NAMES = "model.embed_tokens.weight", "lm_head.weight"

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "<b>", "on", "."]


def pair(rows=40, width=4, noise=0.3):
    """Return two tables that are partly related by a linear map."""
    random = np.random.default_rng(0)
    first = random.normal(size=(rows, width))
    second = first @ random.normal(size=(width, width)) + noise * random.normal(size=(rows, width)) + 0.5
    return first.astype(np.float32), second.astype(np.float32)


def make(folder, tensors, file="model.safetensors", tokens=None, **config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / file)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    if tokens:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return folder


def results_of(folder, **options):
    """Return results.json and the arrays of metrics.npz of the diagnosis of a checkpoint."""
    return diagnose_checkpoint(Path(folder), Options(**options))
