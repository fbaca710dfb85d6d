"""Small runs on text: their command lines and metrics."""

import shlex
from pathlib import Path

import numpy as np

SMALL = shlex.split("""
  --vocab_size 400 --layers 1 --width 16 --heads 2 --feed_forward 32 --max_length 32 --batch_size 12 --validation_batches 2
  --record_every 10 --validate_every 25 --learning_rate .003
""")


def arguments(data: Path, *more: object) -> list[str]:
    """The command line of a small run on the corpus in `data`."""
    return ["--corpus", str(data / "corpus"), "--data_dir", str(data / "prepared"), *SMALL, *map(str, more)]


def metrics(out: Path) -> dict[str, np.ndarray]:
    with np.load(out / "metrics.npz") as arrays:
        return dict(arrays)
