"""The cache of compiled programs, with which a second or resumed run compiles within a second.

jax identifies a program by its computation, the version of jax and the kind of device. CPU code is specific to the processor,
and machines may share a home directory: each kind of processor has a separate folder.
"""

import hashlib
import os
import platform
import warnings
from pathlib import Path

from tiejax.lab.runs import environment
from tiejax.lab.settings.checks import default_data_dir

MOST_BYTES = 2**30
# Faster compilations are not cached: a cache lookup would take as long.
SHORTEST_S = 0.5


def use(recompile: bool = False) -> None:
    """Set the folder of compiled programs in the environment of jax, before jax is imported, unless it is set already.

    recompile: compile everything, without the cache. A folder that cannot be written to is not used, and jax's warnings about
    programs that it cannot read or store are silenced, since a run does not need the cache.
    """
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    if recompile:
        environment.set_variable("JAX_ENABLE_COMPILATION_CACHE", False)
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
    environment.set_variable("JAX_COMPILATION_CACHE_DIR", str(folder))
    others = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": SHORTEST_S, "JAX_COMPILATION_CACHE_MAX_SIZE": MOST_BYTES}
    for name, value in others.items():
        if name not in os.environ:
            environment.set_variable(name, value)


def _mend(folder: Path) -> None:
    """Remove programs that a killed process left without a time of last use; a single one makes jax stop caching."""
    for program in folder.glob("*-cache"):
        if not program.with_name(f"{program.name.removesuffix('-cache')}-atime").exists():
            program.unlink(missing_ok=True)


def processor() -> str:
    """Return a name for this kind of processor: its architecture and a digest of its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()}-{hashlib.sha256(instructions.encode()).hexdigest()[:8]}"
