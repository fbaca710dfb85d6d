"""The files that each model leaves in the run directory: its weights and its records."""

import json
from typing import Any

import jax
import numpy as np
import safetensors.flax

from tiejax import tying
from tiejax.lab.runs.arrays import arrays_of, npz
from tiejax.lab.studies.layer_tying.model import STACK
from tiejax.lab.studies.layer_tying.records import Records
from tiejax.models import TABLE_PATHS
from tiejax.training.stack import stack_of, with_stack


def weights_file(params: Any, owner: np.ndarray) -> bytes:
    """Return a safetensors file of parameters with a place for every layer: distinct arrays once, and in its metadata the ties.

    Metadata: `owner`, the layer whose weights each layer has; `places`, its place in the stack that is saved; `tied`, the pair
    of tables that are one.
    """
    # As `to_device` takes a state of the host, so that it holds whatever rule the ties are by.
    stack = jax.tree.map(lambda leaf: leaf[np.unique(owner)], stack_of(params, STACK))
    leaves = jax.tree_util.tree_leaves_with_path(with_stack(params, STACK, stack))
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): jax.numpy.asarray(leaf) for path, leaf in leaves}
    facts = {"owner": owner.tolist(), "places": tying.places(owner, "compact").tolist(), "tied": TABLE_PATHS}
    content: bytes = safetensors.flax.save(named, {name: json.dumps(value) for name, value in facts.items()})
    return content


def records_file(records: Records) -> bytes:
    """Return the records of a model as an .npz file."""
    return npz({f"{group}/{name}": values for group, fields in records.items() for name, values in fields.items()})


def read_records(content: bytes) -> Records:
    """Return the records of a model from the bytes of an .npz file."""
    records: Records = {}
    for key, values in arrays_of(content).items():
        group, _, name = key.partition("/")
        records.setdefault(group, {})[name] = values
    return records
