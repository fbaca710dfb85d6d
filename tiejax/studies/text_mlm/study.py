"""Masked-LM pre-training on text with planted twins, tied against untied (Bertolotti and Cazzola, ICML 2024)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax.reporting import untie_curve as curves
from tiejax.reporting import untie_curve as pages
from tiejax.reporting.event_files import EventFiles
from tiejax.reporting.plot import Drawn
from tiejax.runs import environment, launch
from tiejax.runs.console import Console
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.settings.command_line import BadInput
from tiejax.statistics import untie_curve as untying
from tiejax.statistics.untie_curve import Variants
from tiejax.studies.exor import claims as exor
from tiejax.studies.text_mlm import claims as text_mlm
from tiejax.studies.text_mlm import page as pages
from tiejax.studies.text_mlm.claims import analyse
from tiejax.studies.text_mlm.ensemble import build_ensemble, facts_of_model, named_arrays, reach, variants_of
from tiejax.studies.text_mlm.settings import EXPERIMENT
from tiejax.studies.text_mlm.text import pairs_of, prepare
from tiejax.training import cluster


def scalars(
    records: Mapping[str, Mapping[str, np.ndarray]], pairs: Mapping[str, np.ndarray]
) -> "list[tuple[dict[str, np.ndarray], np.ndarray]]":
    """Return what TensorBoard is shown of records: points `[record, seed, variant]` by name, and their steps.

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


def conclude(metrics: Mapping[str, np.ndarray], decay: float) -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run, tied against untied, and its figures."""

    found, runs = analyse(metrics, decay)
    return found, pages.drawn(runs, found)


def conclude_untying(metrics: Mapping[str, np.ndarray], variants: "Variants") -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run whose members untie, and its figures."""

    finite, lasted = exor.who_lasted(metrics)
    found: dict[str, Any] = {**lasted, "claims": [], "curves": []}
    if not finite.any():
        return found, []
    runs = exor.of_seeds(metrics, finite)
    loss = text_mlm.final(runs["validation_loss"])
    others = {"accuracy": text_mlm.final(runs["validation_accuracy"])}
    distances = {}
    for number, name in enumerate(runs["set_names"]):
        for table in ("input", "output"):
            ratio = text_mlm.distance_ratio(runs, f"distance_{table}")[..., runs["pair_set"] == number]
            if ratio.shape[-1]:
                distances[f"{name}, {table}"] = np.median(ratio, axis=-1)
    others |= {f"distance, end / start, {name}": values for name, values in distances.items()}
    found |= untying.analyse(variants, loss, None, others, "validation loss")
    curves, title = variants.curves(), "validation loss (nats a masked piece)"
    return found, [
        pages.curve(found, title, curves, variants.step, None, None),
        pages.distances(distances, curves, variants.step, "distance, end / start"),
        pages.trajectories(runs["validation_step"], runs["validation_loss"], curves, variants.step, title, None),
    ]


def main(argv: Sequence[str]) -> int:
    """Run the experiment; return its exit status."""
    quiet = "--quiet" in argv
    together = "--distributed" in argv or environment.names_a_cluster()
    if together:
        environment.one_device_a_core()
    started = launch.start(
        EXPERIMENT, argv, lambda config, first: prepare(config, Console(quiet, silent=not first), "--resume" in argv)
    )
    config, run = started.config, started.run
    console = Console(quiet, silent=not started.first)
    if started.finished:
        console.result(f"the run is finished: {Path(config.out) / 'report.html'}")
        return 0
    text, planned = started.prepared
    if run is not None:
        launch.keep_text(run, text.facts, text.tokenizer)
    stop = stop_flag()

    own = np.frombuffer(bytes.fromhex(text.facts["fingerprint"])[:8], np.int64).tolist()
    if len({tuple(other) for other in cluster.or_die(lambda: cluster.agree(own))}) > 1:
        raise BadInput("--data_dir: the processes have prepared different texts; give one that all share, or a --tokenizer")
    # Accelerators multiply float32 in fewer bits unless told otherwise.
    if config.compute_dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")

    devices = {"devices": [one.device_kind for one in jax.devices()]}
    facts = run.write_environment(devices, launch.command_of(argv)) if run else {}
    variants = variants_of(config, planned)
    models = (2 if variants is None else len(variants.step)) * len(config.seed_list)
    far = reach(config, planned)
    sentences = {name: facts["sentences"] for name, facts in text.facts["splits"].items()}
    console.say(
        f"text: {sentences['train']:,} sentences for training, {sentences['validation']:,} for validation; "
        f"{text.vocabulary.size:,} pieces and {len(text.twins.ids)} twins; fingerprint {text.facts['fingerprint'][:16]}"
    )
    console.say(
        f"{len(config.seed_list)} seeds, {models} models tied and untied, {planned.steps:,} steps of {planned.rows} rows "
        f"({planned.tokens:,.0f} pieces, {planned.padding:.1%} padding) on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, {planned.mesh} a member, in {config.out}"
    )
    console.say(
        f"reach: learning rates sum to {far['per_coordinate']:.3g}, words start {far['initial']:.3g} apart a coordinate"
    )
    if 2 * far["per_coordinate"] < far["initial"]:
        console.warn("twins cannot meet in this run: raise --steps or --learning_rate")
    ensemble = build_ensemble(config, text, planned)
    events, pairs = None, pairs_of(text)[1]
    if config.tensorboard and run is not None:
        # Records of a checkpoint come again when a run is resumed, so every process writes from the first step.
        names = ("untied", "tied") if variants is None else variants.names
        events = EventFiles(run.path / "events", config.seed_list, variants=names)

    def write_events(records: Any) -> None:
        if events is not None:
            for points, steps in scalars(records, pairs):
                events.write(points, steps)

    trained = launch.train(ensemble, config.seed_list, started, console, stop, models, on_records=write_events)
    if events is not None:
        events.close()
    if not trained.finished:
        return 130
    if run is None:
        return 0

    metrics = named_arrays(trained.records, config, text, variants)
    run.write_metrics(metrics)
    decay = config.weight_decay * far["per_coordinate"] if config.optimizer == "adamw" else 0.0
    found, drawn = conclude(metrics, decay) if variants is None else conclude_untying(metrics, variants)
    timing = launch.timing(trained, models)
    rate = timing["model_steps_per_s"]
    results = plain(
        {
            "experiment": "text_mlm",
            "data": text.facts,
            "model": facts_of_model(config, ensemble),
            "steps": planned.steps,
            "reach": far,
            **found,
            "timing": {
                **timing,
                "tokens_per_s": rate * planned.tokens if rate else None,
                "idle_share": trained.idle_share if rate else None,
                "padding": planned.padding,
            },
        }
    )
    launch.finish(run, config, results, facts, drawn, pages.page if variants is None else curves.page_on_text, console)
    return 0
