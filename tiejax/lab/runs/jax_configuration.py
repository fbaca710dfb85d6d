"""What decides the numbers of a run besides its settings: the configuration of jax, which is fixed, and the flags of XLA."""

import jax

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.environment import KNOWN_FLAGS, given_flags

# The environment can change each of these by a variable of the same name in capitals.
FIXED = {
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "threefry2x32",
    "jax_disable_jit": False,
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_random_seed_offset": 0,
    "jax_softmax_custom_jvp": False,
    "jax_threefry_partitionable": True,
}
UNSET = None  # what jax has for the precision of products unless the environment sets it


def fix_jax_configuration(console: Console) -> None:
    """Set the configuration of jax that decides numbers; warn where the environment asks for something else."""
    for name, value in FIXED.items():
        given = getattr(jax.config, name)
        given = getattr(given, "value", given)  # of an enumeration
        if given not in (value, UNSET):
            console.warn(f"{name.upper()} is {given}; a run always uses {value}")
        jax.config.update(name, value)


def other_flags() -> list[str]:
    """Return the flags of XLA that may decide numbers: those that neither tiejax sets nor the number of devices needs."""
    return sorted(flag for flag in given_flags() if flag.partition("=")[0] not in KNOWN_FLAGS)
