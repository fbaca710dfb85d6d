"""Layers tied and untied by an agent while a model trains (Hay and Wolf, ICLR 2024), against fixed maps on the same batches."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from tiejax.runs.console import Console
from tiejax.runs.finish import finish
from tiejax.runs.launch import Launched
from tiejax.runs.resume import keep_text
from tiejax.runs.run_directory import plain, stop_flag
from tiejax.studies.layer_tying import page, plots
from tiejax.studies.layer_tying.claims import analyse
from tiejax.studies.layer_tying.job import Records
from tiejax.studies.layer_tying.jobs import Jobs
from tiejax.studies.layer_tying.model import facts_of_model
from tiejax.studies.layer_tying.settings import AGENTS, Settings
from tiejax.studies.layer_tying.text import Text


def named_arrays(settings: Settings, records: "Mapping[tuple[str, int], Records]") -> dict[str, np.ndarray]:
    """Return the records of all models as the arrays of metrics.npz: `[method, seed, ...]`, and `[agent, seed, ...]`."""
    agents = [name for name in settings.names if name in AGENTS]

    def stacked(names: Sequence[str], group: str, field: str) -> np.ndarray:
        return np.array([[records[name, seed][group][field] for seed in settings.seed_list] for name in names])

    every, first = settings.names, records[settings.names[0], settings.seed_list[0]]
    arrays = {
        "methods": np.array(every),
        "seeds": np.array(settings.seed_list),
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
        of_first = records["agent" if "agent" in agents else agents[0], settings.seed_list[0]]["action"]
        arrays |= {
            "agents": np.array(agents),
            "action_episode": of_first["episode"],
            "action_layer": of_first["layer"],
            "epsilon": of_first["epsilon"],
            **{name: stacked(agents, "action", name) for name in ("action", "reward", "q_loss")},
            "action_owner": stacked(agents, "action", "owner"),
        }
    return arrays


def sizes_of(settings: Settings, records: "Mapping[tuple[str, int], Records]") -> dict[int, dict[str, int]]:
    """Return what a step takes with so many distinct layers, for every number that occurred."""
    found: dict[int, dict[str, int]] = {}
    for one in records.values():
        size = one["size"]
        for place, stack_size in enumerate(size["stack_size"].tolist()):
            found[stack_size] = {name: int(values[place]) for name, values in size.items() if name != "stack_size"}
    if settings.storage == "compact":
        return found
    distinct = {int(number) for one in records.values() for number in np.unique(one["step"]["distinct"])}
    distinct |= {len(np.unique(one["final"]["best_owner"])) for one in records.values()}
    return dict.fromkeys(sorted(distinct), found[settings.layers])


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    assert directory is not None
    text: Text = launched.prepared
    told = text.streams.facts | {"fingerprint": text.streams.fingerprint}
    data = keep_text(directory, told, text.streams.tokenizer_file.read_bytes())
    stop = stop_flag()
    if settings.dtype == "float32":
        # Accelerators multiply float32 in fewer bits unless told otherwise.
        jax.config.update("jax_default_matmul_precision", "highest")
    facts = directory.write_environment({"devices": [device.device_kind for device in jax.devices()]}, launched.command)
    model = facts_of_model(settings, text.streams.vocabulary)
    announce(settings, text, model["parameters_untied"], console)

    jobs = Jobs(settings, text, directory, launched.switches["resume"], console)
    with console:
        jobs.run(jax.devices(), stop)
    if jobs.stopped:
        console.result(f"stopped after {jobs.done:,} of {jobs.total:,} steps; go on with the same command and --resume")
        return 130

    metrics, sizes = named_arrays(settings, jobs.records), sizes_of(settings, jobs.records)
    directory.write_metrics(metrics)
    splits = text.streams.facts["splits"]
    per_word = {name: splits[name]["tokens"] / splits[name]["words"] for name in ("validation", "test")}
    found, runs = analyse(metrics, sizes, per_word)
    train_s = jobs.train_s if jobs.here else 0.0
    results = plain(
        {
            "experiment": "layer_tying",
            "model": model,
            "data": data,
            "steps": settings.steps,
            "sizes": sizes,
            **found,
            "timing": {
                "compile_s": jobs.compile_s,
                "train_s": train_s,
                "model_steps_per_s": jobs.here / train_s if train_s else None,
            },
        }
    )
    finish(directory, settings, results, facts, plots.plot_all(runs, found), page.page, console)
    return 0


def announce(settings: Settings, text: Text, parameters: int, console: Console) -> None:
    """Say what is about to be trained on what."""
    tokens = {name: len(part) * (settings.context - 1) for name, part in text.blocks.items()}
    console.say(
        f"text: {tokens['train']:,} tokens for training, {tokens['validation']:,} for validation, {tokens['test']:,} for test, "
        f"in blocks of {settings.context}; {text.streams.vocabulary:,} different ones; "
        f"fingerprint {text.streams.fingerprint[:16]}"
    )
    console.say(
        f"{len(settings.names)} methods x {len(settings.seed_list)} seeds, {settings.steps:,} steps, {parameters:,} "
        f"parameters untied, on {jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )
