"""The weights from which variants with `start` are trained, instead of random values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors

from tiejax import models, tying
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying.files import read_weights
from tiejax.lab.studies.layer_tying.model import STACK, build_model, initial
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.system.files import read_bytes
from tiejax.system.visible import cut
from tiejax.training.stack import stack_of, with_stack

FOLDER = "start"  # of the copies in the run directory


def start_file(method: str) -> str:
    """Return the path in the run directory of the weights from which a variant starts."""
    return f"{FOLDER}/{method}.safetensors"


def started(settings: Settings) -> dict[str, Path]:
    """Return the files that `start` names, by variant."""
    return {
        name: Path(variant.start).expanduser()
        for name, variant in settings.variants_by_name.items()
        if variant.start is not None
    }


def check_starts(settings: Settings, vocabulary: int) -> None:
    """Raise BadInput, naming the variant and the file, for weights that do not fit the model of their variant."""
    for method, path in started(settings).items():
        _check(settings, method, path, vocabulary)


def keep_starts(settings: Settings, directory: RunDirectory, vocabulary: int) -> None:
    """Copy the files of `start` into the run directory, unless it has them: all models of a run start from the same weights."""
    for method, path in started(settings).items():
        if not directory.holds(start_file(method)):
            _check(settings, method, path, vocabulary)
            directory.keep(start_file(method), read_bytes(path))


def params_at_start(settings: Settings, directory: RunDirectory, method: str) -> Any:
    """Return the parameters from which a variant starts, on the host with a slot for every layer; None for other methods."""
    if method not in started(settings):
        return None
    if not directory.intact(start_file(method)):
        raise BadInput(f"--resume: {directory.path / start_file(method)} is damaged or missing; restore it, or start a new run")
    params, _ = read_weights(directory.path / start_file(method))
    owner = settings.fixed_map(method)
    assert owner is not None
    of_layers = tying.expansion_slots(owner)
    stack = jax.tree.map(lambda leaf: np.asarray(leaf)[of_layers], stack_of(params, STACK))
    stored = tying.store(with_stack(params, STACK, stack), tying.Tie(*models.TABLE_PATHS))
    return jax.tree.map(lambda leaf: np.asarray(leaf, settings.dtype), stored)


def _check(settings: Settings, method: str, path: Path, vocabulary: int) -> None:
    """Raise BadInput unless a file has the map and the shapes of a variant's model."""

    def refuse(problem: str) -> BadInput:
        return BadInput(f"--variants: {method}: start: {cut(path, 200)}: {problem}")

    owner = settings.fixed_map(method)
    assert owner is not None
    try:
        params, reads = read_weights(path)
    except OSError as error:
        raise refuse(error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
        raise refuse("is not a model of layer tying; expected a file in models/ of a run, or one of tiejax share") from None
    expected_reads = tying.slots(owner, "compact")
    if reads.tolist() != expected_reads.tolist():
        raise refuse(f"its layers read the slots {cut(reads.tolist())}, those of the variant's map {expected_reads.tolist()}")
    model = build_model(settings, vocabulary, settings.form(method))
    shapes = jax.eval_shape(initial(settings, model), jax.random.key(0), np.unique(owner).astype(np.int32))
    found, expected = _shapes(params), _shapes(shapes)
    if missing := sorted(set(expected) - set(found)):
        raise refuse(f"has no {missing[0]}")
    if unknown := sorted(set(found) - set(expected)):
        raise refuse(f"has {cut(unknown[0])}, which the variant's model does not have")
    if different := [name for name in sorted(expected) if found[name] != expected[name]]:
        name = different[0]
        raise refuse(f"{name} has the shape {found[name]}, that of the variant's model {expected[name]}")


def _shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}
