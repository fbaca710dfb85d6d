"""Vectors of a checkpoint, such as biases, read as finite numbers and rounded to the dtype of the file."""

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.arrays import read
from tiejax.checkpoints.hub.checkpoint import Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.tables import DTYPES


def vector(tensor: Tensor, length: int) -> Float[np.ndarray, "length"]:
    """Return a tensor [length] or [1, length] in float32; raises CheckpointError for other shapes or non-finite values."""
    if tensor.shape not in ((length,), (1, length)) or tensor.dtype not in DTYPES:
        kinds = ", ".join(DTYPES.values())
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is {list(tensor.shape)} {tensor.dtype}; expected [{length}], in one of {kinds}"
        )
    ((_, stored),) = read([tensor])
    with np.errstate(over="ignore"):
        values: np.ndarray = stored.reshape(length).astype(np.float32)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{tensor.file}: {tensor.name} has a value that is not finite in float32")
    return values


def rounded(values: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Round values to a dtype given in safetensors' spelling.

    Raises CheckpointError, naming the tensor, if a value overflows the dtype.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(DTYPES[dtype])
    if not np.isfinite(converted).all():
        raise CheckpointError(f"{name}: contains a value too large for {DTYPES[dtype]}")
    return converted
