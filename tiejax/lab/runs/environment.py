"""What the environment says of devices and processes, and is told about them, before jax is imported."""

import os
import subprocess
import sys
from pathlib import Path

from tiejax.lab.settings.command_line import BadInput
from tiejax.system.files import read_bytes

# Which the commands set themselves; to ask XLA takes seconds.
KNOWN_FLAGS = ("--xla_cpu_multi_thread_eigen", "--xla_force_host_platform_device_count", "--xla_gpu_deterministic_ops")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_device_a_core() -> None:
    """Make every core a device of jax's CPU backend, unless the environment says otherwise.

    One device over several cores spends them on waiting: its threads meet in every operation of small models.
    """
    flags = " ".join(given_flags())
    if "xla_force_host_platform_device_count" in flags or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    os.environ["JAX_NUM_CPU_DEVICES"] = str(cores())
    if "xla_cpu_multi_thread_eigen" not in flags:
        add_flags("--xla_cpu_multi_thread_eigen=false")


def add_flags(*flags: str) -> None:
    """Add flags to those of XLA; raises BadInput where XLA would not read them, which it does not say."""
    os.environ["XLA_FLAGS"] = " ".join([*given_flags(), *flags])


def given_flags() -> list[str]:
    """Return the flags of XLA that the environment holds; raises BadInput where XLA would stop reading on the way.

    XLA takes what does not begin with a dash for the name of a file of flags, and later on for the end of them.
    """
    given = os.environ.get("XLA_FLAGS", "").split()
    if given and not given[0].startswith("-"):
        file = Path(os.environ["XLA_FLAGS"])
        if not file.is_file():
            raise BadInput(f"XLA_FLAGS: {file} is neither a flag, which begins with --, nor a file of flags")
        given = read_bytes(file).decode(errors="replace").split()
    if words := [word for word in given if not word.startswith("--")]:
        raise BadInput(f"XLA_FLAGS: {words[0]} is no flag, which begins with --; XLA would not read what follows it")
    return given


def check_flags() -> None:
    """Raise BadInput for a flag that XLA does not know: it would end the process, in the middle of a run.

    Another process asks XLA, and only where there are flags that are not known here.
    """
    flags = [flag for flag in given_flags() if flag.partition("=")[0] not in KNOWN_FLAGS]
    if not flags:
        return
    asked = [sys.executable, "-c", "import jax; jax.devices()"]
    of_cpu = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(asked, env=of_cpu, capture_output=True, text=True)
    if ended.returncode:
        unknown = [flag for flag in flags if flag in ended.stderr] or flags
        raise BadInput(f"XLA_FLAGS: XLA does not take {' '.join(unknown)}")


def names_a_cluster() -> bool:
    """Say whether this process was started as one of several, by Slurm or Open MPI, or with jax's own variables."""
    # A job's shell has some of these as well; only a step started by srun has all.
    step = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")
    if all(name in os.environ for name in step) and os.environ.get("SLURM_NTASKS", "1") != "1":
        return True
    if "OMPI_MCA_orte_hnp_uri" in os.environ and os.environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return True
    return "JAX_COORDINATOR_ADDRESS" in os.environ
