"""A study as a command: its name, what may be asked of it, and where it is run."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tiejax.lab.settings.command_line import CommandLine

SWITCHES = {
    "resume": "go on with the unfinished run in the run directory, to the result of an uninterrupted one",
    "overwrite": "remove the run that is in the run directory and start anew",
    "distributed": "work together with the other processes of the cluster that started this one (as on a TPU pod); "
    "needless under Slurm and Open MPI, or where JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set",
    "quiet": "print nothing but warnings and the path of the report",
    "recompile": "compile everything anew, and leave the compiled programs in the user's cache alone",
    "deterministic": "ask a GPU for operations that give the same bits every time (slower); a CPU needs no asking",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """A study as a command.

    name: what a run directory says of who made it. settings: dataclass of what may be asked, with a field `out` and a method
    `resolved`, which writes every default out or raises BadInput. may_change: settings that change no result, so that a
    resumed run may have others.
    sizes: a module without jax, with `need(settings)`, what a run needs of memory, and `OPTIONS`, the settings that decide it.
    module: is imported once the settings are found good; has `run(launched, console)`, which returns the exit status.
    preparation: a module with `prepare(settings, console, resume)`, which returns what must be there before the run directory
    is written to. claims_at_end: it takes hold of the run directory itself, once all is known.
    single_process: it never is one of several processes. answers: switch or setting -> a module with
    `answer(settings, console)`, which prints what is asked for instead of a run. device_a_core: whether a run with these
    settings wants every core to be a device, where the environment says nothing. huge_pages: whether runs ask for them.
    """

    name: str
    settings: type[Any]
    command: CommandLine
    module: str
    may_change: tuple[str, ...] = ()
    sizes: str | None = None
    preparation: str | None = None
    claims_at_end: bool = False
    single_process: bool = False
    answers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    device_a_core: Callable[[Any], bool] = lambda settings: True
    huge_pages: bool = False
