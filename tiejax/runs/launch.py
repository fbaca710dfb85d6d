"""How a run begins, alone or as one of several processes: settings checked, text prepared, run directory held."""

import dataclasses
import importlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from tiejax.runs import environment, resume
from tiejax.runs.resume import Request
from tiejax.runs.run_directory import RunDirectory
from tiejax.settings import command_line
from tiejax.settings.command_line import BadInput
from tiejax.settings.study import Study

# jax is imported inside functions: a bad command line is refused at once, and the environment tells jax of its devices first.

# (settings, whether this process is the first) -> what must be there before the run directory is written to
Preparation = Callable[[Any, bool], Any]


def open_study(study: Study) -> NoReturn:
    """Run a study as a command, and exit with its status."""
    command_line.run_main(lambda argv: main(study, argv))


def main(study: Study, argv: Sequence[str]) -> int:
    """Check what is asked, then import the study and run it; return its exit status. Raises BadInput."""
    if "--deterministic" in argv:
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
    cluster = is_cluster(study, argv)
    request = _parsed(study, argv) if cluster else resume.read(study, argv)
    if cluster or study.device_a_core(request.settings):
        environment.one_device_a_core()
    status: int = importlib.import_module(study.module).run(request)
    return status


def is_cluster(study: Study, argv: Sequence[str]) -> bool:
    """Say whether this process is one of several that train together."""
    return not study.single_process and ("--distributed" in argv or environment.names_a_cluster())


def _parsed(study: Study, argv: Sequence[str]) -> Request:
    """Return what is asked without a look at the run directory, which is the first process's alone."""
    given, switches = command_line.parse(study.settings, study.command, argv)
    settings = given.resolved()
    return Request(settings, switches, settings.out, argv)


class Launched(NamedTuple):
    """How a process begins. Of several, the first holds the run directory and speaks; the others have none.

    prepared: what the study's own preparation returned, None if the run is finished.
    """

    settings: Any
    switches: dict[str, bool]
    run: RunDirectory | None
    first: bool
    finished: bool
    prepared: Any


def start(study: Study, request: Request, prepare: Preparation = lambda settings, first: None) -> Launched:
    """Take hold of the run directory; of several processes the first does, and tells the others. Raises BadInput.

    prepare: may take long, write nothing to the run directory, and raise BadInput too.
    """
    if not is_cluster(study, request.argv):
        return _claim(study, _prepared(request, prepare))
    from tiejax.training import cluster

    try:
        first = cluster.join()
    except cluster.NoCluster as error:
        raise BadInput(
            f"--distributed: {error}; start the processes under Slurm or Open MPI or on a TPU pod, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None
    return _lead(study, request, prepare) if first else _follow(study, prepare)


def _lead(study: Study, request: Request, prepare: Preparation) -> Launched:
    """Begin as the first process: prepare while the others wait, hold the run directory, tell them, and let them prepare."""
    from tiejax.training.cluster import from_first, or_die, together

    def work() -> Launched:
        return _prepared(resume.read(study, request.argv), prepare)

    try:
        begun, _ = or_die(lambda: together(work), expected=(BadInput,))
        assert begun is not None
        launched = _claim(study, begun)
    except BaseException:
        or_die(lambda: from_first(json.dumps(None).encode()))
        raise
    told = {
        "settings": dataclasses.asdict(launched.settings),
        "switches": launched.switches,
        "finished": launched.finished,
    }
    or_die(lambda: from_first(json.dumps(told).encode()))
    if not launched.finished and not or_die(lambda: together(None))[1]:
        raise BadInput("--distributed: another process could not prepare itself; see what it says")
    return launched


def _follow(study: Study, prepare: Preparation) -> Launched:
    """Begin as another process: wait until the first has prepared, take its settings, and prepare."""
    from tiejax.training.cluster import from_first, or_die, together

    or_die(lambda: together(None))
    told = json.loads(or_die(lambda: from_first(None)))
    if told is None:
        raise BadInput("--distributed: the first process refused to start; see what it says")
    settings, prepared = study.settings(**told["settings"]), None
    if not told["finished"]:
        prepared = or_die(lambda: together(lambda: prepare(settings, False))[0], expected=(BadInput,))
    return Launched(settings, told["switches"], None, False, told["finished"], prepared)


def _prepared(request: Request, prepare: Preparation) -> Launched:
    """Do what may take long, and writes nothing to the run directory."""
    settings, switches = request.settings, request.switches
    if switches.get("resume") and RunDirectory.state(request.out) == "finished":
        return Launched(settings, switches, None, True, True, None)
    RunDirectory.probe(request.out)
    return Launched(settings, switches, None, True, False, prepare(settings, True))


def _claim(study: Study, begun: Launched) -> Launched:
    if begun.finished:
        return begun
    resuming, overwrite = begun.switches.get("resume", False), begun.switches["overwrite"]
    return begun._replace(run=RunDirectory.claim(study.name, begun.settings, resuming, overwrite))
