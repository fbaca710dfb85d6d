"""An ensemble trained in a run directory: checkpoints there, progress on the console, and what results say of the time."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from tiejax.lab.runs.checkpoints import open_checkpoints
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.stop import stop_flag
from tiejax.lab.settings.command_line import BadInput
from tiejax.training import cluster
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints
from tiejax.training.ensemble import Ensemble
from tiejax.training.loop import Trained, Training
from tiejax.tying.errors import TieError


def begin(launched: Launched) -> tuple[Callable[[], bool], dict[str, Any]]:
    """Prepare this process for training; return what says whether it is to stop, and what environment.json says.

    Accelerators multiply float32 in fewer bits unless told otherwise; training alone may, as `--matmul_precision` says.
    """
    stop = stop_flag()
    jax.config.update("jax_default_matmul_precision", "highest")
    devices = {"devices": [device.device_kind for device in jax.devices()]}
    return stop, launched.run.write_environment(devices, launched.command) if launched.run else {}


def train(
    ensemble: Ensemble,
    seeds: Sequence[int],
    launched: Launched,
    console: Console,
    stop: Callable[[], bool],
    models: int,
    conditions: Sequence[int] | None = None,
    on_records: Callable[[Any], None] = lambda records: None,
    records_on_disk: bool = False,
) -> Trained:
    """Train to the end, or until `stop` says so; raise BadInput if a checkpoint does not fit.

    models: how many there are, for the rate that is shown. on_records: is given the records of every chunk, those of the
    checkpoint first. conditions, records_on_disk: as of `training.train`.
    """
    checkpoints: Checkpoints | None = None
    if launched.run is not None:
        checkpoints = open_checkpoints(launched.run, launched.run.checkpoints, ensemble.ties, console.warn)

    def work() -> Trained:
        training = Training(ensemble, seeds, checkpoints, launched.switches["resume"], conditions, records_on_disk)
        if training.resumed:
            console.say(f"resuming at step {min(training.first, ensemble.steps)} of {ensemble.steps}")
            on_records(training.records)
        elif launched.switches["resume"]:
            console.say("there is no checkpoint to go on from: starting at step 0")
        if launched.run is not None and launched.run.finished and not training.finished:
            raise BadInput(
                f"--resume: the run in {launched.run.path} had ended, and its last checkpoint is gone, from which its files "
                "could be made again; --overwrite trains anew"
            )
        if not training.finished:
            console.compiling()
            console.say(f"compiled in {training.compile():.1f} s")
        for chunk in training.chunks(stop, checkpoint_s=launched.settings.checkpoint_every):
            on_records(chunk.records)
            console.progress(chunk.step, ensemble.steps, chunk.steps_here, chunk.train_s, models)
        return training.result()

    try:
        with console:
            trained = cluster.or_die(work, expected=(BadInput, CheckpointMismatch, TieError))
    except (CheckpointMismatch, TieError) as error:
        raise BadInput(f"--resume: {error}") from None
    if checkpoints is not None:
        checkpoints.close()
    if not trained.finished:
        console.result(f"stopped at step {int(trained.members.cursor):,}; go on with the same command and --resume")
    return trained


def timing(trained: Trained, models: int) -> dict[str, float | None]:
    """Return what results.json says of the time of so many models."""
    return timing_of(trained.compile_s, trained.train_s, trained.steps_here * models)


def timing_of(compile_s: float, train_s: float, model_steps: int) -> dict[str, float | None]:
    """Return what results.json says of the time of so many steps of models; no rate if this process trained nothing."""
    rate = model_steps / train_s if train_s else None
    return {"compile_s": compile_s, "train_s": train_s, "model_steps_per_s": rate}
