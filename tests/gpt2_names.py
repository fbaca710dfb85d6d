"""Parameters of our GPT-2 by their names in transformers, for tests that compare the two."""

import numpy as np

from tiejax.training.stack import stack_of

OURS = {
    "attn.c_attn": ("qkv", "kernel"),
    "attn.c_proj": ("out", "kernel"),
    "mlp.c_fc": ("feed_forward_in", "kernel"),
    "mlp.c_proj": ("feed_forward_out", "kernel"),
    "ln_1": ("attention_norm", "scale"),
    "ln_2": ("feed_forward_norm", "scale"),
}


def named(params, reads):
    """Return all parameters except the output table, as numpy arrays; reads: the slot whose weights each layer has."""
    stack, norm = stack_of(params, "encoder/layers"), params["encoder"]["final_norm"]
    leaves = {
        "transformer.wte.weight": params["embed"]["embedding"],
        "transformer.wpe.weight": params["positions"]["embedding"],
        "transformer.ln_f.weight": norm["scale"],
        "transformer.ln_f.bias": norm["bias"],
    }
    for layer, slot in enumerate(reads):
        for theirs, (own, weight) in OURS.items():
            leaves[f"transformer.h.{layer}.{theirs}.weight"] = stack[own][weight][slot]
            leaves[f"transformer.h.{layer}.{theirs}.bias"] = stack[own]["bias"][slot]
    return {name: np.asarray(leaf) for name, leaf in leaves.items()}
