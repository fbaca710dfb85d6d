"""How a run begins, alone or as one of several processes: settings checked, text prepared, run directory held."""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tiejax.lab.runs import compiled, environment, huge_pages, resume
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.resume import Request
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, refused
from tiejax.lab.settings.sizes import check_disk, check_memory
from tiejax.lab.settings.study import Study

# What imports jax is imported by name: a bad command line is refused at once, and jax hears of its devices before it loads.


class Launched(NamedTuple):
    """How a process begins. Of several, the first holds the run directory and speaks; the others have none.

    command: as somebody else would repeat it. prepared: what the study's own preparation returned.
    """

    settings: Any
    switches: dict[str, bool]
    command: str
    run: RunDirectory | None
    first: bool
    finished: bool
    prepared: Any


def open_study(study: Study) -> NoReturn:
    """Run a study as a command, and exit with its status."""
    command_line.run_main(lambda argv: main(study, argv))


def main(study: Study, argv: Sequence[str]) -> int:
    """Check what is asked, take hold of the run directory, then run the study; return its exit status. Raises BadInput."""
    if study.answers and (status := _answered(study, argv)) is not None:
        return status
    if study.huge_pages:
        huge_pages.start_anew()
    if "--deterministic" in argv:
        environment.add_flags("--xla_gpu_deterministic_ops=true")
    environment.check_flags()
    several = not study.single_process and ("--distributed" in argv or environment.names_a_cluster())
    # Of several processes the first alone looks at the run directory.
    request = resume.parsed(study, argv) if several else resume.read(study, argv)
    if several or study.device_a_core(request.settings):
        environment.one_device_a_core()
    compiled.use(anew=request.switches.get("recompile", False))
    if several:
        launched = importlib.import_module("tiejax.lab.runs.handshake").among_others(study, request)
    else:
        launched = claimed(study, prepared(study, request, first=True))
    console = Console(launched.switches["quiet"], silent=not launched.first)
    if launched.finished:
        console.result(f"the run is finished: {Path(launched.settings.out) / 'report.html'}")
        return 0
    try:
        ended: int = importlib.import_module(study.module).run(launched, console)
    except (BadInput, OSError) as error:
        goes_on = "resume" in launched.switches and launched.run is not None
        then = "go on with the same command and --resume" if goes_on else "run it again"
        told = refused(error, then) if isinstance(error, OSError) else error
        if several:
            # An orderly exit would wait for the others, who wait for this one.
            os._exit(command_line.tell(told))
        raise told from None
    return ended


def _answered(study: Study, argv: Sequence[str]) -> int | None:
    """Answer what is asked for instead of a run and return the exit status, None if nothing is; raises BadInput."""
    settings, switches = command_line.parse(study.settings, study.command, argv)
    for name, module in study.answers.items():
        if switches.get(name) or getattr(settings, name, None):
            answered: int = importlib.import_module(module).answer(settings.resolved(), Console(switches["quiet"]))
            return answered
    return None


def prepared(study: Study, request: Request, first: bool, alone: bool = True) -> Launched:
    """Do what may take long, and writes nothing to the run directory; first of all, see whether the memory is there.

    alone: this process trains all members, and is not one of several.
    """
    settings, switches, resuming = request.settings, request.switches, request.switches.get("resume", False)
    if first and resuming and RunDirectory.state(request.out) == "finished":
        if not (damage := RunDirectory.damage(request.out)):
            return Launched(settings, switches, request.command, None, first, True, None)
        Console(switches["quiet"]).warn(f"damaged or gone, and made again: {', '.join(damage)} in {request.out}")
    if study.sizes is not None:
        sizes = importlib.import_module(study.sizes)
        check_memory(settings, sizes.need, sizes.OPTIONS, alone=alone)
        if first:
            check_disk(settings, sizes.need, sizes.OPTIONS, request.out, RunDirectory.of_records(request.out))
    made = None
    if first:
        RunDirectory.probe(request.out)
    if study.preparation is not None:
        console = Console(switches["quiet"], silent=not first)
        made = importlib.import_module(study.preparation).prepare(settings, console, resuming)
    return Launched(settings, switches, request.command, None, first, False, made)


def claimed(study: Study, launched: Launched) -> Launched:
    """Take hold of the run directory, unless the study does so itself or has nothing left to do there."""
    if launched.finished or study.claims_at_end:
        return launched
    resuming, overwrite = launched.switches.get("resume", False), launched.switches["overwrite"]
    run = RunDirectory.claim(study, launched.settings, resuming, overwrite)
    return launched._replace(run=run)
