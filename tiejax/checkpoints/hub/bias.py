"""The bias of the logits of a checkpoint."""

from collections.abc import Sequence

from tiejax.checkpoints.hub.checkpoint import Checkpoint
from tiejax.checkpoints.hub.locate import called

BIAS_OF_BART = "final_logits_bias"  # [1, tokens]


def bias_of(checkpoint: Checkpoint, heads: Sequence[str], rows: int) -> str | None:
    """Return the name of the tensor added to the logits, None if there is none.

    heads: possible names of the output table, even if it is tied and not stored. rows: number of its rows.
    """
    own = [head.removesuffix("weight") + "bias" for head in heads]
    # BERT-like models also have a bias one level up. In a tied model it is the decoder's bias; in an untied one it is unused.
    above = [name.removesuffix("decoder.bias") + "bias" for name in own if name.endswith(".decoder.bias")]
    for wanted in (*own, *above, BIAS_OF_BART):
        for name, tensor in checkpoint.tensors.items():
            if tensor.shape in ((rows,), (1, rows)) and called(name, wanted):
                return name
    return None
