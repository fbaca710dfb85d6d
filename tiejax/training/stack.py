"""A stack of layers in a parameter tree: reading and replacing it by its path, and moving its slots.

Every leaf of a stack is `[stack_size, ...]`; its rows are called slots. Optimizer states of a stack have the same slots.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tiejax.training.choices import Moments

PyTree = Any


class LayeredState(NamedTuple):
    """Parameters with a stack, with tied ones stored once, and the optimizer's state.

    stack_state: the part of that state that moves with the slots of the stack, leaves `[stack_size, ...]`. rest_state: the
    rest.
    """

    params: PyTree
    stack_state: PyTree
    rest_state: PyTree


def stack_of(params: PyTree, path: str) -> PyTree:
    """Return the stack at a path, for example `encoder/layers`, in a parameter tree."""
    for name in path.split("/"):
        params = params[name]
    return params


def with_stack(params: PyTree, path: str, stack: PyTree) -> PyTree:
    """Return a parameter tree with the stack at a path replaced."""
    name, _, below = path.partition("/")
    return {**params, name: with_stack(params[name], below, stack) if below else stack}


def rest_of(params: PyTree, path: str) -> PyTree:
    """Return a parameter tree with None in place of the stack."""
    return with_stack(params, path, None)


def stack_size_of(params: PyTree, path: str) -> int:
    """Return the number of slots in the stack of a parameter tree."""
    return int(jax.tree.leaves(stack_of(params, path))[0].shape[0])


def moved(
    stack: PyTree, stack_state: PyTree, source: jax.Array, separated: jax.Array, moments: Moments
) -> tuple[PyTree, PyTree]:
    """Return a stack and its optimizer state with new slots: slot p is a copy of the old slot source[p].

    separated: `[slots]`, whether the layer in a slot separates from its owner. moments: its optimizer state is then the owner's
    (`copy`), or zeros, which restarts the bias correction (`zero`).
    """
    stack, stack_state = jax.tree.map(lambda leaf: leaf[source], (stack, stack_state))
    if moments == "copy":
        return stack, stack_state
    return stack, jax.tree.map(lambda leaf: where_true(separated, jnp.zeros_like(leaf), leaf), stack_state)


def where_true(chosen: jax.Array, leaf: jax.Array, other: jax.Array) -> jax.Array:
    """Return rows of `leaf` where `chosen`, `[rows]`, is true, and rows of `other` elsewhere; both are `[rows, ...]`."""
    return jnp.where(chosen.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, other)
