"""States on which the logits of two models are compared: those that the output table reads."""

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.rewrite.last_norm import LastNorm
from tiejax.system.files import check_file
from tiejax.system.memory import machine_memory

MOST_STATES = 2**16
COPIES = 3  # of all states, that are in memory at one time
HIDDEN, STATES = Field("hidden"), Field("states")


class States(NamedTuple):
    """What the output table reads in the old model and in the new one.

    targets: the tokens to be predicted, where they are known. by: where the states come from. whole: whether the new model was
    run, so that its new input table counts. any_scale: whether the states might as well be larger or smaller.
    """

    before: Float[np.ndarray, "states width"]
    after: Float[np.ndarray, "states width"]
    targets: Int[np.ndarray, "states"] | None
    by: str
    whole: bool
    any_scale: bool = False


def drawn(number: int, width: int, norm: LastNorm | None, seed: int) -> States:
    """Return states of random directions, as the last layer normalisation lets them through: w z + b, z ~ N(0, 1).

    norm: None gives z itself, whose scale says nothing. Raises CheckpointError where the file cannot be read, where states are
    not finite, or where they would not fit into memory.
    """
    check_memory(STATES, number, width)
    values = np.random.default_rng(seed).standard_normal((number, width), np.float32)
    if norm is not None:
        weight, bias = norm.arrays()
        with np.errstate(over="ignore", invalid="ignore"):
            values *= weight
            values += 0 if bias is None else bias
        if not np.isfinite(values).all():
            raise CheckpointError(f"{norm.weight.file}: {norm.weight.name} gives states that are not finite in float32")
    return States(values, values, None, "drawn at random", whole=False, any_scale=norm is None)


def check_memory(name: Field, number: int, width: int) -> None:
    """Raise CheckpointError, naming the setting, where so many states of this width take more memory than there is."""
    needed, there = COPIES * 4 * number * width, machine_memory()
    if there is not None and needed > there:
        raise CheckpointError(name, f": {number:,} states of width {width:,} take {needed:,} bytes; the memory has {there:,}")


def given(file: Path, width: int) -> States:
    """Return the states in a .npy file, [states, width]; raises CheckpointError where it holds anything else."""
    try:
        check_file(file)
        with warnings.catch_warnings(action="ignore"):  # of a header's numbers, which are refused below
            values = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise CheckpointError(HIDDEN, f" {file}: cannot be read: {error.strerror or error}") from None
    except Exception:  # a header is Python that numpy evaluates, and fails in as many ways
        raise CheckpointError(HIDDEN, f" {file}: is no .npy file of numbers") from None
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != width or not len(values):
        shape = list(values.shape) if isinstance(values, np.ndarray) else "several arrays"
        raise CheckpointError(HIDDEN, f" {file}: must be [states, {width}], as the output table reads them; it is {shape}")
    if values.dtype.kind != "f":
        raise CheckpointError(HIDDEN, f" {file}: must hold floating-point numbers, holds {values.dtype}")
    if len(values) > MOST_STATES:
        raise CheckpointError(HIDDEN, f" {file}: holds {len(values):,} states; at most {MOST_STATES:,} are compared")
    check_memory(HIDDEN, len(values), width)
    with np.errstate(over="ignore"):
        states = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(states).all():
        raise CheckpointError(HIDDEN, f" {file}: holds a value that is not finite in float32")
    return States(states, states, None, f"of {file.name}", whole=False)
