"""What the environment says of devices and processes, and is told about them, before jax is imported."""

import os


def one_device_a_core() -> None:
    """Make every core a device of jax's CPU backend, unless the environment says otherwise.

    One device over several cores spends them on waiting: its threads meet in every operation of small models.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" in flags or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ["JAX_NUM_CPU_DEVICES"] = str(cores)
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()


def names_a_cluster() -> bool:
    """Say whether this process was started as one of several: by Slurm, Open MPI, on a TPU pod, or by jax's own variables."""
    if os.environ.get("SLURM_JOB_ID") and os.environ.get("SLURM_NTASKS", "1") != "1":
        return True
    if "OMPI_MCA_orte_hnp_uri" in os.environ and os.environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return True
    return "," in os.environ.get("TPU_WORKER_HOSTNAMES", "") or "JAX_COORDINATOR_ADDRESS" in os.environ
