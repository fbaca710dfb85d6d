"""Several processes as one: how they find each other, agree, and collect what their devices hold."""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

PyTree = Any
Result = TypeVar("Result")

# A process that says nothing for so long is taken for dead.
HEARTBEAT_S = 10


class NoCluster(ValueError):
    """Processes were to work together, and nothing says which."""


def join() -> None:
    """Join the cluster that the environment names, before jax looks for devices.

    Either one that jax recognises (Slurm, Open MPI, Cloud TPU), or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID. Raises NoCluster if there is none, or if it cannot be reached.
    """
    given = {name: os.environ.get(f"JAX_{name.upper()}") for name in ("num_processes", "process_id")}
    try:
        numbers = {name: None if value is None else int(value) for name, value in given.items()}
        jax.distributed.initialize(**numbers, heartbeat_timeout_seconds=HEARTBEAT_S)  # type: ignore[arg-type]
    except (ValueError, RuntimeError) as error:
        raise NoCluster(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def collect(tree: PyTree) -> PyTree:
    """Return arrays, sharded or not, as numpy arrays that every process has in full."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def agree(numbers: list[int]) -> list[list[int]]:
    """Return the numbers of every process, by process: one collective, at which the death of another is noticed."""
    if jax.process_count() == 1:
        return [numbers]
    return multihost_utils.process_allgather(np.asarray(numbers, np.int32)).tolist()


def from_first(content: bytes | None) -> bytes:
    """Return what process 0 has; the others hand in None."""
    if jax.process_count() == 1:
        assert content is not None
        return content
    size = np.array([0 if content is None else len(content)], np.int32)
    size = multihost_utils.broadcast_one_to_all(size)
    block = np.zeros(int(size[0]), np.uint8)
    if content is not None:
        block[:] = np.frombuffer(content, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(block)).tobytes()


def or_die(work: Callable[[], Result], expected: tuple[type[Exception], ...]) -> Result:
    """Do what needs all processes; where one of them has ended, say so and end this one with status 3.

    expected: errors of this process itself, which are passed on.
    """
    try:
        return work()
    except Exception as error:
        if jax.process_count() == 1 or isinstance(error, expected):
            raise
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        print(
            f"another process of this run has ended ({reason}); start them all again with --resume", file=sys.stderr, flush=True
        )
        # An orderly exit would wait for the process that is gone.
        os._exit(3)
