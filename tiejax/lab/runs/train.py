"""Training of an ensemble in a run directory, with checkpoints, progress on the console and timing."""

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
    """Prepare this process for training; return the function that reports a request to stop, and environment.json.

    By default, accelerators multiply float32 in lower precision. Here that is only allowed in training, by
    `--matmul_precision`.
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
    """Train until the end, or until `stop` returns True; raises BadInput if a checkpoint does not match.

    models: number of models, for the rate on the console. on_records: called with the records of the checkpoint, then with
    those of every chunk. conditions, records_on_disk: see `training.train`.
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
            console.say("no checkpoint to resume from: starting at step 0")
        if launched.run is not None and launched.run.finished and not training.finished:
            raise BadInput(
                f"--resume: the run in {launched.run.path} has finished, and its last checkpoint, from which its files could "
                "be written again, is missing; --overwrite trains from scratch"
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
        console.result(f"stopped at step {int(trained.members.cursor):,}; continue with the same command and --resume")
    return trained


def timing(trained: Trained, models: int) -> dict[str, float | None]:
    """Return the timing in results.json of `models` models."""
    return timing_of(trained.compile_s, trained.train_s, trained.steps_here * models)


def timing_of(compile_s: float, train_s: float, model_steps: int) -> dict[str, float | None]:
    """Return the timing in results.json of `model_steps` steps; the rate is None if this process has trained nothing."""
    rate = model_steps / train_s if train_s else None
    return {"compile_s": compile_s, "train_s": train_s, "model_steps_per_s": rate}
