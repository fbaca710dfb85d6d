"""Masked-LM pre-training on text with planted twins, tied against untied (Bertolotti and Cazzola, ICML 2024)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from tiejax.reporting import untie_curve
from tiejax.reporting.event_files import EventFiles
from tiejax.reporting.plot import Plot
from tiejax.runs.console import Console
from tiejax.runs.finish import finish
from tiejax.runs.launch import Launched
from tiejax.runs.resume import keep_text
from tiejax.runs.run_directory import RunDirectory, plain, stop_flag
from tiejax.runs.train import timing, train
from tiejax.settings.command_line import BadInput
from tiejax.statistics.arms import ARMS, finite_seeds, select_seeds
from tiejax.statistics.untie_curve import Arms
from tiejax.statistics.untie_curve import analyse as analyse_curve
from tiejax.studies.text_mlm import claims, page, plots
from tiejax.studies.text_mlm.ensemble import arms_of, build_ensemble, facts_of_model, named_arrays, reach
from tiejax.studies.text_mlm.settings import Settings
from tiejax.studies.text_mlm.text import StepPlan, Text, pairs_of
from tiejax.training import cluster


def scalars(
    records: Mapping[str, Mapping[str, np.ndarray]], pairs: Mapping[str, np.ndarray]
) -> "list[tuple[dict[str, np.ndarray], np.ndarray]]":
    """Return what TensorBoard is shown of records: points `[record, seed, arm]` by name, and their steps.

    pairs: what `pairs_of` says of the recorded distances.
    """
    record = records["record"]
    shown = {name: record[name] for name in ("train_loss", "train_accuracy", "norm_input", "norm_output")}
    for number, name in enumerate(pairs["set_names"]):
        for table in ("input", "output"):
            of_set = record[f"distance_{table}"][..., pairs["pair_set"] == number]
            if of_set.shape[-1]:
                shown[f"distance_{table}/{name}"] = of_set.mean(-1)
    validation = records["validation"]
    held_out = {f"validation_{name}": validation[name] for name in ("loss", "accuracy")}
    return [(shown, record["step"]), (held_out, validation["step"])]


def conclude(metrics: Mapping[str, np.ndarray], decay: float) -> "tuple[dict[str, Any], list[Plot]]":
    """Return what results.json says of a run, tied against untied, and its figures."""

    found, runs = claims.analyse(metrics, decay)
    return found, plots.plot_all(runs, found)


def conclude_untying(metrics: Mapping[str, np.ndarray], arms: "Arms") -> "tuple[dict[str, Any], list[Plot]]":
    """Return what results.json says of a run whose members untie, and its figures."""

    finite, lasted = finite_seeds(metrics)
    found: dict[str, Any] = {**lasted, "claims": [], "curves": []}
    if not finite.any():
        return found, []
    runs = select_seeds(metrics, finite)
    loss = claims.final(runs["validation_loss"])
    others = {"accuracy": claims.final(runs["validation_accuracy"])}
    distances = {}
    for number, name in enumerate(runs["set_names"]):
        for table in ("input", "output"):
            ratio = claims.distance_ratio(runs, f"distance_{table}")[..., runs["pair_set"] == number]
            if ratio.shape[-1]:
                distances[f"{name}, {table}"] = np.median(ratio, axis=-1)
    others |= {f"distance, end / start, {name}": values for name, values in distances.items()}
    found |= analyse_curve(arms, loss, None, others, "validation loss")
    curves, title = arms.curves(), "validation loss (nats a masked token)"
    return found, [
        untie_curve.curve(found, title, curves, arms.step, None, None),
        untie_curve.distances(distances, curves, arms.step, "distance, end / start"),
        untie_curve.trajectories(runs["validation_step"], runs["validation_loss"], curves, arms.step, title, None),
    ]


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    text, planned = launched.prepared
    if directory is not None:
        keep_text(directory, text.facts, text.tokenizer)
    stop = stop_flag()
    check_texts_agree(text)
    # Accelerators multiply float32 in fewer bits unless told otherwise.
    if settings.compute_dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")
    devices = {"devices": [device.device_kind for device in jax.devices()]}
    facts = directory.write_environment(devices, launched.command) if directory else {}
    arms, far = arms_of(settings, planned), reach(settings, planned)
    models = (len(ARMS) if arms is None else len(arms.step)) * len(settings.seed_list)
    announce(settings, text, planned, far, models, console)

    ensemble = build_ensemble(settings, text, planned)
    with event_files(settings, directory, text, arms) as write_events:
        trained = train(ensemble, settings.seed_list, launched, console, stop, models, on_records=write_events)
    if not trained.finished:
        return 130
    if directory is None:
        return 0

    metrics = named_arrays(trained.records, settings, text, arms)
    directory.write_metrics(metrics)
    decay = settings.weight_decay * far["per_coordinate"] if settings.optimizer == "adamw" else 0.0
    found, plots = conclude(metrics, decay) if arms is None else conclude_untying(metrics, arms)
    times = timing(trained, models)
    rate = times["model_steps_per_s"]
    results = plain(
        {
            "experiment": "text_mlm",
            "data": text.facts,
            "model": facts_of_model(settings, ensemble),
            "steps": planned.steps,
            "reach": far,
            **found,
            "timing": {
                **times,
                "tokens_per_s": rate * planned.tokens if rate else None,
                "idle_share": trained.idle_share if rate else None,
                "padding": planned.padding,
            },
        }
    )
    finish(directory, settings, results, facts, plots, page.page if arms is None else untie_curve.page_on_text, console)
    return 0


def check_texts_agree(text: Text) -> None:
    """Raise BadInput if the processes of a run have prepared different texts."""
    own = np.frombuffer(bytes.fromhex(text.facts["fingerprint"])[:8], np.int64).tolist()
    if len({tuple(other) for other in cluster.or_die(lambda: cluster.agree(own))}) > 1:
        raise BadInput("--data_dir: the processes have prepared different texts; give one that all share, or a --tokenizer")


def announce(
    settings: Settings, text: Text, planned: StepPlan, far: Mapping[str, float], models: int, console: Console
) -> None:
    """Say what is about to be trained on what, and whether twins can meet."""
    sentences = {name: split["sentences"] for name, split in text.facts["splits"].items()}
    console.say(
        f"text: {sentences['train']:,} sentences for training, {sentences['validation']:,} for validation; "
        f"{text.vocabulary.size:,} tokens and {len(text.twins.ids)} twins; fingerprint {text.facts['fingerprint'][:16]}"
    )
    console.say(
        f"{len(settings.seed_list)} seeds, {models} models tied and untied, {planned.steps:,} steps of {planned.rows} rows "
        f"({planned.tokens:,.0f} tokens, {planned.padding:.1%} padding) on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, {planned.mesh} a member, in {settings.out}"
    )
    console.say(
        f"reach: learning rates sum to {far['per_coordinate']:.3g}, words start {far['initial']:.3g} apart a coordinate"
    )
    if 2 * far["per_coordinate"] < far["initial"]:
        console.warn("twins cannot meet in this run: raise --steps or --learning_rate")


@contextlib.contextmanager
def event_files(
    settings: Settings, directory: RunDirectory | None, text: Text, arms: Arms | None
) -> Iterator[Callable[[Any], None]]:
    """Give what writes records to TensorBoard's event files, where that is asked for and this process keeps the run."""
    if not settings.tensorboard or directory is None:
        yield lambda records: None
        return
    # Records of a checkpoint come again when a run is resumed, so every process writes from the first step.
    events = EventFiles(directory.path / "events", settings.seed_list, ARMS if arms is None else arms.names)
    pairs = pairs_of(text)[1]

    def write(records: Any) -> None:
        for points, steps in scalars(records, pairs):
            events.write(points, steps)

    try:
        yield write
    finally:
        events.close()
