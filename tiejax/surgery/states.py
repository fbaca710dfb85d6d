"""States on which the logits of two models are compared: those that the output table reads."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.hub.errors import CheckpointError, Field
from tiejax.outside.files import check_file
from tiejax.surgery.last_norm import LastNorm


class States(NamedTuple):
    """What the output table reads in the old model and in the new one.

    targets: the tokens to be predicted, where they are known. by: where the states come from. whole: whether the new model was
    run, so that its new input table counts.
    """

    before: Float[np.ndarray, "states width"]
    after: Float[np.ndarray, "states width"]
    targets: Int[np.ndarray, "states"] | None
    by: str
    whole: bool


def drawn(number: int, width: int, norm: LastNorm | None, seed: int) -> States:
    """Return states of random directions, as the last layer normalisation lets them through: w z + b, z ~ N(0, 1).

    norm: None gives z itself. Raises CheckpointError where the file cannot be read.
    """
    values = np.random.default_rng(seed).standard_normal((number, width), np.float32)
    if norm is not None:
        weight, bias = norm.arrays()
        values = values * weight + (0 if bias is None else bias)
    return States(values, values, None, "drawn at random", whole=False)


def given(file: Path, width: int) -> States:
    """Return the states in a .npy file, [states, width]; raises CheckpointError where it holds anything else."""
    name = Field("hidden")
    try:
        check_file(file)
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise CheckpointError(name, f" {file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        raise CheckpointError(name, f" {file}: is no .npy file of numbers") from None
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != width or not len(values):
        shape = list(values.shape) if isinstance(values, np.ndarray) else "several arrays"
        raise CheckpointError(name, f" {file}: must be [states, {width}], as the output table reads them; it is {shape}")
    if values.dtype.kind != "f":
        raise CheckpointError(name, f" {file}: must hold floating-point numbers, holds {values.dtype}")
    states = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(states).all():
        raise CheckpointError(name, f" {file}: holds a value that is not finite")
    return States(states, states, None, f"of {file.name}", whole=False)
