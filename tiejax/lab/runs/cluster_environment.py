"""Environment variables that make a process one of several: those of Slurm, Open MPI and jax."""

import os
import re
from typing import NamedTuple

from tiejax.lab.settings.command_line import BadInput
from tiejax.system.visible import cut

MOST_PROCESSES = 2**20


class Variables(NamedTuple):
    """The variables with which a process is started. processes: their number. process: that of this one. numbers: others."""

    processes: str
    process: str
    numbers: tuple[str, ...] = ()


SLURM = Variables("SLURM_NTASKS", "SLURM_PROCID", ("SLURM_JOB_ID", "SLURM_LOCALID"))
OPEN_MPI = Variables("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",))
JAX = Variables("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# The hosts of a step of Slurm, of which jax contacts the first: node1,node2 or node[1-2,4].
NODES, FIRST_NODE = "SLURM_STEP_NODELIST", re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[0-9]+[],-]|,|$)")


def named_by() -> str | None:
    """Return a variable by which this process was started as one of several, None if it was started alone."""
    # The shell of a job has some of these variables, too; only processes started by srun have all.
    step = ("SLURM_JOB_ID", NODES, "SLURM_PROCID", "SLURM_LOCALID")
    if all(name in os.environ for name in step) and os.environ.get(SLURM.processes, "1") != "1":
        return SLURM.processes
    if "OMPI_MCA_orte_hnp_uri" in os.environ and os.environ.get(OPEN_MPI.processes, "1") != "1":
        return OPEN_MPI.processes
    return "JAX_COORDINATOR_ADDRESS" if "JAX_COORDINATOR_ADDRESS" in os.environ else None


def check() -> None:
    """Raise BadInput for a variable with a value that jax would not name, or for which it would wait for minutes."""
    for variables in (SLURM, OPEN_MPI, JAX):
        processes = _integer(variables.processes, 1, MOST_PROCESSES) or MOST_PROCESSES
        _integer(variables.process, 0, processes - 1)
        for name in variables.numbers:
            _integer(name, 0, 2**63 - 1)
    if (nodes := os.environ.get(NODES)) is not None and not FIRST_NODE.match(nodes):
        raise BadInput(f"{NODES}: expected names of hosts such as node1,node2 or node[1-2], got '{cut(nodes)}'")


def _integer(name: str, least: int, most: int) -> int | None:
    """Return the value of a variable, None if it is not set; raises BadInput unless it is an integer from least to most."""
    if (value := os.environ.get(name)) is None:
        return None
    if re.fullmatch(r"[0-9]{1,19}", value) and least <= int(value) <= most:
        return int(value)
    raise BadInput(f"{name}: expected an integer from {least} to {most}, got '{cut(value)}'")
