"""Preparation of a run: its text, tasks, probe data, step plan, and the costs of its stages."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from tiejax.checkpoints.hub.weights import Loaded
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory, check_steps
from tiejax.lab.studies.embedding_coupling import sizes
from tiejax.lab.studies.embedding_coupling.encoders import CHECKPOINT, checkpoint_size, load_start
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import ProbeData, TaskData, probe_data, read_files, task_data
from tiejax.lab.studies.embedding_coupling.text import Text, plan, prepare_text, text_of_checkpoint
from tiejax.models.counts import layer_matrices
from tiejax.models.shapes import FEED_FORWARD
from tiejax.pretraining.step_plan import StepPlan, devices_of_member
from tiejax.text.errors import CorpusError
from tiejax.text.stored import digest


class Prepared(NamedTuple):
    """The prepared input of a run. start: the checkpoint of a run that does not pre-train; its plan then has no steps."""

    text: Text
    plan: StepPlan
    tasks: list[TaskData]
    probes: ProbeData
    start: Loaded | None


def prepare(settings: Settings, console: Console, resume: bool = False) -> Prepared:
    """Prepare the input of a run; raises BadInput. resume: use the vocabulary with which the run was started."""
    try:
        counts = len(settings.trained_seeds), jax.device_count(), jax.local_device_count()
        mesh = devices_of_member(*counts, settings.mesh, jax.default_backend())
    except ValueError as error:
        raise BadInput(f"--{error}") from None
    # Read files first, so that errors in them are reported before a text is prepared.
    files = read_files(settings)
    if settings.start is not None:
        start = load_start(settings)
        text = text_of_checkpoint(settings, Path(settings.start), start.vocabulary)
        planned = StepPlan(0, 0, 0, mesh, 0.0, 0.0)
    else:
        start, text = None, prepare_text(settings, console, resume)
        planned = plan(settings, text, mesh)
    causal = start is not None and start.model.encoder.causal
    try:
        tasks = [task_data(settings, text, task, mesh, causal) for task in files.tasks]
        probes = probe_data(settings, text, files)
    except CorpusError as error:  # the tokenizer cannot encode a sentence of a task
        raise BadInput(f"--{error}") from None
    check_sizes(settings, text, mesh, tasks, start)
    # The fingerprint covers tasks and probes too, so that a run cannot be resumed with different ones.
    whole = {"text": text.facts["fingerprint"], "files": digest([list(part) if part else part for part in files])}
    if start is not None:
        whole["weights"] = digest(
            [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in jax.tree.leaves(start.params)]
        )
    text = text._replace(facts=text.facts | {"fingerprint": digest(whole)})
    return Prepared(text, planned, tasks, probes, start)


def check_sizes(settings: Settings, text: Text, mesh: int, tasks: list[TaskData], start: Loaded | None) -> None:
    """Raise BadInput if the run, with its text and tasks, has too many steps or needs more memory than the machine has."""
    for task in tasks:
        check_steps("fine_tuning_epochs", settings.fine_tuning_epochs, settings.fine_tuning_epochs * task.feed.steps_of_epoch)
    decided = text.twins.vocabulary, mesh, 0 if start is None else checkpoint_size(start)
    check_memory(settings, sizes.need(settings, *decided), sizes.FLAGS)


# Operations per weight and token: two for each matrix product, of which the backward pass has two more.
FORWARD, TRAINING = 2, 6


def costs_of(settings: Settings, prepared: Prepared) -> dict[str, float]:
    """Return the floating-point operations of every stage, in order, from which the remaining time is estimated."""
    costs, transfer = dict[str, float](), dict[str, float]()
    plan, seeds = prepared.plan, len(settings.trained_seeds)
    for name, shape in settings.every_shape.items():
        weights = layer_matrices(shape.width, FEED_FORWARD * shape.width)
        head = shape.embed_out * (shape.width + prepared.text.twins.vocabulary)
        step_cost = float(plan.rows * settings.max_length * shape.layers * weights + plan.slots * plan.mesh * head)
        costs[f"pretrain.{name}"] = TRAINING * seeds * plan.steps * step_cost
        transfer |= _of_transfer(settings, prepared.tasks, name, shape.layers - shape.drop, shape.width)
    if prepared.start is not None:
        model = prepared.start.model
        transfer |= _of_transfer(settings, prepared.tasks, CHECKPOINT, model.encoder.layers, model.width)
    return costs | transfer


def _of_transfer(settings: Settings, tasks: list[TaskData], name: str, layers: int, width: int) -> dict[str, float]:
    """Return the cost of all stages after pre-training, of an encoder with `layers` layers."""
    costs: dict[str, float] = {}
    tried = settings.rate_seeds * len(settings.fine_tuning_rates)
    runs = len(settings.seed_list) * settings.fine_tuning_seeds
    for task in tasks:
        trained = settings.fine_tuning_epochs * task.feed.steps_of_epoch * task.feed.rows * settings.max_length
        evaluated = sum(rows.tokens.size for rows in task.splits.values())
        one = (TRAINING * trained + FORWARD * evaluated) * layer_matrices(width, FEED_FORWARD * width)  # a layer of a member
        costs[f"rates.{name}.{task.name}"] = 2 * tried * layers * one
        costs[f"scores.{name}.{task.name}"] = 2 * runs * layers * one
        if task.name == settings.drop_task:
            costs |= {f"dropped.{name}.{number}": runs * one * (layers - number) for number in range(1, layers)}
            if settings.layer_mix:
                probe = 2 * one * layers / 3
                costs |= {f"mix_rates.{name}": tried * probe, f"mix.{name}": runs * probe}
    return costs | {f"probes.{name}": 1.0}
