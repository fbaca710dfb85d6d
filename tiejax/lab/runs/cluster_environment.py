"""Environment variables that make a process one of several: those of Slurm, Open MPI and jax."""

import os
import re

from tiejax.lab.runs.environment import integer
from tiejax.lab.settings.command_line import BadInput
from tiejax.system.visible import cut

MOST_PROCESSES = 2**20


# Variables with the number of processes, the number of this process, and other numbers.
SLURM = ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_LOCALID")
OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
JAX = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# The hosts of a step of Slurm, of which jax contacts the first: node1,node2 or node[1-2,4].
NODES, FIRST_NODE = "SLURM_STEP_NODELIST", re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[0-9]+[],-]|,|$)")


def named_by() -> str | None:
    """Return a variable by which this process was started as one of several, None if it was started alone."""
    # The shell of a job has some of these variables, too; only processes started by srun have all.
    if all(name in os.environ for name in (NODES, *SLURM[1:])) and os.environ.get(SLURM[0], "1") != "1":
        return SLURM[0]
    if "OMPI_MCA_orte_hnp_uri" in os.environ and os.environ.get(OPEN_MPI[0], "1") != "1":
        return OPEN_MPI[0]
    return "JAX_COORDINATOR_ADDRESS" if "JAX_COORDINATOR_ADDRESS" in os.environ else None


def check() -> None:
    """Raise BadInput for a variable with a value that jax would not name, or for which it would wait for minutes."""
    for of_all, of_this, *others in (SLURM, OPEN_MPI, JAX):
        processes = integer(of_all, os.environ.get(of_all, str(MOST_PROCESSES)), 1, MOST_PROCESSES)
        integer(of_this, os.environ.get(of_this, "0"), 0, processes - 1)
        for name in others:
            integer(name, os.environ.get(name, "0"), 0, 2**63 - 1)
    if (nodes := os.environ.get(NODES)) is not None and not FIRST_NODE.match(nodes):
        raise BadInput(f"{NODES}: expected names of hosts such as node1,node2 or node[1-2], got '{cut(nodes)}'")
