"""Arms that change one setting of EXor, to find what the price of tying is made of.

Importing this module does not import jax.
"""

from collections.abc import Mapping
from typing import Any

# Arm -> the settings in which it differs from the published ones.
ARM_SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "bias": {"output_bias": True},
    "asked": {"softmax": "asked"},
    "std": {"table_std": 0.5},
    "table-decay": {"table_decay": 0.0},
    "decay": {"weight_decay": 0.0},
    "fast-tables": {"table_rate": 2.0},
    "slow-tables": {"table_rate": 0.5},
    "shared": {"shared_second_moment": True},
    "equal": {"equal_tables": True},
    # AdamW depends on the ratio of the weights only, so that their scale needs no correction: these are all ratios but 1 of
    # weights among 1/4, 1 and 4.
    "input-4": {"gradient_weights": [4.0, 1.0]},
    "input-16": {"gradient_weights": [16.0, 1.0]},
    "output-4": {"gradient_weights": [1.0, 4.0]},
    "output-16": {"gradient_weights": [1.0, 16.0]},
}

# Setting -> its published value, and what another value means on a page.
CHANGES: dict[str, tuple[Any, str]] = {
    "output_bias": (False, "a trained bias of the logits"),
    "softmax": ("all", "logits normalised over the symbols that are ever asked for"),
    "table_std": (1.0, "initial tables with standard deviation {:g}"),
    "table_decay": (None, "weight decay {:g} of the tables"),
    "table_rate": (1.0, "learning rate of the tables multiplied by {:g}"),
    "shared_second_moment": (False, "Adam's second moment averaged over the rows of each table"),
    "equal_tables": (False, "untied models that start with two equal tables"),
}


def changes(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of a page's setting on model and optimizer that names what differs from the published experiment.

    Args:
        settings: resolved settings by name; a setting that is missing, as in older runs, has its published value.

    Returns:
        The row, or no row if nothing differs. Gradient weights and weight decay of all parameters are named with the training.
    """
    values = {name: settings.get(name, published) for name, (published, _) in CHANGES.items()}
    words = [text.format(values[name]) for name, (published, text) in CHANGES.items() if values[name] != published]
    return {"not as published": "; ".join(words)} if words else {}


def run_name(variant: str, arm: str) -> str:
    """Return the name of the run of an arm of a variant, which is that of its folder."""
    return variant if arm == "published" else f"{variant}-{arm}"
