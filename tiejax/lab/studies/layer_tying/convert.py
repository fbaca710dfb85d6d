"""Conversion of a trained model without ties to shared layers with low-rank adaptations, and its loss before and after."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import models, tying
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import Manifest, is_as_written
from tiejax.lab.runs.run_directory import CONFIG, FINISHED
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying import model
from tiejax.lab.studies.layer_tying.job import mean_loss
from tiejax.lab.studies.layer_tying.settings import Form, Settings
from tiejax.lab.studies.layer_tying.text import Text, build_data, prepare
from tiejax.models import lora
from tiejax.system.visible import cut
from tiejax.training.stack import stack_of, stack_size_of, with_stack
from tiejax.tying.layer_ties import fixed_wiring
from tiejax.tying.leaves import tree_bytes

ADAPTATION = "encoder/lora"


class Weights(NamedTuple):
    """The weights of a model, with a slot of the stack for each distinct layer, and the layer that each layer uses."""

    params: Any
    owner: tying.Owner


class Converted(NamedTuple):
    """A converted model with adaptations of a rank, and squared Frobenius norms.

    apart: of the differences between layers and the means that they share. left_out: the part of `apart` that the adaptations
    leave out. norm: of the layers.
    """

    weights: Weights
    rank: int
    apart: float
    left_out: float
    norm: float


def read_untied(folder: Path, listed: Manifest, name: str) -> Weights:
    """Return the weights of the model `name`, METHOD-seedS, of a run in a folder.

    Raises BadInput if it is missing, unfinished or damaged, or its layers share weights or have adaptations.
    """
    file = f"models/{name}.safetensors"
    if file not in listed.files:
        trained = [Path(path).stem for path in listed.files if Path(path).parent.name == "models"]
        known = f"those are {', '.join(trained)}" if trained else "it has none yet"
        raise BadInput(f"--model: expected a trained model of {folder} ({known}), got '{cut(name)}'")
    if not is_as_written(folder, file, listed):
        raise BadInput(
            f"{folder / file}: damaged or missing; remove {folder / FINISHED / name}.npz and resume the run to train that "
            "model again"
        )
    params, reads = model.read_weights(folder / file)
    if "lora" in params["encoder"]:
        raise BadInput(f"--model {name}: has low-rank adaptations; name a model with separate layers, such as that of untied")
    layers, distinct = len(reads), stack_size_of(params, model.STACK)
    if distinct < layers:
        raise BadInput(
            f"--model {name}: its layers share weights already ({distinct} of {layers} are distinct); name a model with "
            "separate layers, such as that of untied"
        )
    return Weights(tying.store(params, tying.Tie(*models.TABLE_PATHS)), tying.independent(layers))


def convert(weights: Weights, owner: tying.Owner, rank: int | None) -> Converted:
    """Return a model in which layers share their mean weights and have low-rank adaptations (`models.lora.from_layers`).

    owner: the layer whose slot each layer will use, `[layers]`. rank: of the adaptations; 0 for none, None for the full rank.
    """
    stack = stack_of(weights.params, model.STACK)
    full = max(min(leaf.shape[1:]) for leaf in jax.tree.leaves(stack) if leaf.ndim == 3)
    rank = full if rank is None else min(rank, full)
    shared, adaptation = lora.from_layers(stack, owner, rank)
    params = with_stack(weights.params, model.STACK, shared)
    if adaptation is not None:
        params = with_stack(params, ADAPTATION, adaptation)
    slots = tying.slots(owner, "compact")
    means = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[slots], shared)
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), adaptation)
    adapted = means if adaptation is None else lora.adapted(means, exact)
    nothing = jax.tree.map(np.zeros_like, means)
    apart, left_out, norm = (_squared_distance(stack, other) for other in (means, adapted, nothing))
    return Converted(Weights(params, owner), rank, apart, left_out, norm)


def _squared_distance(stack: Any, other: Any) -> float:
    """Return the squared Frobenius norm of the difference of two trees of arrays."""
    squares = jax.tree.map(lambda one, two: float(np.sum((np.asarray(one, np.float64) - two) ** 2)), stack, other)
    return math.fsum(jax.tree.leaves(squares))


def file_of(weights: Weights) -> bytes:
    """Serialise the weights of a model in the format of a run's files."""
    of_layers = tying.expansion_slots(weights.owner)
    return model.weights_file(model.with_slots(weights.params, of_layers), weights.owner)


def bytes_of(weights: Weights) -> int:
    """Return the bytes of all arrays of a model."""
    return tree_bytes(weights.params)


def text_of_run(settings: Settings, listed: Manifest, console: Console) -> Text:
    """Return the text on which a run was trained; raises BadInput, also if its files have changed since."""
    try:
        text = prepare(settings, console, resume=True)
    except BadInput as error:  # which names an option of the run
        raise BadInput(f"{Path(settings.out or '') / CONFIG}: {error}") from None
    if text.streams.fingerprint != listed.text:
        raise BadInput(
            f"{settings.out}: was trained on another text ({str(listed.text)[:16]}...) than its --corpus now contains; restore "
            "the original files"
        )
    return text


def loss_on_test(settings: Settings, text: Text, form: Form, weights: Weights) -> float:
    """Return the loss of a model on the test blocks of a run, evaluated as in the run, in nats per token."""
    layered = model.build(settings, text.streams.vocabulary, text.streams.begin, jax.devices()[:1], form=form)
    # Nothing is trained, so the rule of the ties makes no difference.
    wiring = fixed_wiring(weights.owner, "compact")
    batches = build_data(settings, text).held_out["test"]
    return mean_loss(layered, layered.place(weights.params), batches, wiring)


def report(before: Weights, converted: Converted, losses: Mapping[str, float]) -> list[str]:
    """Return the lines that describe a conversion. losses: `before` and `after` it."""
    old, new = bytes_of(before), bytes_of(converted.weights)
    distinct = len(np.unique(converted.weights.owner))
    lost = converted.left_out / converted.apart if converted.apart else 0.0
    return [
        f"map {converted.weights.owner.tolist()}: {distinct} of {len(before.owner)} layers distinct; adaptations of rank "
        f"{converted.rank}",
        f"weights: {old:,} bytes before, {new:,} after ({new / old:.3f} x)",
        f"left out: {lost:.4%} of the squared Frobenius norm of the differences between layers and their means "
        f"({converted.left_out / converted.norm:.4%} of that of the layers)",
        f"test loss: {losses['before']:.6f} nats per token before, {losses['after']:.6f} after",
    ]
