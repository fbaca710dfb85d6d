"""Contenders: processes that train when they are asked to, each in an environment of its own, so that they can take turns."""

import contextlib
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from tiejax.lab.runs import environment
from tiejax.lab.runs.huge_pages import ALLOCATOR

K = TypeVar("K")


class Work(NamedTuple):
    """What was done: real tokens, padding left out, that so many seconds of training took in."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


Train = Callable[[float], Work]


class Contender:
    """Some processes that train side by side, as one contender. Use it in `with`: they end with it.

    make: `module:function`, which returns for a job what trains for about so many seconds. jobs: one a process.
    environment: of the processes, beside that of this one.
    """

    def __init__(self, make: str, jobs: Sequence[Any], environment: Mapping[str, str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes, self._processes = list[Connection](), list[Any]()
        with changed(environment):
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
        """Train for about so many seconds in all processes at once; return tokens per second, summed over them."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return sum(pipe.recv().rate for pipe in self._pipes)


def take_turns(contenders: Mapping[K, Contender], repeats: int, seconds: float) -> dict[K, list[float]]:
    """Return the rates of each contender, measured one after the other, contender after contender.

    Each turn begins with half as long that is not counted: while the others trained, the system may have taken back memory and
    caches, which training that is never paused keeps.
    """
    rates: dict[K, list[float]] = {name: [] for name in contenders}
    with contextlib.ExitStack() as stack:
        for contender in contenders.values():
            stack.enter_context(contender)
        for _ in range(repeats):
            for name, contender in contenders.items():
                contender.train(seconds / 2)
                rates[name].append(contender.train(seconds))
    return rates


def devices_on_cpu(a_core: bool) -> dict[str, str]:
    """Return the environment in which jax has a device a core, or one device over all cores."""
    with changed({"JAX_PLATFORMS": "cpu"}):
        if a_core:
            environment.one_device_a_core()
        else:
            os.environ["JAX_NUM_CPU_DEVICES"] = "1"
        return {name: os.environ[name] for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS") if name in os.environ}


def environment_of_sides(a_core: bool) -> dict[str, str]:
    """Return what the processes of all sides of a comparison are told: devices, which only ours reads. All inherit the rest."""
    return {**devices_on_cpu(a_core), "TOKENIZERS_PARALLELISM": "false"}


def serve(make: str, job: Any, pipe: Connection) -> None:
    """Make what trains and say so; then train for as long as is asked, until nothing more is."""
    module, function = make.split(":")
    train: Train = getattr(importlib.import_module(module), function)(job)
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(train(pipe.recv()))


@contextlib.contextmanager
def changed(environment: Mapping[str, str]) -> Iterator[None]:
    """Change the environment for a while, in which processes are started that inherit it."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def allocator() -> dict[str, str]:
    """Return what the environment, which all contenders inherit, says of memory."""
    return {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
