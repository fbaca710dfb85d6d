"""The figures of a layer-tying run, with captions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.layer_tying import drawing
from tiejax.lab.studies.layer_tying.drawing import MIB

MOST_SEEDS = 6  # panels of one row

Metrics = Mapping[str, np.ndarray]


def plot_all(runs: Metrics, findings: Mapping[str, Any]) -> list[Plot]:
    """Plot all figures of a run from the output of `analyse`; none if no seed stayed finite."""
    if not findings["seeds"]:
        return []
    rows = findings["methods"]
    return [
        plot_bytes(rows),
        plot_methods(rows),
        *([plot_tie_maps(runs)] if findings["agents"] else []),
        plot_learning(runs),
        *([plot_agents(runs)] if findings["agents"] else []),
        plot_final_maps(rows, findings["seeds"]),
    ]


def plot_tie_maps(runs: Metrics) -> Plot:
    """Plot the layer that each layer copies at the end of every episode: a row per agent, a panel per seed."""
    seeds = runs["seeds"][:MOST_SEEDS]
    rows = {
        str(name): {f"seed {seed}": runs["episode_owner"][agent, index] for index, seed in enumerate(seeds)}
        for agent, name in enumerate(runs["agents"])
    }
    subset = f" The first {MOST_SEEDS} of {len(runs['seeds'])} seeds." if len(runs["seeds"]) > MOST_SEEDS else ""
    return Plot(
        "map",
        "The tying map over time, at the end of each episode. The colour shows which layer a layer copies; independent layers "
        f"have their own colour.{subset}",
        drawing.maps_over_time(runs["episode"], rows),
    )


def plot_learning(runs: Metrics) -> Plot:
    """Plot the validation perplexity of every method over steps and over time."""
    names = [str(name) for name in runs["methods"]]
    return Plot(
        "learning",
        "Validation perplexity per token (on the blocks that select the best step) over steps and over seconds of training. "
        "Thin: a seed; thick: mean over seeds (of nats, and of seconds); dashed: fixed maps and variants. The first steps, "
        "with perplexities far above all final ones, lie outside the panel. The time of a step is the median over all steps of "
        "its method with the same number of distinct layers.",
        drawing.learning(
            runs["validation_step"],
            dict(zip(names, runs["validation_loss"].astype(float), strict=True)),
            dict(zip(names, runs["validation_seconds"], strict=True)),
        ),
    )


def plot_bytes(rows: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot the test loss of every method over the bytes of its parameters; rows: `methods` of results.json."""
    points = {row["method"]: (np.array(row["parameter_bytes"], float), np.array(row["test_loss"], float)) for row in rows}
    reference = "untied" if "untied" in points else None
    dashed = " Dashed: the mean of the untied model." if reference else ""
    return Plot(
        "bytes",
        "Test loss over the bytes of the parameters, both at the best step. A dot is a seed, a bar the mean over seeds; "
        f"methods with almost equal bytes are drawn side by side.{dashed}",
        drawing.bytes_against_loss(points, reference),
    )


def plot_methods(rows: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot perplexity, memory and time of every method; rows: `methods` of results.json."""
    panels = {
        "test perplexity per token": {row["method"]: row["test_perplexity"]["seeds"] for row in rows},
        "parameters, gradients, optimizer (MiB)": {
            row["method"]: [value / MIB for value in row["bytes"]["stored_bytes"]["seeds"]] for row in rows
        },
        "seconds per step": {row["method"]: row["seconds_per_step"]["seeds"] for row in rows},
    }
    return Plot(
        "methods",
        "Test perplexity at the best step, bytes of parameters, gradients and optimizer state together (mean over training), "
        "and time of a training step (median over steps). One dot per seed; bars: means.",
        drawing.methods(panels, from_zero=list(panels)[1:]),
    )


def plot_agents(runs: Metrics) -> Plot:
    """Plot distinct layers, reward, Q loss and epsilon of the agents over episodes."""
    names = [str(name) for name in runs["agents"]]
    panels = {
        "distinct layers": dict(zip(names, runs["episode_distinct"], strict=True)),
        "reward": dict(zip(names, runs["episode_reward"], strict=True)),
        "Q loss": dict(zip(names, runs["episode_q_loss"], strict=True)),
        "epsilon": {"agent" if "agent" in names else names[0]: runs["episode_epsilon"][None]},
    }
    return Plot(
        "agent",
        "The agents over episodes: distinct layers, reward and squared error of Q (means over the actions of an episode), and "
        "epsilon, the probability of a random action, at its end. Thin: a seed; thick: mean over seeds.",
        drawing.over_episodes(runs["episode"], panels, ("Q loss",)),
    )


def plot_final_maps(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Plot:
    """Plot the final owner map of every method and seed."""
    return Plot(
        "maps",
        "The final map of each method: for each layer, the number of the layer whose weights it uses. One row if all "
        "seeds have the same map.",
        drawing.map_cells(final_maps(rows, seeds)),
    )


def final_maps(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Return (label, final map) of every method and seed, with one entry if all seeds of a method have the same map."""
    labelled = []
    for row in rows:
        maps = row["final_owner"]
        if all(owner == maps[0] for owner in maps):
            labelled.append((row["method"], maps[0]))
        else:
            labelled += [(f"{row['method']}, seed {seed}", owner) for seed, owner in zip(seeds, maps, strict=True)]
    return labelled
