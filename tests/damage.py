"""Damage to files and checkpoints."""

import random
import shutil

import pytest

from tiejax.lab.runs.checkpoints import quiet_libraries
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints


def steps(out):
    """Return the steps of the checkpoints that a run has finished writing."""
    folder = out / "checkpoints"
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()) if folder.is_dir() else []


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_a_bit_that_matters(folder, step):
    """Flip a bit that matters in a checkpoint's largest file, which has arrays, but also obsolete copies of its tables."""
    path, rng = largest(folder / str(step)), random.Random(9)
    for _ in range(40):
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        trial, messages = shutil.copytree(folder, folder.parent.parent / "trial" / "checkpoints"), []
        quiet_libraries()
        checkpoints = Checkpoints(trial, [], messages.append)
        with pytest.raises(
            CheckpointMismatch
        ):  # other settings of the run: bits are checked first, and an older step is intact
            checkpoints.restore({})
        checkpoints.close()
        shutil.rmtree(trial.parent)
        if messages:
            return
        flip(path, bit)
    pytest.fail("40 flipped bits of the arrays' file were not noticed")
