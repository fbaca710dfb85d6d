"""Several processes as one: how they find each other, agree, and collect what their devices hold."""

import concurrent.futures
import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tiejax.system.visible import shown

PyTree = Any
Result = TypeVar("Result")

# A process that says nothing for so long is taken for dead.
HEARTBEAT_S = 10
# How long the others wait at their end for the first, which writes what all have made: its death they notice before.
FINISH_S = 24 * 3600
# How often processes meet while one of them works.
MEET_S = 2


class ProcessGone(RuntimeError):
    """Another process did not take its part."""


class NoCluster(ValueError):
    """Processes were to work together, and nothing says which."""


def join() -> bool:
    """Join the cluster that the environment names, before jax looks for devices; say whether this process is the first.

    Either one that jax recognises (Slurm, Open MPI, Cloud TPU), or JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID. Raises NoCluster if there is none, if it cannot be reached, or if its processes have different numbers of
    devices.
    """
    given = {name: os.environ.get(f"JAX_{name.upper()}") for name in ("num_processes", "process_id")}
    try:
        numbers = {name: None if value is None else int(value) for name, value in given.items()}
        jax.distributed.initialize(
            **numbers,  # type: ignore[arg-type]
            heartbeat_timeout_seconds=HEARTBEAT_S,
            shutdown_timeout_seconds=FINISH_S,
        )
    except (ValueError, RuntimeError) as error:
        raise NoCluster(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    try:
        devices = [count for (count,) in agree([jax.local_device_count()])]
    except ProcessGone as error:
        raise NoCluster(f"another process ended at the start ({error})") from None
    if len(set(devices)) > 1:
        raise NoCluster(f"the processes have {devices} devices, all must have as many (JAX_NUM_CPU_DEVICES sets them on CPUs)")
    return jax.process_index() == 0


def collect(tree: PyTree) -> PyTree:
    """Return arrays, sharded or not, as numpy arrays that every process has in full."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    leaves, treedef = jax.tree.flatten(tree)
    split = [leaf for leaf in leaves if not leaf.is_fully_replicated]
    mine = [np.asarray(shard.data).tobytes() for leaf in split for shard in sorted(leaf.addressable_shards, key=_by_device)]
    rows = _exchange(b"".join(mine))
    whole = {id(leaf): np.empty(leaf.shape, leaf.dtype) for leaf in split}
    for process, row in enumerate(rows):
        start = 0
        for leaf in split:
            places = leaf.sharding.devices_indices_map(leaf.shape)
            for device in sorted((one for one in places if one.process_index == process), key=lambda one: one.id):
                part = whole[id(leaf)][places[device]]
                part[...] = np.frombuffer(row[start : start + part.nbytes], part.dtype).reshape(part.shape)
                start += part.nbytes
    return jax.tree.unflatten(treedef, [whole[id(leaf)] if id(leaf) in whole else _replica(leaf) for leaf in leaves])


def _by_device(shard: Any) -> int:
    return int(shard.device.id)


def _replica(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf.addressable_data(0))


@functools.cache
def _gather() -> tuple[list[Any], NamedSharding, Any]:
    """Return one device a process, how rows lie on them, and the function that brings every row to all of them."""
    devices = [next(one for one in jax.devices() if one.process_index == process) for process in range(jax.process_count())]
    mesh = jax.sharding.Mesh(np.array(devices), ("processes",))
    everywhere = jax.jit(lambda rows: rows, out_shardings=NamedSharding(mesh, PartitionSpec()))
    return devices, NamedSharding(mesh, PartitionSpec("processes")), everywhere


def _exchange(mine: bytes) -> list[bytes]:
    """Return what each process hands in, all of one length, by one collective on one device a process.

    Several collectives at once, or several devices of one process in one, are mixed up by gloo, which serves CPUs.
    Raises ProcessGone.
    """
    devices, split, everywhere = _gather()
    row = jax.device_put(np.frombuffer(mine, np.uint8)[None], devices[jax.process_index()])
    rows = jax.make_array_from_single_device_arrays((len(devices), row.shape[1]), split, [row])
    try:
        gathered = _replica(jax.block_until_ready(everywhere(rows)))
    except (RuntimeError, ValueError) as error:  # the library raises either
        raise ProcessGone(str(error).strip().splitlines()[0][:200]) from None
    return [row.tobytes() for row in gathered]


def agree(numbers: list[int]) -> list[list[int]]:
    """Return the numbers of every process, by process: one collective, at which the death of another is noticed."""
    if jax.process_count() == 1:
        return [numbers]
    return [np.frombuffer(row, np.int64).tolist() for row in _exchange(np.asarray(numbers, np.int64).tobytes())]


def from_first(content: bytes | None) -> bytes:
    """Return what process 0 has; the others hand in None."""
    mine = content or b""
    sizes = agree([len(mine)])
    if jax.process_count() == 1:
        return mine
    longest = max(size for (size,) in sizes)
    return _exchange(mine.ljust(longest, b"\0"))[0][: sizes[0][0]]


def wait_for_all(work: Callable[[], Result] | None) -> tuple[Result | None, bool]:
    """Do work that takes longer than the others could wait in one collective: they meet often, until all have done theirs.

    Return what the work returned (None without any), and whether that of every process succeeded. Raises what it raises here.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        mine = pool.submit(work) if work is not None else None
        while True:
            if mine is not None:
                concurrent.futures.wait([mine], timeout=MEET_S)
            done = mine is None or mine.done()
            failed = done and mine is not None and mine.exception() is not None
            states = [state for (state,) in agree([1 if failed else 2 if done else 0])]
            if all(states):
                return (mine.result() if mine is not None else None), min(states) == 2


def or_die(work: Callable[[], Result], expected: tuple[type[Exception], ...] = ()) -> Result:
    """Do what needs all processes; where that fails here or because another has ended, say so and end this process.

    The exit status is 3 where another process has ended, 4 where the system refuses a path, 1 otherwise. expected: errors that
    all processes raise alike, which are passed on.
    """
    try:
        return work()
    except Exception as error:
        if jax.process_count() == 1 or isinstance(error, expected):
            raise
        if isinstance(error, ProcessGone):
            line = f"another process of this run has ended ({error}); start them all again with --resume"
            print(shown(line), file=sys.stderr, flush=True)
            status = 3
        elif isinstance(error, OSError) and error.filename is not None:
            line = f"{error.filename}: {error.strerror}; mend that, then start all processes again with --resume"
            print(shown(line), file=sys.stderr, flush=True)
            status = 4
        else:
            traceback.print_exc()
            status = 1
        # An orderly exit would wait for the others, who wait for this one.
        os._exit(status)
