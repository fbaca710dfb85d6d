"""Contenders of a comparison: processes with their own environment that train on request, so that they can take turns."""

import contextlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.study import Entry, function_of

K = TypeVar("K")
S = TypeVar("S", bound=str)

# Variables that decide how memory is allocated, on all sides; GLIBC_TUNABLES=glibc.malloc.hugetlb=1 asks for huge pages.
ALLOCATOR = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD")


class Work(NamedTuple):
    """Work done by some training: real tokens (padding not counted) in `seconds` seconds."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


Train = Callable[[float], Work]  # trains for about as many seconds as its argument


class Side(NamedTuple):
    """A side of a comparison.

    label: its name in the output. packages: those it needs. train: the function that builds its `Train` from a job, a string if
    its module can be imported only if the packages are installed.
    """

    label: str
    packages: Sequence[str]
    train: Entry

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [name for name in self.packages if not importlib.util.find_spec(name)]


def installed(sides: Mapping[S, Side], console: Console) -> list[S]:
    """Return the sides whose packages are installed, and print a line for each of the others."""
    for side in sides.values():
        if missing := side.missing():
            console.say(f"{', '.join(missing)} not installed: {side.label} is left out (pip install -e '.[parity]')")
    return [name for name, side in sides.items() if not side.missing()]


class Contender:
    """Processes that train at the same time and are measured together. A context manager: the processes end with it.

    make: builds the `Train` of a process from its job: a top-level function of a module, or "module:name" of one. jobs: one per
    process. environment: variables of the processes, added to those of this one.
    """

    def __init__(self, make: Entry, jobs: Sequence[Any], environment: Mapping[str, str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes, self._processes = list[Connection](), list[Any]()
        with mock.patch.dict(os.environ, environment):
            for job in jobs:
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=serve, args=(make, job, theirs), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)

    def __enter__(self) -> "Contender":
        for pipe in self._pipes:
            pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(10)
            process.kill()

    def train(self, seconds: float) -> float:
        """Train for about `seconds` seconds in all processes at once; return tokens per second, summed over the processes."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return sum(pipe.recv().rate for pipe in self._pipes)


def compare(settings: Any, sides: Mapping[K, tuple[Entry, Sequence[Any], Mapping[str, str]]]) -> dict[K, list[float]]:
    """Return `settings.repeats` rates per side. Each round measures every side once, one after the other.

    A turn begins with half of `settings.seconds` of training that are not counted: while the others trained, the system may
    have reclaimed memory and caches, which uninterrupted training would keep. sides: the arguments of each `Contender`.
    """
    contenders = {name: Contender(*side) for name, side in sides.items()}
    rates: dict[K, list[float]] = {name: [] for name in sides}
    with contextlib.ExitStack() as stack:
        for contender in contenders.values():
            stack.enter_context(contender)
        for _ in range(settings.repeats):
            for name, contender in contenders.items():
                contender.train(settings.seconds / 2)
                rates[name].append(contender.train(settings.seconds))
    return rates


def devices_on_cpu(device_a_core: bool) -> dict[str, str]:
    """Return the environment variables that give jax one CPU device per core, or one CPU device that uses all cores."""
    with mock.patch.dict(os.environ, JAX_PLATFORMS="cpu"):
        if device_a_core:
            environment.one_device_a_core()
        else:
            os.environ["JAX_NUM_CPU_DEVICES"] = "1"
        return {name: os.environ[name] for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS") if name in os.environ}


def environment_of_sides(device_a_core: bool) -> dict[str, str]:
    """Return the environment variables for the processes of all sides of a comparison. Only jax reads those for devices."""
    return {**devices_on_cpu(device_a_core), "TOKENIZERS_PARALLELISM": "false"}


def serve(make: Entry, job: Any, pipe: Connection) -> None:
    """Build the `Train` of a job and report that it is ready; then answer requests to train until the pipe is closed."""
    train: Train = function_of(make)(job)
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(train(pipe.recv()))


def allocator() -> dict[str, str]:
    """Return the environment variables that configure the memory allocator; all contenders inherit them."""
    return {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
