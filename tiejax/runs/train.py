"""An ensemble trained in a run directory: checkpoints there, progress on the console, and what results say of the time."""

from collections.abc import Callable, Sequence
from typing import Any

from tiejax import training, tying
from tiejax.runs.console import Console
from tiejax.runs.launch import Launched
from tiejax.settings.command_line import BadInput
from tiejax.training.run import Trained


def train(
    ensemble: training.Ensemble,
    seeds: Sequence[int],
    launched: Launched,
    console: Console,
    stop: Callable[[], bool],
    models: int,
    conditions: Sequence[int] | None = None,
    on_records: Callable[[Any], None] = lambda records: None,
) -> Trained:
    """Train to the end, or until `stop` says so; raise BadInput if a checkpoint does not fit.

    models: how many there are, for the rate that is shown. conditions, on_records: as of `training.train`.
    """
    checkpoints: training.Checkpoints | None = None
    if launched.run is not None:
        checkpoints = training.Checkpoints(launched.run.checkpoints, ensemble.ties, say=console.warn)
    try:
        with console:
            trained = training.cluster.or_die(
                lambda: training.train(
                    ensemble,
                    seeds,
                    checkpoints,
                    resume=launched.switches["resume"],
                    on_compiled=lambda seconds: console.say(f"compiled in {seconds:.1f} s"),
                    on_progress=lambda now: console.progress(now.step, now.steps, now.steps_here, now.train_s, models),
                    stop_requested=stop,
                    say=console.say,
                    on_records=on_records,
                    checkpoint_s=launched.settings.checkpoint_every,
                    conditions=conditions,
                ),
                expected=(training.CheckpointMismatch, tying.TieError),
            )
    except (training.CheckpointMismatch, tying.TieError) as error:
        raise BadInput(f"--resume: {error}") from None
    if checkpoints is not None:
        checkpoints.close()
    if not trained.finished:
        console.result(f"stopped at step {int(trained.members.cursor):,}; go on with the same command and --resume")
    return trained


def timing(trained: Trained, models: int) -> dict[str, float | None]:
    """Return what results.json says of the time of so many models; no rate if this process trained nothing."""
    return {
        "compile_s": trained.compile_s,
        "train_s": trained.train_s,
        "model_steps_per_s": trained.steps_here * models / trained.train_s if trained.train_s else None,
    }
