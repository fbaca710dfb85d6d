"""Closed-form estimates of the memory and disk space of an untying run, without importing JAX."""

from typing import Any

from tiejax.lab.settings.sizes import Need
from tiejax.lab.studies.exor import sizes

FLAGS = sizes.FLAGS


def need(settings: Any) -> Need:
    """Return the memory and disk needs of a run with resolved settings."""
    policies = settings.untie_arms.policy
    return sizes.need_of_arms(settings, len(policies), by_use="split" in policies)
