"""Floating-point operations of the stages of a run, used to estimate progress and remaining time."""

from tiejax.lab.studies.embedding_coupling.encoders import CHECKPOINT
from tiejax.lab.studies.embedding_coupling.preparation import Prepared
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import TaskData
from tiejax.models.counts import layer_matrices
from tiejax.models.shapes import FEED_FORWARD, Shape

# Operations per weight and token: two for each matrix product, of which the backward pass has two more.
FORWARD, TRAINING = 2, 6


def costs_of(settings: Settings, prepared: Prepared) -> dict[str, float]:
    """Return the cost of every stage by name, in the order in which the stages run."""
    costs: dict[str, float] = {}
    for name, shape in settings.every_shape.items():
        costs |= _of_pretraining(settings, prepared, name, shape)
        costs |= _of_transfer(settings, prepared, name, shape.layers - shape.drop, _weights_of(shape.width))
    if prepared.start is not None:
        model = prepared.start.model
        costs |= _of_transfer(settings, prepared, CHECKPOINT, model.encoder.layers, _weights_of(model.width))
    return costs


def _of_pretraining(settings: Settings, prepared: Prepared, name: str, shape: Shape) -> dict[str, float]:
    plan, seeds = prepared.plan, len(settings.trained_seeds)
    head = shape.embed_out * (shape.width + prepared.text.twins.vocabulary)
    tokens, slots = plan.rows * settings.max_length, plan.slots * plan.mesh
    step_cost = float(tokens * shape.layers * _weights_of(shape.width) + slots * head)
    return {f"pretrain.{name}": TRAINING * seeds * plan.steps * step_cost}


def _of_transfer(settings: Settings, prepared: Prepared, name: str, layers: int, weights: int) -> dict[str, float]:
    """Return the cost of all stages after pre-training, of an encoder with `layers` layers of `weights` weights each."""
    seeds, length = len(settings.seed_list), settings.max_length
    costs: dict[str, float] = {}
    for task in prepared.tasks:
        one = _of_fine_tuning(settings, task, length) * weights
        tried = settings.rate_seeds * len(settings.fine_tuning_rates)
        runs = seeds * settings.fine_tuning_seeds
        costs[f"rates.{name}.{task.name}"] = 2 * tried * layers * one
        costs[f"scores.{name}.{task.name}"] = 2 * runs * layers * one
        if task.name == settings.drop_task:
            costs |= {f"dropped.{name}.{number}": runs * one * (layers - number) for number in range(1, layers)}
            if settings.layer_mix:
                probe = 2 * one * layers / 3
                costs |= {f"mix_rates.{name}": tried * probe, f"mix.{name}": runs * probe}
    return costs | {f"probes.{name}": 1.0}


def _weights_of(width: int) -> int:
    """Return the number of weights of one layer."""
    return layer_matrices(width, FEED_FORWARD * width)


def _of_fine_tuning(settings: Settings, task: TaskData, length: int) -> float:
    """Return the cost per layer weight of fine-tuning a member and evaluating it on development and test."""
    trained = settings.fine_tuning_epochs * task.feed.steps_of_epoch * task.feed.rows * length
    evaluated = sum(rows.tokens.size for rows in task.splits.values())
    return TRAINING * trained + FORWARD * evaluated
