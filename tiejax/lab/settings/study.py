"""A study as a command: its settings, its command line and the functions that run it."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tiejax.lab.settings.command_line import CommandLine
from tiejax.lab.settings.sizes import Flags, Need

SWITCHES = {
    "resume": "continue the interrupted run in the run directory; the results equal those of an uninterrupted run",
    "overwrite": "delete the run in the run directory and start from scratch",
    "distributed": "train together with the other processes of the cluster that started this one (as on a TPU pod); not needed "
    "under Slurm and Open MPI, or if JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set",
    "quiet": "print only warnings and the path of the report",
    "recompile": "compile everything from scratch, without the cache of compiled programs",
    "deterministic": "use GPU operations that give the same bits every time (slower); CPUs always do",
}


Entry = str | Callable[..., Any]  # a function, or "module:name" of one, whose module is imported when it is called


def function_of(entry: Entry) -> Callable[..., Any]:
    """Return the function of an entry point."""
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


class Sizes(Protocol):
    """The module `sizes.py` of a study, which counts memory and disk in closed form and loads no jax."""

    @property
    def FLAGS(self) -> Flags:
        """The settings that decide each purpose of the need."""

    def need(self, settings: Any, /) -> Need:
        """Return the bytes that a run with resolved settings needs."""


@dataclasses.dataclass(frozen=True)
class Study:
    """A study as a command. Its settings load no jax; functions that need jax are named as "module:name" (`Entry`).

    Args:
        name: the study's name in a run directory
        settings: dataclass of the settings, with a field `out` and a method `resolved`, which fills in every default or raises
            BadInput
        command: the command line
        run: trains, analyses and writes the report: `(launched, console)` -> exit status
        may_change: settings that do not affect results, which a resumed run may change
        adds: settings of `may_change` that add work or decide what is tested: a finished run that is resumed with another value
            goes on
        extends: lists to which a resumed run may add, if they were not empty; a finished run then goes on
        appends: whether a resumed run may append seeds; the settings are then `LookSettings`
        sizes: memory and disk space that a run needs, checked before anything is loaded
        prepare: loads the data, before the run directory is written to: `(settings, console, resume)` -> `launched.prepared`
        checks_finished: whether `prepare` is called also for a run that has finished, to refuse its resumption
        reserves_at_end: whether `run` reserves the run directory itself, once all results are known
        single_process: whether it always runs as a single process
        answers: switch or setting -> function `(settings, console)` -> exit status that prints something instead of running
        device_a_core: whether a run with these settings treats every CPU core as a device, unless the environment decides
        any_platform: whether a run with these settings computes on the platform of jax that the environment names
    """

    name: str
    settings: type[Any]
    command: CommandLine
    run: Entry
    may_change: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    extends: tuple[str, ...] = ()
    appends: bool = False
    sizes: Sizes | None = None
    prepare: Entry | None = None
    checks_finished: bool = False
    reserves_at_end: bool = False
    single_process: bool = False
    answers: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    device_a_core: Callable[[Any], bool] = lambda settings: True
    any_platform: Callable[[Any], bool] = lambda settings: True
