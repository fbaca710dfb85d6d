"""An optimizer state for parameters whose shapes have changed, such as a table with more or fewer rows."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from tiejax.tying import optimizer_state
from tiejax.tying.errors import TieError
from tiejax.tying.tie import PyTree, leaves_by_path
from tiejax.tying.transforms import Shape
from tiejax.tying.untie import Optimizer, shapes_of_init, trained, with_state


def resize_state(optimizer: Optimizer, opt_state: PyTree, params: PyTree, resized: PyTree) -> PyTree:
    """Carry an optimizer state over to parameters that have grown or shrunk along some axes.

    Entries that the old and the new array share, counted from the start of each axis, keep their state; new entries start with
    the state of `optimizer.init(resized)`. Row and column moments of Adafactor, and the accumulators of SM3, follow their axes.

    Args:
        optimizer: The optax optimizer that built `opt_state`.
        opt_state: The optimizer state of `params`.
        params: The parameters before: full or stored, or shapes and dtypes of them.
        resized: The parameters after, with the same paths. In stored parameters a tied table is resized once.

    Returns:
        An optimizer state of `resized`.

    Raises:
        TieError: The trees have different paths, `opt_state` belongs to another optimizer or other parameters, or the state of
            a resized array cannot be divided into entries.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> optimizer = optax.adamw(1e-3)
        >>> stored = {"embed": jnp.ones((3, 2)), "head": None}
        >>> grown = {"embed": jnp.concatenate([stored["embed"], jnp.zeros((1, 2))]), "head": None}
        >>> resize_state(optimizer, optimizer.init(stored), stored, grown)[0].mu["embed"].shape
        (4, 2)
    """
    before, after = optimizer_state.shapes_by_path(params), optimizer_state.shapes_by_path(resized)
    if before.keys() != after.keys():
        different = ", ".join(sorted(before.keys() ^ after.keys())[:3])
        raise TieError(f"params and resized must have the same leaves; only one of them has {different}")
    states = with_state(opt_state, params)
    old = optimizer_state.fitted(opt_state, shapes_of_init(optimizer, trained(params, states)))
    new = optimizer.init(trained(resized, states))
    leaves, owned = leaves_by_path(old)[0], optimizer_state.owned_leaves(new, resized)
    wanted, treedef = leaves_by_path(new)
    for path, like in wanted.items():
        leaf, owner = leaves.get(path), owned.get(path)
        if owner is not None and before[owner.owner] != after[owner.owner]:
            optimizer_state.check_divisible(owner)
            wanted[path] = _resized(leaf, like, owner, before[owner.owner], after[owner.owner])
        elif like is not None and not optimizer_state.fits(leaf, like):
            raise optimizer_state.mixed(path, like)
        else:
            wanted[path] = leaf
    return jax.tree_util.tree_unflatten(treedef, wanted.values())


def _resized(leaf: Any, new: Any, owner: optimizer_state.OwnedLeaf, before: Shape, after: Shape) -> Any:
    """Return the leaf `new` of a new state, with the entries that the present one has; the parameter's shapes are given."""
    if leaf is not None and jnp.shape(leaf) == jnp.shape(new) and math.prod(jnp.shape(new)) == 1:
        return leaf  # one number for the parameter, or a placeholder of Adafactor
    axes = [_axes(owner, one, shape) for one, shape in ((leaf, before), (new, after))]
    if leaf is None or axes[0] is None or axes[0] != axes[1]:
        shapes = f"{tuple(jnp.shape(leaf))} to {tuple(jnp.shape(new))}"
        raise TieError(
            f"{owner.path()} of the optimizer state cannot be resized from {shapes}, entry by entry; {optimizer_state.RESTART}"
        )
    common = tuple(slice(min(sizes)) for sizes in zip(jnp.shape(leaf), jnp.shape(new), strict=True))
    return jnp.asarray(new).at[common].set(jnp.asarray(leaf)[common])


def _axes(owner: optimizer_state.OwnedLeaf, leaf: Any, shape: Shape) -> tuple[int, ...] | None:
    """Return the axes of the parameter that a leaf of its state has, the last ones of the leaf; None if they are unknown."""
    own = tuple(jnp.shape(leaf))
    if optimizer_state._is_reduction(owner):
        kept = optimizer_state._kept_axes(owner, shape)
        return kept if own == tuple(shape[axis] for axis in kept) else None
    return tuple(range(len(shape))) if own[len(own) - len(shape) :] == shape else None
