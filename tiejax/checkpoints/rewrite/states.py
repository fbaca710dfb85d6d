"""Hidden states before the output table, on which the logits of two models are compared."""

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.rewrite.last_norm import LastNorm
from tiejax.system.files import check_file
from tiejax.system.memory import machine_memory

MOST_STATES, FEWEST_STATES = 2**16, 100
COPIES = 3  # number of copies of all states in memory at one time
HIDDEN, STATES = Field("hidden"), Field("states")


class States(NamedTuple):
    """Hidden states before the output table, in the old model and in the new one.

    targets: the tokens to predict, None if unknown. by: the source of the states, for the report. whole: whether both models
    were run, so that the new input table has an effect. any_scale: whether the scale of the states is arbitrary.
    """

    before: Float[np.ndarray, "states width"]
    after: Float[np.ndarray, "states width"]
    targets: Int[np.ndarray, "states"] | None
    by: str
    whole: bool
    any_scale: bool = False


def drawn(number: int, width: int, norm: LastNorm | None, seed: int) -> States:
    """Draw random states as the last layer normalisation would output them: w z + b, z ~ N(0, 1).

    norm: None returns z itself, whose scale is arbitrary. Raises CheckpointError if the file cannot be read, or if the
    states are not finite or do not fit into memory.
    """
    check_memory(STATES, number, width)
    values = np.random.default_rng(seed).standard_normal((number, width), np.float32)
    if norm is not None:
        weight, bias = norm.arrays()
        with np.errstate(over="ignore", invalid="ignore"):
            values *= weight
            values += 0 if bias is None else bias
        if not np.isfinite(values).all():
            raise CheckpointError(f"{norm.weight.file}: the output of {norm.weight.name} is not finite in float32")
    return States(values, values, None, "drawn at random", whole=False, any_scale=norm is None)


def check_memory(name: Field, number: int, width: int) -> None:
    """Raise CheckpointError, naming the setting, if `number` states of this width do not fit into memory."""
    needed, memory = COPIES * 4 * number * width, machine_memory()
    if memory is not None and needed > memory:
        raise CheckpointError(
            name, f": {number:,} states of width {width:,} take {needed:,} bytes; this machine has {memory:,}"
        )


def given(file: Path, width: int) -> States:
    """Return the states in a .npy file, [states, width]; raises CheckpointError for any other content."""
    try:
        check_file(file)
        with warnings.catch_warnings(action="ignore"):  # about numbers in the header, which are checked below
            values = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise CheckpointError(HIDDEN, f" {file}: cannot be read: {error.strerror or error}") from None
    except Exception:  # numpy evaluates the header as Python, so that any exception may be raised
        raise CheckpointError(HIDDEN, f" {file}: not a .npy file of numbers") from None
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != width or not len(values):
        shape = list(values.shape) if isinstance(values, np.ndarray) else "several arrays"
        raise CheckpointError(HIDDEN, f" {file}: expected [states, {width}], the input of the output table, got {shape}")
    if values.dtype.kind != "f":
        raise CheckpointError(HIDDEN, f" {file}: expected floating-point numbers, got {values.dtype}")
    if len(values) < FEWEST_STATES:
        raise CheckpointError(
            HIDDEN, f" {file}: has {len(values)} states; a share of states within 1 % needs at least {FEWEST_STATES}"
        )
    if len(values) > MOST_STATES:
        raise CheckpointError(HIDDEN, f" {file}: has {len(values):,} states; expected at most {MOST_STATES:,}")
    check_memory(HIDDEN, len(values), width)
    with np.errstate(over="ignore"):
        states = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(states).all():
        raise CheckpointError(HIDDEN, f" {file}: has a value that is not finite in float32")
    if zero := int((states == 0).all(axis=1).sum()):
        raise CheckpointError(HIDDEN, f" {file}: {zero:,} of {len(states):,} states are zero, whose logits are all equal")
    return States(states, states, None, f"of {file.name}", whole=False)
