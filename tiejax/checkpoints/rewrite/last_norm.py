"""The layer normalisation directly before the output table of a checkpoint."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tiejax.checkpoints.hub.arrays import rounded, vector
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.families import levels
from tiejax.checkpoints.hub.locate import called

# Names of the normalisation's weight, in decoders and in the heads of encoders.
NAMES = (
    *("ln_f.weight", "norm_f.weight", "model.norm.weight", "model.final_layernorm.weight"),
    *("gpt_neox.final_layer_norm.weight", "model.decoder.final_layer_norm.weight", "model.decoder.layer_norm.weight"),
    *("predictions.transform.LayerNorm.weight", "predictions.LayerNorm.weight", "lm_head.layer_norm.weight"),
    *("generator_predictions.LayerNorm.weight", "vocab_layer_norm.weight", "head.norm.weight"),
)
PLUS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text")  # `model_type` of the models that multiply by weight + 1


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


def last_norm(checkpoint: Checkpoint, width: int) -> LastNorm | None:
    """Return the layer normalisation before an output table of this width, None if no usual name finds exactly one."""
    found = [
        tensor
        for name, tensor in checkpoint.tensors.items()
        if tensor.shape == (width,) and any(called(name, wanted) for wanted in NAMES)
    ]
    if len(found) != 1:
        return None
    plus_one = any(part.get("model_type") in PLUS_ONE for part in levels(checkpoint.config).values())
    bias = checkpoint.tensors.get(found[0].name.removesuffix("weight") + "bias")
    return LastNorm(found[0], bias, float(plus_one))
