"""What the stages of a run cost, in floating-point operations: for its progress and the time left, not for its results."""

from tiejax.lab.studies.embedding_coupling.encoders import CHECKPOINT
from tiejax.lab.studies.embedding_coupling.preparation import Prepared
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import TaskData
from tiejax.models.counts import layer_matrices
from tiejax.models.shapes import FEED_FORWARD, Shape

# Of each weight: a product forward, and two more backward.
FORWARD, TRAINING = 2, 6


def costs_of(settings: Settings, prepared: Prepared) -> dict[str, float]:
    """Return the cost of every stage by name, in the order in which they are run."""
    costs: dict[str, float] = {}
    for name, shape in settings.every_shape.items():
        costs |= _of_pretraining(settings, prepared, name, shape)
        costs |= _of_transfer(settings, prepared, name, shape.layers - shape.drop, _weights_of(shape.width))
    if prepared.start is not None:
        model = prepared.start.model
        costs |= _of_transfer(settings, prepared, CHECKPOINT, model.encoder.layers, _weights_of(model.width))
    return costs


def _of_pretraining(settings: Settings, prepared: Prepared, name: str, shape: Shape) -> dict[str, float]:
    plan, seeds = prepared.plan, len(settings.seed_list)
    head = shape.embed_out * (shape.width + prepared.text.twins.vocabulary)
    places, slots = plan.rows * settings.max_length, plan.slots * plan.mesh
    of_step = float(places * shape.layers * _weights_of(shape.width) + slots * head)
    return {f"pretrain.{name}": TRAINING * seeds * plan.steps * of_step}


def _of_transfer(settings: Settings, prepared: Prepared, name: str, kept: int, layer: int) -> dict[str, float]:
    """Return the cost of all stages after pre-training, of an encoder of so many layers of so many weights."""
    seeds, length = len(settings.seed_list), settings.max_length
    costs: dict[str, float] = {}
    for task in prepared.tasks:
        one = _of_fine_tuning(settings, task, length) * layer
        tried = min(settings.rate_seeds, seeds) * len(settings.fine_tuning_rates)
        runs = seeds * settings.fine_tuning_seeds
        costs[f"rates.{name}.{task.name}"] = 2 * tried * kept * one
        costs[f"scores.{name}.{task.name}"] = 2 * runs * kept * one
        if task.name == settings.drop_task:
            costs |= {f"dropped.{name}.{number}": runs * one * (kept - number) for number in range(1, kept)}
            costs |= {f"mix.{name}": 2 * runs * one * kept / 3} if settings.layer_mix else {}
    return costs | {f"probes.{name}": 1.0}


def _weights_of(width: int) -> int:
    """Return the weights of one layer."""
    return layer_matrices(width, FEED_FORWARD * width)


def _of_fine_tuning(settings: Settings, task: TaskData, length: int) -> float:
    """Return the cost of fine-tuning one member, development and test included, for each weight of its layers."""
    places = settings.fine_tuning_epochs * task.feed.steps_of_epoch * task.feed.rows * length
    read = sum(rows.tokens.size for rows in task.splits.values())
    return TRAINING * places + FORWARD * read
