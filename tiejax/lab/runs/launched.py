"""Start of a process: check sizes, prepare the data, reserve the run directory."""

from typing import Any, NamedTuple

from tiejax.lab.runs import environment, trackers
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import settings_of
from tiejax.lab.runs.resume import Request
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.sizes import check_address_space, check_disk, check_memory
from tiejax.lab.settings.study import Study, function_of


class Launched(NamedTuple):
    """A process that is ready to run a study, and the context in which it does: at its end the run directory is unlocked.

    settings: resolved. switches: name -> whether it was given. command: the command line that repeats the run from scratch.
    run: the reserved run directory; None in all but the first of several processes, and if `finished`. first: whether this is
    the first process, the one that writes to the run directory and to the terminal. finished: whether the run had finished
    before. prepared: the result of the study's `prepare`. tracker: that of the run; ignores everything in all but the first
    process.
    """

    settings: Any
    switches: dict[str, bool]
    command: str
    run: RunDirectory | None
    first: bool
    finished: bool
    prepared: Any
    tracker: trackers.Tracker = trackers.Tracker()

    def __enter__(self) -> "Launched":
        self.tracker.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Close the tracker and unlock the run directory, to which an exception that a notebook keeps may refer."""
        try:
            self.tracker.__exit__(*error)
        finally:
            if self.run is not None:
                self.run.release()


def prepare(study: Study, request: Request, first: bool, alone: bool = True) -> Launched:
    """Check memory and disk, then prepare the data, which may take long; writes nothing to the run directory.

    alone: whether this is the only process, which then trains all members.
    """
    settings, switches, resuming = request.settings, request.switches, request.switches.get("resume", False)
    grows = first and resuming and RunDirectory.grows(study, request.out, settings)
    if first and resuming and not grows and RunDirectory.state(request.out) == "finished":
        if not (damage := RunDirectory.damage(request.out)):
            if study.checks_finished and study.prepare is not None:
                function_of(study.prepare)(settings, Console(quiet=True, silent=True), resuming)
            return Launched(settings, switches, request.command, None, first, True, None)
        Console(switches["quiet"]).warn(f"damaged or missing, to be written again: {', '.join(damage)} in {request.out}")
    if first:
        trackers.check(getattr(settings, "tracker", "none"))
    check_address_space()
    if study.sizes is not None:
        need = study.sizes.need(settings)
        check_memory(settings, need, study.sizes.FLAGS, alone=alone)
        if first:
            check_disk(settings, need.disk, study.sizes.FLAGS, request.out, RunDirectory.record_files(request.out))
    if first:
        RunDirectory.probe(request.out)
    environment.check_variables()
    if alone and study.any_platform(settings):
        environment.check_platforms()
    prepared = None
    if study.prepare is not None:
        prepared = function_of(study.prepare)(settings, Console(switches["quiet"], silent=not first), resuming)
    return Launched(settings, switches, request.command, None, first, False, prepared)


def reserve(study: Study, launched: Launched) -> Launched:
    """Reserve the run directory, unless the study does so itself or the run is finished."""
    if launched.finished or study.reserves_at_end:
        return launched
    resuming, overwrite = launched.switches.get("resume", False), launched.switches["overwrite"]
    settings = launched.settings
    run = RunDirectory.reserve(study, settings, resuming, overwrite)
    warn = Console(launched.switches["quiet"]).warn
    tracker = trackers.Tracker.opened(run, getattr(settings, "tracker", "none"), settings_of(settings, ("tracker",)), warn)
    return launched._replace(run=run, tracker=tracker)
