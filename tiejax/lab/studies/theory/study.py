"""The theory check of an EXor run: minimise the loss of its members without weight decay, and follow their pairs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tiejax import models, tying
from tiejax.geometry.distances import group_pairs
from tiejax.lab.runs.checkpoints import quiet_libraries, restored_parts
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import reserve_and_finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor import theory
from tiejax.lab.studies.exor.engines import Engine
from tiejax.lab.studies.exor.ensemble import build_engine, build_ensemble
from tiejax.lab.studies.exor.task import EXor, bayes_risk, split
from tiejax.lab.studies.theory import page
from tiejax.lab.studies.theory.settings import STUDY, Settings, settings_of_run
from tiejax.statistics.arms import ARMS
from tiejax.system.json_values import plain

Progress = Callable[[str, int, int | None], None]


def run(launched: Launched, console: Console) -> int:
    """Check the members of a run; return the exit status."""
    quiet_libraries()  # a damaged checkpoint is reported in one line of ours
    with console.preparing() as progress:
        results = plain(check(launched.settings, console.warn, progress))
    plots, finding = page.plot_all(results), page.finding(results)
    return reserve_and_finish(STUDY, launched, console, results, plots, page.page, finding, devices=["cpu"])


def check(settings: Settings, warn: Callable[[str], None], progress: Progress) -> dict[str, Any]:
    """Return the content of results.json; raises BadInput."""
    jax.config.update("jax_platforms", "cpu")  # float64, in small products
    listed, of_run = settings_of_run(settings.folder)
    seeds, step, params, _ = restored_parts(listed, build_ensemble(of_run), settings.folder, warn)
    chosen = chosen_seeds(settings, RunDirectory.results(settings.folder, listed), seeds)
    task = of_run.tasks[0]
    with jax.enable_x64(True):
        engine, members = build_engine(of_run), {}
        loss = theory.training_loss(engine, of_run.ordered)
        for arm, name in enumerate(ARMS):
            ties = [tying.Tie(*models.TABLE_PATHS)] if name == "tied" else []
            of_arm = {seed: member_of(params, seeds.index(seed), arm) for seed in chosen[name]}
            members[name] = continue_members(settings, engine, loss, ties, of_arm, name, progress)
    return {
        "experiment": "theory",
        "run": {"folder": str(settings.folder), "variant": of_run.variant_name, "step": step}
        | {"weight_decay": of_run.weight_decay},
        "model": of_run.model_settings,
        "bayes_cross_entropy": bayes_risk(task, split(task.bits)["train"])[1],
        "pairs": {pair: task.imbalance(pair) for pair, used in task.used.items() if len(used) > 1},
        "iterations": settings.iterations,
        "apart": settings.apart,
        "members": members,
    }


def member_of(params: Any, seed: int, arm: int) -> Any:
    """Return the parameters of one member; params: of all members, leaves `[seed, arm, ...]`."""
    return jax.tree.map(lambda leaf: leaf[seed, arm], params)


def chosen_seeds(settings: Settings, results: dict[str, Any] | None, seeds: Sequence[int]) -> dict[str, list[int]]:
    """Return the seeds of each arm whose members are continued; raises BadInput if there are none.

    results, seeds: of the run, results None if it has not finished.
    """
    if settings.members == "all":
        return {arm: list(seeds[: settings.most]) for arm in ARMS}
    if results is None:
        raise BadInput(
            f"{settings.folder}: the run has not finished, so that its solved members are unknown; use --members all"
        )
    solved = results.get("solved")
    if not solved or not any(map(any, solved.values())):
        raise BadInput(f"{settings.folder}: no member solved the task; use --members all")
    return {
        arm: [seed for seed, found in zip(results["seeds"], solved[arm], strict=True) if found and seed in seeds][
            : settings.most
        ]
        for arm in ARMS
    }


def continue_members(
    settings: Settings,
    engine: Engine,
    loss: Callable[[Any], jax.Array],
    ties: Sequence[tying.Tie],
    members: dict[int, Any],
    arm: str,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Minimise the loss of the members of an arm, by seed; return a row for each."""
    if not members:
        return []
    task, rows = engine.tasks[0], []
    minimiser = theory.Minimiser(loss, next(iter(members.values())), ties)
    for number, (seed, params) in enumerate(members.items()):
        progress(f"{arm} members", number, len(members))
        start = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
        if settings.apart is not None:
            start = moved_apart(start, task, settings.apart, tied=bool(ties))
        found = minimiser.minimise(start, settings.iterations)
        path, measured = list(found.path), [measures(engine, at) for at in found.path.values()]
        rows.append(
            {"seed": seed, "loss": found.losses, "gradient": found.gradients, "iterations": path[-1]}
            | {"reason": found.reason, "path": path, "measures": {name: [at[name] for at in measured] for name in measured[0]}}
        )
    progress(f"{arm} members", len(members), len(members))
    return rows


def measures(engine: Engine, params: Any) -> dict[str, float]:
    """Return the distances of the pairs in both tables and, if there is a reading map, its smallest share and what it reads."""
    task = engine.tasks[0]
    found: dict[str, float] = {}
    for table, name in (("input", "embed"), ("output", "head")):
        for pair, (distance, relative) in theory.distances(np.asarray(params[name]["embedding"]), task).items():
            found |= {f"{table}/{pair}/distance": distance, f"{table}/{pair}/relative": relative}
    reading = theory.reading_map(engine, params)
    if reading is None:
        return found
    read = theory.distances(np.asarray(params["embed"]["embedding"]) @ reading.T, task)
    return (
        found | {"reading": theory.smallest_share(reading)} | {f"read/{pair}/relative": both[1] for pair, both in read.items()}
    )


def moved_apart(params: Any, task: EXor, relative: float, tied: bool) -> Any:
    """Return parameters whose pairs of input embeddings are moved to a relative distance, along the lines from their means.

    The scale of relative distances is that before the move. tied: whether the output table is the same table.
    """
    table = np.array(params["embed"]["embedding"], float)
    scale = theory.scale_of(table, task)
    for spellings in task.used.values():
        rows = list(spellings)
        if len(rows) < 2:
            continue
        middle = table[rows].mean(0)
        away = table[rows] - middle
        if not away.any():  # equal rows have no line between them: take the first axis
            away[:, 0] = np.arange(len(rows))
        table[rows] = middle + away * (relative * scale / theory.mean_distance(away, group_pairs(range(len(rows)))))
    moved = {**params, "embed": {**params["embed"], "embedding": table}}
    return {**moved, "head": {**params["head"], "embedding": table}} if tied else moved
