"""What every experiment does around its training: begin, alone or as one of several processes, train, and be resumed."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tiejax.reporting import command_line, environment
from tiejax.reporting.command_line import BadInput, CommandLine
from tiejax.reporting.console import Console
from tiejax.reporting.run_directory import CONFIG, RunDirectory

if TYPE_CHECKING:
    from tiejax.reporting.exor import Drawn
    from tiejax.training import Checkpoints, Ensemble
    from tiejax.training.run import Trained

# jax is imported inside functions: a configuration is checked before it loads.

TOKENIZER = "tokenizer.json"  # of a run on text, in its directory

SWITCHES = {
    "resume": "go on with the unfinished run in the run directory, to the result of an uninterrupted one",
    "overwrite": "remove the run that is in the run directory and start anew",
    "distributed": "work together with the other processes of the cluster that started this one (as on a TPU pod); "
    "needless under Slurm and Open MPI, or where JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set",
    "quiet": "print nothing but warnings and the path of the report",
    "deterministic": "ask a GPU for operations that give the same bits every time (slower); a CPU needs no asking",
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment as a command.

    config: dataclass of its settings, with a field `out` and a method `resolved`, which writes every default out or raises
    BadInput. free: settings that change no result, so that a resumed run may have others. alone: it never is one of several
    processes.
    """

    config: type[Any]
    command: CommandLine
    free: tuple[str, ...]
    alone: bool = False


def read_command_line(experiment: Experiment, argv: Sequence[str]) -> tuple[Any, dict[str, bool], Path]:
    """Return the resolved configuration, the switches and the run directory; a resumed run starts from its own config.yaml."""
    kind, command = experiment.config, experiment.command
    given, switches = command_line.parse(kind, command, argv)
    out = Path(given.out or given.resolved().out or "")
    RunDirectory.check(out, switches["resume"], switches["overwrite"])
    if switches["overwrite"] and (out / CONFIG).exists():
        try:
            command_line.parse(kind, command, [], base=out / CONFIG)
        except BadInput as error:
            raise BadInput(f"--overwrite: {out} holds no run of this experiment ({error}); name another directory") from None
    if not switches["resume"]:
        return given.resolved(), switches, out
    before, _ = command_line.parse(kind, command, [], base=out / CONFIG)
    now, _ = command_line.parse(kind, command, argv, base=out / CONFIG)
    before = dataclasses.replace(before, **{name: getattr(now, name) for name in experiment.free})
    now = dataclasses.replace(now, out=before.out)
    if changed := command_line.differences(before, now):
        # A null that stands for the default that the run was started with is no difference.
        with contextlib.suppress(BadInput):
            changed = command_line.differences(before, now.resolved())
    if changed:
        raise BadInput(f"--resume: {out} was started with another configuration ({'; '.join(changed)})")
    return before.resolved(), switches, out


class Started(NamedTuple):
    """How a process begins. Of several, the first holds the run directory and speaks; the others have none.

    prepared: what the experiment's own preparation returned, None if the run is finished.
    """

    config: Any
    switches: dict[str, bool]
    run: RunDirectory | None
    first: bool
    finished: bool
    prepared: Any


Preparation = Callable[[Any, bool], Any]


def start(experiment: Experiment, argv: Sequence[str], prepare: Preparation = lambda config, first: None) -> Started:
    """Check the command line and take hold of the run directory; of several processes the first does, and tells the others.

    prepare: (configuration, whether this process is the first) -> what must be there before the run directory is written to;
    it too may raise BadInput.
    """
    if "--deterministic" in argv:
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
    if experiment.alone or not ("--distributed" in argv or environment.names_a_cluster()):
        return _claim(_begin(experiment, argv, prepare))
    # What is wrong with it is said before processes wait for each other.
    command_line.parse(experiment.config, experiment.command, argv)
    from tiejax.training import cluster

    try:
        first = cluster.join()
    except cluster.NoCluster as error:
        raise BadInput(
            f"--distributed: {error}; start the processes under Slurm or Open MPI or on a TPU pod, or set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None
    if not first:
        cluster.or_die(lambda: cluster.together(None))
        told = json.loads(cluster.or_die(lambda: cluster.from_first(None)))
        if told is None:
            raise BadInput("--distributed: the first process refused to start; see what it says")
        config, prepared = experiment.config(**told["config"]), None
        if not told["finished"]:
            prepared = cluster.or_die(lambda: cluster.together(lambda: prepare(config, False))[0], expected=(BadInput,))
        return Started(config, told["switches"], None, False, told["finished"], prepared)
    try:
        begun, _ = cluster.or_die(lambda: cluster.together(lambda: _begin(experiment, argv, prepare)), expected=(BadInput,))
        assert begun is not None
        started = _claim(begun)
    except BaseException:
        cluster.or_die(lambda: cluster.from_first(json.dumps(None).encode()))
        raise
    told = {"config": dataclasses.asdict(started.config), "switches": started.switches, "finished": started.finished}
    cluster.or_die(lambda: cluster.from_first(json.dumps(told).encode()))
    if not started.finished and not cluster.or_die(lambda: cluster.together(None))[1]:
        raise BadInput("--distributed: another process could not prepare itself; see what it says")
    return started


def _begin(experiment: Experiment, argv: Sequence[str], prepare: Preparation) -> Started:
    """Do what may take long, and writes nothing to the run directory."""
    config, switches, out = read_command_line(experiment, argv)
    config = dataclasses.replace(config, out=str(out))  # where it is now: a run directory may have been moved
    if switches["resume"] and RunDirectory.state(out) == "finished":
        return Started(config, switches, None, True, True, None)
    RunDirectory.probe(out)
    return Started(config, switches, None, True, False, prepare(config, True))


def _claim(begun: Started) -> Started:
    if begun.finished:
        return begun
    switches = begun.switches
    return begun._replace(
        run=RunDirectory.claim(Path(begun.config.out), switches["resume"], switches["overwrite"], begun.config)
    )


def command_of(argv: Sequence[str]) -> str:
    """Write the command of a run as somebody else would repeat it: from the start."""
    return shlex.join(["python", sys.argv[0], *(word for word in argv if word not in ("--resume", "--overwrite"))])


def tokenizer_of(config: Any, resume: bool) -> str | None:
    """Return the tokenizer that a run on text names, or else, if it is resumed, the one that was trained for it."""
    own = Path(config.out, TOKENIZER)
    return str(own) if config.tokenizer is None and resume and own.exists() else config.tokenizer


def keep_text(run: RunDirectory, facts: Mapping[str, Any], tokenizer: bytes) -> dict[str, Any]:
    """Keep in the run directory what a run is trained on; return what it was started with. Raises BadInput if that differs.

    facts: of the text, with its `fingerprint`.
    """
    before: dict[str, Any] = json.loads(run.keep("data.json", json.dumps(facts, indent=2).encode()))
    if before["fingerprint"] != facts["fingerprint"]:
        raise BadInput(f"--resume: {run.path} was started on another text ({before['fingerprint'][:16]}...)")
    # A vocabulary trained anew would be another one: the run keeps its own.
    run.keep(TOKENIZER, tokenizer)
    return before


def train(
    ensemble: "Ensemble",
    seeds: Sequence[int],
    started: Started,
    console: Console,
    stop: Callable[[], bool],
    models: int,
    conditions: Sequence[int] | None = None,
    on_records: Callable[[Any], None] = lambda records: None,
) -> "Trained":
    """Train with checkpoints in the run directory, progress on the console; raise BadInput if a checkpoint does not fit."""
    from tiejax import training, tying

    checkpoints: Checkpoints | None = None
    if started.run is not None:
        checkpoints = training.Checkpoints(started.run.checkpoints, ensemble.ties, say=console.warn)
    try:
        with console:
            trained = training.cluster.or_die(
                lambda: training.train(
                    ensemble,
                    seeds,
                    checkpoints,
                    resume=started.switches["resume"],
                    on_compiled=lambda seconds: console.say(f"compiled in {seconds:.1f} s"),
                    on_progress=lambda now: console.progress(now.step, now.steps, now.steps_here, now.train_s, models),
                    stop_requested=stop,
                    say=console.say,
                    on_records=on_records,
                    checkpoint_s=started.config.checkpoint_every,
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


def timing(trained: "Trained", models: int) -> dict[str, float | None]:
    """Return what results.json says of the time of so many models; no rate if this process trained nothing."""
    return {
        "compile_s": trained.compile_s,
        "train_s": trained.train_s,
        "model_steps_per_s": trained.steps_here * models / trained.train_s if trained.train_s else None,
    }


def finish(
    run: RunDirectory,
    config: Any,
    results: dict[str, Any],
    facts: Mapping[str, Any],
    drawn: "Sequence[Drawn]",
    page: Callable[..., str],
    console: Console,
) -> None:
    """Write figures, report and results, which end the run, and say what was found.

    facts: environment.json. page: (results, resolved configuration, its YAML, facts, captions and PNG files) -> HTML.
    """
    from tiejax.reporting import figures

    if results["excluded_seeds"]:
        for row in results["non_finite"]:
            console.warn(f"{row['variant']} seed {row['seed']} became non-finite (seen at step {row['step']})")
        console.warn(f"left out of the statistics: seeds {', '.join(map(str, results['excluded_seeds']))}")
    pictures = [(item.caption, figures.save(item.figure, run.figures, item.name)) for item in drawn]
    settings = (run.path / CONFIG).read_text()
    report = run.write_report(page(results, dataclasses.asdict(config), settings, facts, pictures))
    run.write_results(results)
    run.release()
    console.claims(results["claims"])
    console.result(f"report: {report}")
