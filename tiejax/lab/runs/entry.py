"""Start of a study, in one process or several: check settings, prepare the data, reserve the run directory, run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tiejax.lab.runs import cluster_environment, compiled, environment, resume
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched, prepare, reserve
from tiejax.lab.runs.resume import Request
from tiejax.lab.runs.stop import Stopped
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, refused
from tiejax.lab.settings.study import Study, function_of


def open_study(study: Study) -> NoReturn:
    """Run a study as a command, and exit with its status."""
    command_line.run_main(lambda argv: main(study, argv))


def main(study: Study, argv: Sequence[str]) -> int:
    """Check the command line, reserve the run directory and run the study; return the exit status. Raises BadInput.

    jax is imported only after the command line has been checked and the environment that jax reads has been set.
    """
    if study.answers and (status := _answer(study, argv)) is not None:
        return status
    if "--deterministic" in argv:
        environment.add_flags("--xla_gpu_deterministic_ops=true")
    environment.check_flags()
    cluster = "--distributed" if "--distributed" in argv else cluster_environment.named_by()
    several = cluster is not None and not study.single_process
    # Only the first of several processes reads the run directory.
    request = resume.parsed(study, argv) if several else resume.read(study, argv)
    if several or study.device_a_core(request.settings):
        environment.one_device_a_core()
    compiled.use(recompile=request.switches.get("recompile", False))
    launched = _with_others(study, request, cluster) if several else reserve(study, prepare(study, request, first=True))
    console = Console(launched.switches["quiet"], silent=not launched.first)
    if launched.finished:
        console.result(f"the run is finished: {Path(launched.settings.out) / 'report.html'}")
        return 0
    try:
        with launched:
            return int(function_of(study.run)(launched, console))
    except Stopped as stopped:
        console.result(f"stopped {stopped}; continue with the same command and --resume")
        return 130
    except (BadInput, OSError) as error:
        resumable = "resume" in launched.switches and launched.run is not None
        then = "continue with the same command and --resume" if resumable else "run it again"
        failure = refused(error, then) if isinstance(error, OSError) else error
        if several:
            # An orderly exit would wait for the other processes, which wait for this one.
            os._exit(command_line.report(failure))
        raise failure from None


def _with_others(study: Study, request: Request, cluster: str | None) -> Launched:
    cluster_environment.check()
    environment.check_variables()
    from tiejax.lab.runs.handshake import among_others  # imports jax

    return among_others(study, request, cluster)


def _answer(study: Study, argv: Sequence[str]) -> int | None:
    """Handle a switch that prints something instead of running the study; return the exit status, or None if not given."""
    settings, switches = command_line.parse(study.settings, study.command, argv)
    for name, answer in study.answers.items():
        if switches.get(name) or getattr(settings, name, None):
            resolved = settings.resolved()
            environment.check()
            return int(function_of(answer)(resolved, Console(switches["quiet"])))
    return None
