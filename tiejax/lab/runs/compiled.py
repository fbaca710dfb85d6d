"""Programs that were compiled are kept in the user's cache, so that a second start, or a resumed run, compiles in a second.

jax finds a program again by what it computes, its own version and the kind of device. Code for a CPU is for the very processor,
so each kind of processor has a folder of its own: a home directory may be shared by machines.
"""

import hashlib
import os
import platform
import warnings
from pathlib import Path

from tiejax.lab.settings.checks import default_data_dir

MOST_BYTES = 2**30
# What compiles sooner than this is as soon compiled as found.
SHORTEST_S = 0.5


def use(recompile: bool = False) -> None:
    """Tell jax, before it is imported, where compiled programs are kept; not where the environment says so already.

    recompile: compile everything, without the cache. A folder that cannot be written to is not used, and jax's warnings about
    programs that it cannot read or store are silenced: a cache is worth neither an error nor a warning.
    """
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    if recompile:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    if recompile or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path(default_data_dir()) / "compiled" / processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _mend(folder)
    except OSError:
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(SHORTEST_S))
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))


def _mend(folder: Path) -> None:
    """Remove programs that a killed process left without the time of their last use, at which jax would stop keeping any."""
    for program in folder.glob("*-cache"):
        if not program.with_name(f"{program.name.removesuffix('-cache')}-atime").exists():
            program.unlink(missing_ok=True)


def processor() -> str:
    """Return a name for this kind of processor: its architecture, and a digest of the instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(instructions.encode()).hexdigest()[:8]}"
