"""A stack of layers in a tree of parameters: found by its path, taken out and put back, its places moved.

Every leaf of a stack is `[stack_size, ...]`. What an optimizer remembers of it has the same places.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any
Moments = Literal["copy", "zero"]


class LayeredState(NamedTuple):
    """Parameters, tied ones stored once, and the optimizer's state: what moves with the places of the stack, and the rest."""

    params: PyTree
    of_stack: PyTree
    of_rest: PyTree


def stack_of(params: PyTree, path: str) -> PyTree:
    """Return the stack at `path` in a parameter tree."""
    for name in path.split("/"):
        params = params[name]
    return params


def with_stack(params: PyTree, path: str, stack: PyTree) -> PyTree:
    """Return a parameter tree with another stack at `path`."""
    name, _, below = path.partition("/")
    return {**params, name: with_stack(params[name], below, stack) if below else stack}


def rest_of(params: PyTree, path: str) -> PyTree:
    """Return a parameter tree without its stack."""
    return with_stack(params, path, None)


def stack_size_of(params: PyTree, path: str) -> int:
    """Return the number of places in the stack of a parameter tree."""
    return int(jax.tree.leaves(stack_of(params, path))[0].shape[0])


def moved(stack: PyTree, of_stack: PyTree, source: jax.Array, separated: jax.Array, moments: Moments) -> tuple[PyTree, PyTree]:
    """Return a stack and its optimizer state whose place p is what stood at `source[p]`.

    moments: what a layer that separates from another remembers: its owner's (`copy`), or nothing, its bias correction starting
    anew (`zero`).
    """
    stack, of_stack = jax.tree.map(lambda leaf: leaf[source], (stack, of_stack))
    if moments == "copy":
        return stack, of_stack
    return stack, jax.tree.map(lambda leaf: where_true(separated, jnp.zeros_like(leaf), leaf), of_stack)


def where_true(chosen: jax.Array, leaf: jax.Array, other: jax.Array) -> jax.Array:
    """Return leaves `[number, ...]` that are the first one's where `chosen`, `[number]`, is true, else the other's."""
    return jnp.where(chosen.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, other)
