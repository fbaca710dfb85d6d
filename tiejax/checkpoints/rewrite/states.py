"""Hidden states before the output table, on which the logits of two models are compared, and the layer normalisation there."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiejax.checkpoints.hub.arrays import rounded, vector
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.families import levels
from tiejax.checkpoints.hub.locate import called
from tiejax.checkpoints.hub.reading import check_memory
from tiejax.system.files import check_file

MOST_STATES, FEWEST_STATES = 2**16, 100
COPIES = 3  # number of copies of all states in memory at one time
HIDDEN, STATES = Field("hidden"), Field("states")
# Names of the normalisation's weight, in decoders and in the heads of encoders.
OF_DECODERS = (
    *("ln_f.weight", "norm_f.weight", "model.norm.weight", "model.final_layernorm.weight"),
    *("gpt_neox.final_layer_norm.weight", "model.decoder.final_layer_norm.weight", "model.decoder.layer_norm.weight"),
    "text_decoder.layer_norm.weight",
)
OF_HEADS = (
    *("predictions.transform.LayerNorm.weight", "predictions.LayerNorm.weight", "lm_head.layer_norm.weight"),
    *("generator_predictions.LayerNorm.weight", "vocab_layer_norm.weight", "head.norm.weight"),
)
# Other heads, which read the normalisation of a decoder as the output table does.
OTHER_HEADS = {"multiple_choice_head", "score", "classifier", "qa_outputs", "v_head", "value_head", "medusa_head"}
# `model_type` of the models that multiply by weight + 1; `test_tie_parity.py` compares them with the library.
PLUS_ONE = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma", "nemotron", "qwen3_next"),
    *("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "minimax_m3_vl", "minimax_m3_vl_text"),
)


class LastNorm(NamedTuple):
    """Parameters of the layer normalisation. Its output is normalised * (weight + offset) + bias; bias: None if absent."""

    weight: Tensor
    bias: Tensor | None
    offset: float

    def arrays(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return weight + offset and bias in float32; raises CheckpointError unless they are vectors of one width."""
        width = self.weight.number
        weight = vector(self.weight, width) + np.float32(self.offset)
        return weight, None if self.bias is None else vector(self.bias, width)

    def storable(self, scale: np.ndarray) -> np.ndarray:
        """Return the scale that remains when the scaled weight is rounded to the dtype of the file; raises CheckpointError."""
        weight, _ = self.arrays()
        stored = rounded(weight * scale - self.offset, self.weight.dtype, self.weight.name).astype(np.float64) + self.offset
        return np.divide(stored, weight, out=scale.copy(), where=weight != 0)

    def scaled(self, scale: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Yield each parameter's tensor with the values that multiply the output by `scale`."""
        weight, bias = self.arrays()
        yield self.weight, weight * scale - self.offset
        if self.bias is not None and bias is not None:
            yield self.bias, bias * scale


def last_norm(checkpoint: Checkpoint, tables: Sequence[str], width: int) -> LastNorm | None:
    """Return the layer normalisation before an output table of this width, None if no usual name finds exactly one.

    tables: the names of both tables. What precedes the usual name must precede one of theirs too: another part of the model,
    such as the decoder of units of SeamlessM4T, has a normalisation of its own.
    """
    found = [
        tensor
        for name, tensor in checkpoint.tensors.items()
        if tensor.shape == (width,)
        and any(
            called(name, wanted) and any(table.startswith(name.removesuffix(wanted)) for table in tables)
            for wanted in OF_DECODERS + OF_HEADS
        )
    ]
    if len(found) != 1:
        return None
    plus_one = any(part.get("model_type") in PLUS_ONE for part in levels(checkpoint.config).values())
    bias = checkpoint.tensors.get(found[0].name.removesuffix("weight") + "bias")
    return LastNorm(found[0], bias, float(plus_one))


def other_reader(checkpoint: Checkpoint, norm: LastNorm) -> str | None:
    """Return the name of a tensor of another head that reads the normalisation, too; None if there is none."""
    if not any(called(norm.weight.name, wanted) for wanted in OF_DECODERS):
        return None
    return next((name for name in checkpoint.tensors if OTHER_HEADS & set(name.split("."))), None)


class States(NamedTuple):
    """Hidden states before the output table, in the old model and in the new one.

    targets: the tokens to predict, None if unknown. by: the source of the states, for the report. whole: whether both models
    were run, so that the new input table has an effect. any_scale: whether the scale of the states is arbitrary.
    """

    before: Float[np.ndarray, "states width"]
    after: Float[np.ndarray, "states width"]
    targets: Int[np.ndarray, " states"] | None
    by: str
    whole: bool
    any_scale: bool = False


def drawn(number: int, width: int, norm: LastNorm | None, seed: int, factor: float = 1.0) -> States:
    """Draw random states as the last layer normalisation would output them: factor (w z + b), z ~ N(0, 1).

    norm: None returns z itself, whose scale is arbitrary. Raises CheckpointError if the file cannot be read, or if the
    states are all 0 or not finite, or do not fit into memory.
    """
    check_memory((STATES, f": {number:,} states of width {width:,}"), COPIES * 4 * number * width)
    values = np.random.default_rng(seed).standard_normal((number, width), np.float32)
    if norm is not None:
        weight, bias = norm.arrays()
        with np.errstate(over="ignore", invalid="ignore"):
            values *= weight
            values += 0 if bias is None else bias
            values *= np.float32(factor)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{norm.weight.file}: the output of {norm.weight.name} is not finite in float32")
        if not values.any():
            raise CheckpointError(
                f"{norm.weight.file}: the output of {norm.weight.name} is 0, which shows no change of logits; give --hidden"
            )
    return States(values, values, None, "drawn at random", whole=False, any_scale=norm is None)


def given(file: Path, width: int) -> States:
    """Return the states in a .npy file, [states, width]; raises CheckpointError for any other content."""
    try:
        check_file(file)
        with warnings.catch_warnings(action="ignore"):  # about numbers in the header, which are checked below
            values = np.lib.format.open_memmap(file, mode="r")
    except OSError as error:
        raise CheckpointError(HIDDEN, f" {file}: cannot be read: {error.strerror or error}") from None
    except Exception:  # numpy evaluates the header as Python, so that any exception may be raised
        raise CheckpointError(HIDDEN, f" {file}: not a .npy file of numbers") from None
    if values.ndim != 2 or values.shape[1] != width or not len(values):
        raise CheckpointError(
            HIDDEN, f" {file}: expected [states, {width}], the input of the output table, got {list(values.shape)}"
        )
    if values.dtype.kind != "f":
        raise CheckpointError(HIDDEN, f" {file}: expected floating-point numbers, got {values.dtype}")
    if len(values) < FEWEST_STATES:
        raise CheckpointError(
            HIDDEN, f" {file}: has {len(values)} states; a share of states within 1 % needs at least {FEWEST_STATES}"
        )
    if len(values) > MOST_STATES:
        raise CheckpointError(HIDDEN, f" {file}: has {len(values):,} states; expected at most {MOST_STATES:,}")
    check_memory((HIDDEN, f": {len(values):,} states of width {width:,}"), COPIES * 4 * len(values) * width)
    with np.errstate(over="ignore"):
        states = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(states).all():
        raise CheckpointError(HIDDEN, f" {file}: has a value that is not finite in float32")
    if zero := int((states == 0).all(axis=1).sum()):
        raise CheckpointError(HIDDEN, f" {file}: {zero:,} of {len(states):,} states are zero, whose logits are all equal")
    return States(states, states, None, f"of {file.name}", whole=False)
