"""Changes that a loss makes in the copy of an NNX module, which would be lost."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import NNX_SUFFIX, bits
from tiejax.tying.tie import PyTree, path_name


def call(loss: Callable[..., Any], params: PyTree, /, *args: Any, **kwargs: Any) -> Any:
    """Call a loss; raise TieError if it changes NNX variables of `params` and does not return their new values.

    Transforms of NNX inside a loss replace the values of all variables that they see, parameters included, by equal ones. If
    parameters have changed, other variables are therefore taken for changed only if their values differ, or are traced.
    """
    nnx: Any = sys.modules.get("flax.nnx")  # a tree of NNX exists only if NNX was imported; others do not change in place
    if nnx is None:
        return loss(params, *args, **kwargs)
    pairs = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda node: isinstance(node, nnx.Variable))
    before = [(path_name(path), leaf, leaf.get_raw_value()) for path, leaf in pairs if isinstance(leaf, nnx.Variable)]
    result = loss(params, *args, **kwargs)
    changed = [(path, variable, value) for path, variable, value in before if variable.get_raw_value() is not value]
    returned = {id(leaf) for leaf in jax.tree.leaves(result)}
    replaced = any(isinstance(variable, nnx.Param) for _, variable, _ in changed)
    for path, variable, value in changed:
        now = variable.get_raw_value()
        if isinstance(variable, nnx.Param) or id(now) in returned or (replaced and _equal(now, value)):
            continue
        raise TieError(
            f"the loss changed {path.removesuffix(NNX_SUFFIX)} of a copy of the module, and the change would be lost; tie "
            "the module itself, with tiejax.nnx.tie(model, ties), or return the changed state from the loss"
        )
    return result


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are known to be equal."""
    traced = any(isinstance(x, jax.core.Tracer) for x in (one, other))
    return not traced and np.array_equal(bits(one), bits(other))
