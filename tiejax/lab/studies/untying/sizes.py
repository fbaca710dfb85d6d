"""What an untying run needs of memory and of the disk, in closed form: before jax is imported."""

from typing import Any

from tiejax.lab.settings.sizes import Need
from tiejax.lab.studies.exor import sizes

OPTIONS = sizes.OPTIONS


def need(settings: Any) -> Need:
    """Return what a run of resolved settings needs."""
    policies = settings.arms.policy
    return sizes.need_of_arms(settings, len(policies), by_use="split" in policies)
