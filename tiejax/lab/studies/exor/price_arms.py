"""Arms that change one setting of EXor, to find what the price of tying is made of.

Importing this module does not import jax.
"""

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
}


def run_name(variant: str, arm: str) -> str:
    """Return the name of the run of an arm of a variant, which is that of its folder."""
    return variant if arm == "published" else f"{variant}-{arm}"
