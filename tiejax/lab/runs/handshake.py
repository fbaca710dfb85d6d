"""How a run begins as one of several processes: the first prepares and holds the run directory, and tells the others.

    first    join - prepare - hold the run directory - tell settings ---- wait ------ train
    others   join - wait ---------------------------- take settings ---- prepare --- train

What one process cannot do ends all of them: it says so, and the others hear that it did not succeed.
"""

import dataclasses
import json

from tiejax.lab.runs import resume
from tiejax.lab.runs.launch import Launched, claimed, prepared
from tiejax.lab.runs.resume import Request
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study
from tiejax.training.cluster import NoCluster, from_first, join, or_die, wait_for_all


def among_others(study: Study, request: Request) -> Launched:
    """Join the other processes and begin with them; raises BadInput in every process if one of them cannot begin."""
    try:
        first = join()
    except NoCluster as error:
        raise BadInput(
            f"--distributed: {error}; start the processes under Slurm or Open MPI or on a TPU pod, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None
    return _lead(study, request) if first else _follow(study, request)


def _lead(study: Study, request: Request) -> Launched:
    """Begin as the first process."""

    def work() -> Launched:
        return prepared(study, resume.read(study, request.argv), first=True, alone=False)

    try:
        launched, _ = or_die(lambda: wait_for_all(work), expected=(BadInput,))
        assert launched is not None
        launched = claimed(study, launched)
    except BaseException:
        or_die(lambda: from_first(json.dumps(None).encode()))
        raise
    told = {"settings": dataclasses.asdict(launched.settings), "finished": launched.finished}
    or_die(lambda: from_first(json.dumps(told).encode()))
    if not launched.finished and not or_die(lambda: wait_for_all(None))[1]:
        raise BadInput("--distributed: another process could not prepare itself; see what it says")
    return launched


def _follow(study: Study, request: Request) -> Launched:
    """Begin as another process."""
    or_die(lambda: wait_for_all(None))
    told = json.loads(or_die(lambda: from_first(None)))
    if told is None:
        raise BadInput("--distributed: the first process refused to start; see what it says")
    request = request._replace(settings=study.settings(**told["settings"]))
    if told["finished"]:
        return Launched(request.settings, request.switches, request.command, None, False, True, None)
    launched = or_die(lambda: wait_for_all(lambda: prepared(study, request, first=False, alone=False))[0], expected=(BadInput,))
    assert launched is not None
    return launched
