"""Small tables with decaying singular values, and the best approximations of them by numpy, for tests."""

import json

import numpy as np
from hub_checkpoints import checkpoint, values
from tokenizers.pre_tokenizers import ByteLevel

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
TIED = {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 40}
UNTIED = TIED | {"tie_word_embeddings": False}
ROWS, WIDTH = 40, 6


def table(seed=0, rows=ROWS, width=WIDTH):
    """A table whose singular values decay, so that no two ranks keep the same energy."""
    return (values(rows, width, seed) * 0.6 ** np.arange(width)).astype(np.float32)


def tied(folder, **more):
    return checkpoint(folder, {EMBED: table(), NORM: values(WIDTH, 1)[:, 0], **more}, TIED)


def untied(folder, config=UNTIED, **more):
    return checkpoint(folder, {EMBED: table(), HEAD: 7 * table(1), NORM: values(WIDTH, 1)[:, 0], **more}, config)


def truncated(matrix, rank):
    u, s, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def residual(matrix, approximation):
    return np.sum((matrix.astype(np.float64) - approximation) ** 2) / np.sum(matrix.astype(np.float64) ** 2)


def with_vocabulary(folder):
    """Add a byte-level tokenizer without merges to a checkpoint, of which six letters have rows."""
    letters = [*"abcdef", *sorted(set(ByteLevel.alphabet()) - set("abcdef"))]
    (folder / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder
