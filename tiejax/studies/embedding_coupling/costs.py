"""What the stages of a run cost, in floating-point operations: for its progress and the time left, not for its results."""

from tiejax.models.shapes import FEED_FORWARD, Shape
from tiejax.studies.embedding_coupling.preparation import Prepared
from tiejax.studies.embedding_coupling.settings import Settings
from tiejax.studies.embedding_coupling.task_data import TaskData

# Of each weight: a product forward, and two more backward.
FORWARD, TRAINING = 2, 6


def costs_of(settings: Settings, prepared: Prepared) -> dict[str, float]:
    """Return the cost of every stage by name, in the order in which they are run."""
    costs: dict[str, float] = {}
    for name, shape in settings.every_shape.items():
        costs |= _of_shape(settings, prepared, name, shape)
    return costs


def _of_shape(settings: Settings, prepared: Prepared, name: str, shape: Shape) -> dict[str, float]:
    plan, seeds, length = prepared.plan, len(settings.seed_list), settings.max_length
    layer = _weights_of_layer(shape)
    head = shape.embed_out * (shape.width + prepared.text.twins.vocabulary)
    places, slots = plan.rows * length, plan.slots * plan.mesh
    costs = {f"pretrain-{name}": TRAINING * seeds * plan.steps * float(places * shape.layers * layer + slots * head)}
    kept = shape.layers - shape.drop
    for task in prepared.tasks:
        one = _of_fine_tuning(settings, task, length) * layer
        tried = min(settings.rate_seeds, seeds) * len(settings.fine_tuning_rates)
        runs = seeds * settings.fine_tuning_seeds
        costs[f"rates-{name}-{task.name}"] = 2 * tried * kept * one
        costs[f"scores-{name}-{task.name}"] = 2 * runs * kept * one
        if task.name == settings.drop_task:
            costs |= {f"dropped-{name}-{number}": runs * one * (kept - number) for number in range(1, kept)}
            costs |= {f"mix-{name}": 2 * runs * one * kept / 3} if settings.layer_mix else {}
    return costs | {f"probes-{name}": 1.0}


def _weights_of_layer(shape: Shape) -> int:
    """Return the weights of one layer: four maps of attention, and two of the feed-forward layer."""
    return 4 * shape.width**2 + 2 * shape.width * FEED_FORWARD * shape.width


def _of_fine_tuning(settings: Settings, task: TaskData, length: int) -> float:
    """Return the cost of fine-tuning one member, development and test included, for each weight of its layers."""
    places = settings.fine_tuning_epochs * task.feed.steps_of_epoch * task.feed.rows * length
    read = sum(rows.tokens.size for rows in task.splits.values())
    return TRAINING * places + FORWARD * read
