"""What the transformers library does to the logits of a family, and to the hidden states before its output table."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import text_part

SMALLEST, LARGEST = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
# By `model_type`, with the library's defaults: it multiplies logits by a factor, divides them by one, or computes
# cap * tanh(logits / cap), the cap last. Other families may have such keys; the library does not read them there.
SCALE, SCALING, MULTIPLIER = "logit_scale", "logits_scaling", "lm_head_multiplier"
FACTORS = {
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), (SCALE, 0.0625)),
    "cohere_compass_text": (SCALE, None),
    **{"hyperclovax": (SCALING, 1.0), "hyperclovax_vision_v2": (SCALING, 1.0), "falcon_h1": (MULTIPLIER, 1.0)},
    "muse_glimmer": ("output_multiplier", 0.19611613513818404),
}
DIVISORS = {  # `logits_scaling`
    **dict.fromkeys(("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "granite_swa", "granitemoe_swa"), 1.0),
    "granite_docling": 4.0,
}
CAP = "final_logit_softcapping"
CAPS = {
    **{"gemma2": 30.0, "gemma3_text": None, "gemma3n": 30.0, "gemma3n_text": 30.0, "vaultgemma": 30.0, "nanochat": 15.0},
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), None),
    **{"beam": 30.0, "mistral_large4": 30.0, "muse_glimmer": 20.0, "paligemma": None, "recurrent_gemma": 30.0, "t5gemma": 30.0},
    **{"inkling2_text": 30.0, "inkling2_loop_text": 30.0},
}
CAP_KEYS = {"recurrent_gemma": "logits_soft_cap"}
# The classes of this type divide hidden states by hidden_size / dim_model_base before the output table.
BASE_WIDTH = {"minicpm3": ("dim_model_base", 256)}

Transform = Callable[[np.ndarray], np.ndarray]  # of logits


def logit_transform(config: dict[str, Any]) -> Transform:
    """Return the function of a model's logits before its softmax: cap * tanh(factor * l / cap), or factor * l without a cap.

    Raises CheckpointError for a number in the configuration that is not finite or not above 0.
    """
    kind, text = str(config.get("model_type")), _text(config)
    factor, cap = 1.0, 0.0  # without a cap
    if kind in FACTORS:
        key, default = FACTORS[kind]
        given = text.get(key, default)
        factor = 1.0 if given is None and default is None else _number(key, given)
    if kind in DIVISORS:
        factor = 1 / _number(SCALING, text.get(SCALING, DIVISORS[kind]))
    default_cap = CAPS["gemma2"] if kind == "paligemma" and text.get("model_type") == "gemma2" else CAPS.get(kind)
    key = CAP_KEYS.get(kind, CAP)
    if kind in CAPS and (given := text.get(key, default_cap)) is not None:
        cap = _number(key, given)
    return lambda logits: cap * np.tanh(logits * factor / cap) if cap else logits * factor


def states_factor(config: dict[str, Any], width: int) -> float:
    """Return the factor between the last normalisation and the output table, of states of this width."""
    kind = str(config.get("model_type"))
    if kind not in BASE_WIDTH:
        return 1.0
    key, default = BASE_WIDTH[kind]
    base = config.get(key, default)
    return 1.0 if base is None else _number(key, base) / width


def _text(config: dict[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration on the model of text: its decoder, or its `text_config`, or all of it."""
    decoder = config.get("decoder")
    return decoder if config.get("model_type") == "t5gemma" and isinstance(decoder, dict) else text_part(config)


def _number(key: str, value: object) -> float:
    """Return a number of a configuration, checked to be positive and finite in float32, the transformers library's dtype."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if not SMALLEST <= number <= LARGEST:
        raise CheckpointError(f"config.json: {key}: expected a finite number above 0, got {str(value)[:20]}")
    return float(number)
