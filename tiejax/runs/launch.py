"""How a run begins, alone or as one of several processes: settings checked, text prepared, run directory held."""

import dataclasses
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tiejax.runs import environment, resume
from tiejax.runs.console import Console
from tiejax.runs.resume import Request
from tiejax.runs.run_directory import RunDirectory
from tiejax.settings import command_line
from tiejax.settings.command_line import BadInput
from tiejax.settings.study import Study

# jax is imported inside functions: a bad command line is refused at once, and the environment tells jax of its devices first.


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
    if "--deterministic" in argv:
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
    several = not study.single_process and ("--distributed" in argv or environment.names_a_cluster())
    # Of several processes the first alone looks at the run directory.
    request = resume.parsed(study, argv) if several else resume.read(study, argv)
    if several or study.device_a_core(request.settings):
        environment.one_device_a_core()
    launched = _among_others(study, request) if several else _claimed(study, _prepared(study, request, first=True))
    console = Console(launched.switches["quiet"], silent=not launched.first)
    if launched.finished:
        console.result(f"the run is finished: {Path(launched.settings.out) / 'report.html'}")
        return 0
    status: int = importlib.import_module(study.module).run(launched, console)
    return status


def _prepared(study: Study, request: Request, first: bool) -> Launched:
    """Do what may take long, and writes nothing to the run directory."""
    settings, switches, resuming = request.settings, request.switches, request.switches.get("resume", False)
    if first and resuming and RunDirectory.state(request.out) == "finished":
        return Launched(settings, switches, request.command, None, first, True, None)
    prepared = None
    if first:
        RunDirectory.probe(request.out)
    if study.preparation is not None:
        console = Console(switches["quiet"], silent=not first)
        prepared = importlib.import_module(study.preparation).prepare(settings, console, resuming)
    return Launched(settings, switches, request.command, None, first, False, prepared)


def _claimed(study: Study, launched: Launched) -> Launched:
    """Take hold of the run directory, unless the study does so itself or has nothing left to do there."""
    if launched.finished or study.claims_at_end:
        return launched
    resuming, overwrite = launched.switches.get("resume", False), launched.switches["overwrite"]
    return launched._replace(run=RunDirectory.claim(study.name, launched.settings, resuming, overwrite))


def _among_others(study: Study, request: Request) -> Launched:
    """Begin as one of several processes: the first prepares and holds the run directory, then the others prepare."""
    from tiejax.training import cluster

    try:
        first = cluster.join()
    except cluster.NoCluster as error:
        raise BadInput(
            f"--distributed: {error}; start the processes under Slurm or Open MPI or on a TPU pod, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None
    return _lead(study, request) if first else _follow(study, request)


def _lead(study: Study, request: Request) -> Launched:
    """Begin as the first process: prepare while the others wait, hold the run directory, tell them, and let them prepare."""
    from tiejax.training.cluster import from_first, or_die, together

    def work() -> Launched:
        return _prepared(study, resume.read(study, request.argv), first=True)

    try:
        launched, _ = or_die(lambda: together(work), expected=(BadInput,))
        assert launched is not None
        launched = _claimed(study, launched)
    except BaseException:
        or_die(lambda: from_first(json.dumps(None).encode()))
        raise
    told = {"settings": dataclasses.asdict(launched.settings), "finished": launched.finished}
    or_die(lambda: from_first(json.dumps(told).encode()))
    if not launched.finished and not or_die(lambda: together(None))[1]:
        raise BadInput("--distributed: another process could not prepare itself; see what it says")
    return launched


def _follow(study: Study, request: Request) -> Launched:
    """Begin as another process: wait until the first has prepared, take its settings, and prepare."""
    from tiejax.training.cluster import from_first, or_die, together

    or_die(lambda: together(None))
    told = json.loads(or_die(lambda: from_first(None)))
    if told is None:
        raise BadInput("--distributed: the first process refused to start; see what it says")
    request = request._replace(settings=study.settings(**told["settings"]))
    if told["finished"]:
        return Launched(request.settings, request.switches, request.command, None, False, True, None)
    launched = or_die(lambda: together(lambda: _prepared(study, request, first=False))[0], expected=(BadInput,))
    assert launched is not None
    return launched
