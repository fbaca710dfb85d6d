"""The files of each model in the run directory: weights (safetensors) and records (.npz)."""

import json
from pathlib import Path
from typing import Any

import flax.traverse_util
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
    """Serialise parameters, stacked over all layers, as a safetensors file with each distinct array once.

    The ties are in its metadata: `owner`, the layer whose weights each layer uses; `places`, the slot of each layer in the
    saved stack; `tied`, the paths of the two tables that share one array.
    """
    # Index by owner, as `to_device` does with a state on the host, so that this works with resolved and with published ties.
    stack = jax.tree.map(lambda leaf: leaf[np.unique(owner)], stack_of(params, STACK))
    leaves = jax.tree_util.tree_leaves_with_path(with_stack(params, STACK, stack))
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): jax.numpy.asarray(leaf) for path, leaf in leaves}
    facts = {"owner": owner.tolist(), "places": tying.slots(owner, "compact").tolist(), "tied": TABLE_PATHS}
    content: bytes = safetensors.flax.save(named, {name: json.dumps(value) for name, value in facts.items()})
    return content


def read_weights(path: Path) -> tuple[Any, np.ndarray]:
    """Read a file of `weights_file`: the full parameters, and the slot of the stack that each layer reads, int32 `[layers]`."""
    with safetensors.safe_open(path, "flax") as file:
        facts = file.metadata()
        named = {tuple(name.split("/")): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    params = tying.view(flax.traverse_util.unflatten_dict(named), [tying.Tie(*json.loads(facts["tied"]))])
    return params, np.array(json.loads(facts["places"]), np.int32)


def records_file(records: Records) -> bytes:
    """Serialise the records of a model as an .npz file."""
    return npz({f"{group}/{name}": values for group, fields in records.items() for name, values in fields.items()})


def read_records(content: bytes) -> Records:
    """Parse the records of a model from an .npz file."""
    records: Records = {}
    for key, values in arrays_of(content).items():
        group, _, name = key.partition("/")
        records.setdefault(group, {})[name] = values
    return records
