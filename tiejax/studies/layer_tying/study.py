"""Layers tied and untied by an agent while a model trains (Hay and Wolf, ICLR 2024), against fixed maps on the same batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from tiejax.runs import environment, launch
from tiejax.runs.console import Console
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.studies.layer_tying import page as pages
from tiejax.studies.layer_tying.claims import analyse
from tiejax.studies.layer_tying.job import Records
from tiejax.studies.layer_tying.jobs import Jobs
from tiejax.studies.layer_tying.model import facts_of_model
from tiejax.studies.layer_tying.settings import AGENTS, EXPERIMENT, Config
from tiejax.studies.layer_tying.text import Text, prepare


def named_arrays(config: Config, records: "Mapping[tuple[str, int], Records]") -> dict[str, np.ndarray]:
    """Return the records of all models as the arrays of metrics.npz: `[method, seed, ...]`, and `[agent, seed, ...]`."""
    agents = [name for name in config.names if name in AGENTS]

    def stacked(names: Sequence[str], group: str, field: str) -> np.ndarray:
        return np.array([[records[name, seed][group][field] for seed in config.seed_list] for name in names])

    every, first = config.names, records[config.names[0], config.seed_list[0]]
    arrays = {
        "methods": np.array(every),
        "seeds": np.array(config.seed_list),
        "train_loss": stacked(every, "step", "loss"),
        "distinct": stacked(every, "step", "distinct"),
        "time_step": stacked(every, "step", "time"),
        "validation_step": first["validation"]["step"],
        "validation_loss": stacked(every, "validation", "loss"),
        "validation_loss_best": stacked(every, "final", "validation")[..., 0],
        "test_loss": stacked(every, "final", "test")[..., 0],
        **{name: stacked(every, "final", name)[:, :, 0] for name in ("best_step", "best_owner", "final_owner")},
    }
    if agents:
        of_first = records["agent" if "agent" in agents else agents[0], config.seed_list[0]]["action"]
        arrays |= {
            "agents": np.array(agents),
            "action_episode": of_first["episode"],
            "action_layer": of_first["layer"],
            "epsilon": of_first["epsilon"],
            **{name: stacked(agents, "action", name) for name in ("action", "reward", "q_loss")},
            "action_owner": stacked(agents, "action", "owner"),
        }
    return arrays


def sizes_of(config: Config, records: "Mapping[tuple[str, int], Records]") -> dict[int, dict[str, int]]:
    """Return what a step takes with so many distinct layers, for every number that occurred."""
    found: dict[int, dict[str, int]] = {}
    for one in records.values():
        size = one["size"]
        for place, height in enumerate(size["height"].tolist()):
            found[height] = {name: int(values[place]) for name, values in size.items() if name != "height"}
    if config.storage == "compact":
        return found
    distinct = {int(number) for one in records.values() for number in np.unique(one["step"]["distinct"])}
    distinct |= {len(np.unique(one["final"]["best_owner"])) for one in records.values()}
    return dict.fromkeys(sorted(distinct), found[config.layers])


def main(argv: Sequence[str]) -> int:
    """Run the experiment; return its exit status."""
    environment.one_device_a_core()
    console = Console("--quiet" in argv)
    started = launch.start(EXPERIMENT, argv, lambda config, first: prepare(config, console, "--resume" in argv))
    config, run = started.config, started.run
    if started.finished:
        console.result(f"the run is finished: {Path(config.out) / 'report.html'}")
        return 0
    assert run is not None
    text: Text = started.prepared
    told = text.streams.facts | {"fingerprint": text.streams.fingerprint}
    facts_of_text = launch.keep_text(run, told, text.streams.tokenizer_file.read_bytes())
    stop = stop_flag()

    if config.dtype == "float32":
        # Accelerators multiply float32 in fewer bits unless told otherwise.
        jax.config.update("jax_default_matmul_precision", "highest")
    facts = run.write_environment({"devices": [one.device_kind for one in jax.devices()]}, launch.command_of(argv))
    model = facts_of_model(config, text.streams.vocabulary)
    pieces = {name: len(part) * (config.context - 1) for name, part in text.blocks.items()}
    console.say(
        f"text: {pieces['train']:,} pieces for training, {pieces['validation']:,} for validation, {pieces['test']:,} for test, "
        f"in blocks of {config.context}; {text.streams.vocabulary:,} different ones; "
        f"fingerprint {text.streams.fingerprint[:16]}"
    )
    console.say(
        f"{len(config.names)} methods x {len(config.seed_list)} seeds, {config.steps:,} steps, {model['parameters_untied']:,} "
        f"parameters untied, on {jax.device_count()} x {jax.devices()[0].device_kind}, in {config.out}"
    )
    jobs = Jobs(config, text, run, started.switches["resume"], console)
    with console:
        jobs.run(jax.devices(), stop)
    if jobs.stopped:
        console.result(f"stopped after {jobs.done:,} of {jobs.total:,} steps; go on with the same command and --resume")
        return 130

    metrics = named_arrays(config, jobs.records)
    run.write_metrics(metrics)
    sizes = sizes_of(config, jobs.records)
    splits = text.streams.facts["splits"]
    found, runs = analyse(
        metrics, sizes, {name: splits[name]["pieces"] / splits[name]["words"] for name in ("validation", "test")}
    )
    train_s = jobs.train_s if jobs.here else 0.0
    rate = jobs.here / train_s if train_s else None
    results = plain(
        {
            "experiment": "layer_tying",
            "model": model,
            "data": facts_of_text,
            "steps": config.steps,
            "sizes": sizes,
            **found,
            "timing": {"compile_s": jobs.compile_s, "train_s": train_s, "model_steps_per_s": rate},
        }
    )
    launch.finish(run, config, results, facts, pages.drawn(runs, found), pages.page, console)
    return 0
