"""Joint start of several processes: the first prepares the data and reserves the run directory, then the others follow.

    first    join - prepare - reserve run directory - send settings ---- wait ------ train
    others   join - wait ----------------------------- get settings ---- prepare --- train

If one process fails, all end: it prints its error, and the others print that another process has failed.
"""

import dataclasses
import json

from tiejax.lab.runs import resume
from tiejax.lab.runs.launched import Launched, prepare, reserve
from tiejax.lab.runs.resume import Request
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study
from tiejax.training.cluster import NoCluster, from_first, join, or_die, wait_for_all


def among_others(study: Study, request: Request, cluster: str | None) -> Launched:
    """Join the other processes and start together; raises BadInput in every process if one of them cannot start.

    cluster: the switch or environment variable that asks for other processes.
    """
    try:
        first = join()
    except NoCluster as error:
        raise BadInput(
            f"{cluster}: {error}; start the processes under Slurm or Open MPI or on a TPU pod, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None
    return _lead(study, request) if first else _follow(study, request)


def _lead(study: Study, request: Request) -> Launched:
    """Start as the first process."""

    def work() -> Launched:
        return prepare(study, resume.read(study, request.argv), first=True, alone=False)

    try:
        launched, _ = or_die(lambda: wait_for_all(work), expected=(BadInput,))
        assert launched is not None
        launched = reserve(study, launched)
    except BaseException:
        or_die(lambda: from_first(json.dumps(None).encode()))
        raise
    message = {"settings": dataclasses.asdict(launched.settings), "finished": launched.finished}
    or_die(lambda: from_first(json.dumps(message).encode()))
    if not launched.finished and not or_die(lambda: wait_for_all(None))[1]:
        raise BadInput("--distributed: another process could not start; see its error")
    return launched


def _follow(study: Study, request: Request) -> Launched:
    """Start as any process but the first."""
    or_die(lambda: wait_for_all(None))
    message = json.loads(or_die(lambda: from_first(None)))
    if message is None:
        raise BadInput("--distributed: the first process could not start; see its error")
    request = request._replace(settings=study.settings(**message["settings"]))
    if message["finished"]:
        return Launched(request.settings, request.switches, request.command, None, False, True, None)
    launched = or_die(lambda: wait_for_all(lambda: prepare(study, request, first=False, alone=False))[0], expected=(BadInput,))
    assert launched is not None
    return launched
