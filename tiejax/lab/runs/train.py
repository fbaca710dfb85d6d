"""Training of an ensemble in a run directory, with checkpoints, progress on the console and timing."""

from collections.abc import Callable, Sequence

import jax

from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.checkpoints import Part, matching_checkpoints
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.environment import KNOWN_FLAGS, given_flags
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.pace import Pace
from tiejax.lab.runs.stop import stop_flag
from tiejax.lab.runs.trackers import points_of
from tiejax.lab.settings.command_line import BadInput
from tiejax.statistics.power import fewest_seeds
from tiejax.training import cluster
from tiejax.training.checkpoint import CheckpointMismatch, Checkpoints
from tiejax.training.ensemble import Ensemble
from tiejax.training.loop import Trained, Training
from tiejax.training.records import Records
from tiejax.tying.errors import TieError

# The environment can change each of these by a variable of the same name in capitals.
FIXED = {
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "threefry2x32",
    "jax_disable_jit": False,
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_random_seed_offset": 0,
    "jax_softmax_custom_jvp": False,
    "jax_threefry_partitionable": True,
}
UNSET = None  # what jax has for the precision of products unless the environment sets it


def begin(launched: Launched, console: Console, claims: int = 1) -> Callable[[], bool]:
    """Prepare this process for training; return the function that reports a request to stop.

    Warns of too few seeds to decide any of `claims` claims that are tested together; 1 if their number depends on the results.

    By default, accelerators multiply float32 in lower precision. Here that is only allowed in training, by
    `--matmul_precision`.
    """
    stop = stop_flag()
    fix_jax_configuration(console)
    write_environment(launched)
    seeds, needed = launched.settings.number_of_seeds, fewest_seeds(claims)
    if seeds < needed:
        tested = f"any of {claims} claims that are tested together" if claims > 1 else "any claim"
        console.warn(f"--seeds: {counted(seeds, 'seed')} cannot decide {tested}; that takes at least {needed}")
    return stop


def fix_jax_configuration(console: Console) -> None:
    """Set the configuration of jax that decides numbers; warn where the environment asks for something else."""
    for name, value in FIXED.items():
        given = getattr(jax.config, name)
        given = getattr(given, "value", given)  # of an enumeration
        if given not in (value, UNSET):
            console.warn(f"{name.upper()} is {given}; a run always uses {value}")
        jax.config.update(name, value)


def other_flags() -> list[str]:
    """Return the flags of XLA that may decide numbers: those that neither tiejax sets nor the number of devices needs."""
    return sorted(flag for flag in given_flags() if flag.partition("=")[0] not in KNOWN_FLAGS)


def warn_of_deadlock(devices: int, console: Console) -> None:
    """Warn if `devices` CPU devices of this process train a member together, upon which XLA may end the process."""
    if devices > 1 and jax.default_backend() == "cpu" and jax.local_device_count() > 1:
        console.warn(
            f"--mesh {devices}: collectives between the CPU devices of one process can deadlock; XLA ends the process after "
            "40 s; then continue with the same command and --resume, or leave out --mesh"
        )


def check_same_data(fingerprint: str, message: str) -> None:
    """Raise BadInput with a message if the processes of a run have different data; fingerprint: hexadecimal."""
    first = int(fingerprint[:8], 16)
    if len({theirs for (theirs,) in cluster.or_die(lambda: cluster.agree([first]))}) > 1:
        raise BadInput(message)


def write_environment(launched: Launched) -> None:
    """Write environment.json, in the process that has the run directory."""
    if launched.run is not None:
        devices = {"devices": [device.device_kind for device in jax.devices()]}
        launched.run.write_environment(devices, launched.command, other_flags())


def train(
    ensemble: Ensemble,
    seeds: Sequence[int],
    launched: Launched,
    console: Console,
    stop: Callable[[], bool],
    models: int,
    arms: Sequence[str],
    conditions: Sequence[int] | None = None,
    tracked: Callable[[Records], Records] = lambda records: records,
    records_on_disk: bool = False,
    part: Part = Part(),  # noqa: B008, a constant
) -> Trained:
    """Train until the end, or until `stop` returns True; raises BadInput if a checkpoint does not match.

    models: number of models, for the rate on the console. arms: their names. tracked: records -> those whose numbers the
    tracker shows (see `points_of`), called with the records of the checkpoint, then with those of every chunk. conditions,
    records_on_disk: see `training.train`. part: the part of the run's seeds.
    """
    prefix = f"{part.label}: " if part.label else ""
    line = f"part-{part.number + 1}" if part.number else ""
    names = [f"{arm}/{line}" if line else arm for arm in arms]
    pace = Pace()

    def track(records: Records) -> None:
        if launched.tracker.tracks:
            launched.tracker.add(line, points_of(tracked(records), names, seeds, conditions))

    def work(checkpoints: Checkpoints | None) -> Trained:
        training = Training(ensemble, seeds, checkpoints, launched.switches["resume"], conditions, records_on_disk)
        if training.resumed:
            console.say(f"{prefix}resuming at step {min(training.first, ensemble.steps)} of {ensemble.steps}")
            track(training.records)
        elif launched.switches["resume"] and not part.number:
            console.say(f"{prefix}no checkpoint to resume from: starting at step 0")
        if launched.run is not None and launched.run.finished and not training.finished:
            raise launched.run.without_checkpoint()
        if not training.finished:
            console.compiling()
            console.say(f"compiled in {training.compile():.1f} s")
        steps, seconds = 0, 0.0
        for chunk in training.chunks(stop, checkpoint_s=launched.settings.checkpoint_every):
            track(chunk.records)
            pace.add(part, chunk.steps_here - steps, chunk.train_s - seconds)
            steps, seconds = chunk.steps_here, chunk.train_s
            each = seconds / steps if steps and chunk.step == ensemble.steps else pace.seconds
            console.progress(chunk.step, ensemble.steps, each and 1 / each, models, part.label, part.later)
        return training.result()

    opened = matching_checkpoints(launched.run, part.folder, ensemble.ties, console.warn, part.number)
    with opened as checkpoints, console:
        trained = cluster.or_die(lambda: work(checkpoints), expected=(BadInput, CheckpointMismatch, TieError))
    if not trained.finished:
        console.result(f"{prefix}stopped at step {int(trained.members.cursor):,}; continue with the same command and --resume")
    return trained


def timing_of(compile_s: float, train_s: float, model_steps: int) -> dict[str, float | None]:
    """Return the timing in results.json of `model_steps` steps; the rate is None if this process has trained nothing."""
    rate = model_steps / train_s if train_s else None
    return {"compile_s": compile_s, "train_s": train_s, "model_steps_per_s": rate}
