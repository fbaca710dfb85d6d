"""The weights from which variants with `initial_weights` are trained, instead of random values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors

from tiejax import models, tying
from tiejax.lab.runs import manifest
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying.model import build_model, initial, read_weights, with_slots
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.system.files import check_file, read_bytes
from tiejax.system.visible import cut

FOLDER = "initial_weights"  # of the copies in the run directory


def copy_of(method: str) -> str:
    """Return the path in the run directory of the weights from which a variant starts."""
    return f"{FOLDER}/{method}.safetensors"


def read_initial(settings: Settings, vocabulary: int) -> dict[str, bytes]:
    """Return the content of the files that `initial_weights` names, by variant.

    Raises BadInput, naming the variant and the file, for weights that do not fit the model of their variant.
    """
    return {method: _checked(settings, method, path, vocabulary) for method, path in _named(settings).items()}


def keep_initial(settings: Settings, directory: RunDirectory, vocabulary: int, contents: Mapping[str, bytes]) -> None:
    """Copy the weights into the run directory unless it has them, so that all models of a run start from the same ones.

    contents: those of `read_initial`; files that are not among them are read if the run has no copy. Raises BadInput if a copy
    is damaged, or was lost and the file has changed since.
    """
    for method, path in _named(settings).items():
        name, content = copy_of(method), contents.get(method, b"")
        if not content and not directory.holds(name):
            content = _checked(settings, method, path, vocabulary)
            if directory.manifest.files.get(name) not in (None, manifest.digest_of_bytes(content)):
                raise BadInput(f"--resume: {cut(path, 200)} has changed since the run was started; restore the original file")
        directory.keep(name, content)


def params_at_start(settings: Settings, directory: RunDirectory, method: str) -> Any:
    """Return the parameters from which a variant starts, on the host with a slot for every layer; None for other methods."""
    if method not in _named(settings):
        return None
    params, _ = read_weights(directory.path / copy_of(method))
    owner = settings.fixed_map(method)
    assert owner is not None
    stored = tying.store(with_slots(params, tying.expansion_slots(owner)), tying.Tie(*models.TABLE_PATHS))
    return jax.tree.map(lambda leaf: np.asarray(leaf, settings.dtype), stored)


def _named(settings: Settings) -> dict[str, Path]:
    """Return the files that `initial_weights` names, by variant."""
    files = {name: variant.initial_weights for name, variant in settings.variants_by_name.items()}
    return {name: Path(file) for name, file in files.items() if file is not None}


def _checked(settings: Settings, method: str, path: Path, vocabulary: int) -> bytes:
    """Return the content of a file; raises BadInput unless it has the map and the shapes of a variant's model."""

    def refuse(problem: str) -> BadInput:
        return BadInput(f"--variants: {method}: initial_weights: {cut(path, 200)}: {problem}")

    owner = settings.fixed_map(method)
    assert owner is not None
    try:
        path = path.expanduser()
        check_file(path)
        content = read_bytes(path)
        params, reads = read_weights(path)
    except OSError as error:
        raise refuse(error.strerror or "cannot be read") from None
    except (ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError):
        raise refuse("is not a model of layer tying; expected a file in models/ of a run, or one of tiejax share") from None
    expected_reads = tying.slots(owner, "compact")
    if reads.tolist() != expected_reads.tolist():
        raise refuse(f"its layers read the slots {cut(reads.tolist())}, those of the variant's map {expected_reads.tolist()}")
    model = build_model(settings, vocabulary, settings.form(method))
    shapes = jax.eval_shape(initial(settings, model), jax.random.key(0), np.unique(owner).astype(np.int32))
    found, expected = _shapes(params), _shapes(shapes)
    names = sorted(name for name in {**expected, **found} if found.get(name) != expected.get(name))
    if wrong := [f"{name}: {found.get(name, 'missing')} instead of {expected.get(name, 'no array')}" for name in names]:
        raise refuse(f"the shapes of its arrays are not those of the variant's model: {cut('; '.join(wrong), 200)}")
    return content


def _shapes(params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}
