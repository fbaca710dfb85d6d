"""Several processes that train together: joining, agreeing on numbers, and collecting arrays from all devices."""

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

from tiejax.system.visible import visible_line

PyTree = Any
Result = TypeVar("Result")

# A process without a heartbeat for this long is considered dead.
HEARTBEAT_S = 10
# How long finished processes wait for the first, which writes the results. If it dies, they notice by the heartbeat.
FINISH_S = 24 * 3600
# Seconds between collectives while one process works alone.
MEET_S = 2


class ProcessGone(RuntimeError):
    """Another process has ended."""


class NoCluster(ValueError):
    """The processes of a distributed run could not be connected."""


def join() -> bool:
    """Join the cluster described by the environment; must be called before jax initialises its devices.

    The environment is one that jax recognises (Slurm, Open MPI, Cloud TPU), or the variables JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID.

    Returns whether this process is the first. Raises NoCluster if there is no cluster, if it cannot be reached, or if its
    processes have different numbers of devices.
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
        here = jax.local_device_count()
    except (RuntimeError, AssertionError) as error:  # jax raises AssertionError if no platform that it may use has a device
        raise NoCluster(f"the devices cannot be started: {str(error).partition(chr(10))[0] or 'no device found'}") from None
    try:
        devices = [count for (count,) in agree([here])]
    except ProcessGone as error:
        raise NoCluster(f"another process ended during startup ({error})") from None
    if len(set(devices)) > 1:
        raise NoCluster(f"the processes have {devices} devices; all need the same number (on CPUs: JAX_NUM_CPU_DEVICES)")
    return jax.process_index() == 0


def collect(tree: PyTree) -> PyTree:
    """Return arrays, sharded or replicated, as whole numpy arrays in every process."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    leaves, treedef = jax.tree.flatten(tree)
    split = [leaf for leaf in leaves if not leaf.is_fully_replicated]
    shards = [sorted(leaf.addressable_shards, key=lambda shard: int(shard.device.id)) for leaf in split]
    mine = [np.asarray(shard.data).tobytes() for own in shards for shard in own]
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


def _replica(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf.addressable_data(0))


@functools.cache
def _gather() -> tuple[list[Any], NamedSharding, Any]:
    """Return one device per process, the sharding of rows over them, and a function that replicates the rows."""
    devices = [next(one for one in jax.devices() if one.process_index == process) for process in range(jax.process_count())]
    mesh = jax.sharding.Mesh(np.array(devices), ("processes",))
    everywhere = jax.jit(lambda rows: rows, out_shardings=NamedSharding(mesh, PartitionSpec()))
    return devices, NamedSharding(mesh, PartitionSpec("processes")), everywhere


def _exchange(mine: bytes) -> list[bytes]:
    """Exchange equally many bytes with all processes, in one collective with one device per process.

    Gloo, the backend for CPUs, confuses simultaneous collectives, and several devices of one process in a collective.
    Raises ProcessGone if another process has ended.
    """
    devices, split, everywhere = _gather()
    row = jax.device_put(np.frombuffer(mine, np.uint8)[None], devices[jax.process_index()])
    rows = jax.make_array_from_single_device_arrays((len(devices), row.shape[1]), split, [row])
    try:
        gathered = _replica(jax.block_until_ready(everywhere(rows)))
    except (RuntimeError, ValueError) as error:  # jax raises either of them
        raise ProcessGone(str(error).strip().splitlines()[0][:200]) from None
    return [row.tobytes() for row in gathered]


def agree(numbers: list[int]) -> list[list[int]]:
    """Return the numbers of every process, in the order of processes; raises ProcessGone if another has ended."""
    if jax.process_count() == 1:
        return [numbers]
    return [np.frombuffer(row, np.int64).tolist() for row in _exchange(np.asarray(numbers, np.int64).tobytes())]


def from_first(content: bytes | None) -> bytes:
    """Broadcast the bytes of process 0 to all; the others pass None."""
    mine = content or b""
    sizes = agree([len(mine)])
    if jax.process_count() == 1:
        return mine
    longest = max(size for (size,) in sizes)
    return _exchange(mine.ljust(longest, b"\0"))[0][: sizes[0][0]]


def done_by_first(work: Callable[[], bytes], expected: tuple[type[Exception], ...] = ()) -> bytes:
    """Return in every process what `work` returns in the first; expected: errors of it that are raised there (`or_die`)."""
    if jax.process_count() == 1:
        return work()

    def together() -> bytes:
        found, _ = wait_for_all(work if jax.process_index() == 0 else None)
        return from_first(found)

    return or_die(together, expected)


def wait_for_all(work: Callable[[], Result] | None) -> tuple[Result | None, bool]:
    """Do work that takes longer than the timeout of a collective, while the other processes wait in many short collectives.

    work: this process's part; None if it only waits. Returns its result (None if it only waits), and whether the work of every
    process succeeded. Raises what `work` raises in this process.
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
    """Do work that needs all processes; if it fails in a run of several, print the reason and end this process.

    The exit status is 3 if another process has ended, 4 if a file cannot be read or written, and 1 otherwise. expected: types
    of errors that all processes raise alike; these are raised instead of ending the process.
    """
    try:
        return work()
    except Exception as error:
        if jax.process_count() == 1 or isinstance(error, expected):
            raise
        line, status = "", 1
        if isinstance(error, ProcessGone):
            line, status = f"another process of this run has ended ({error}); start all processes again with --resume", 3
        elif isinstance(error, OSError) and error.filename is not None:
            line, status = f"{error.filename}: {error.strerror}; fix this, then start all processes again with --resume", 4
        if line:
            print(visible_line(line), file=sys.stderr, flush=True)
        else:
            traceback.print_exc()
        # A normal exit would wait for the other processes, which wait for this one.
        os._exit(status)
