"""A checkpoint of full parameters, read into stored ones."""

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.leaves import beside, bits, is_array
from tiejax.tying.optimizer_state import fits
from tiejax.tying.store import view
from tiejax.tying.tie import PyTree, apply_transform, leaves_by_path
from tiejax.tying.ties import TiesLike, resolve


def load_full(stored: PyTree, full: PyTree, ties: TiesLike, atol: float = 0.0) -> PyTree:
    """Turn full parameters that were read from a checkpoint into stored ones, after a check that the ties hold in them.

    A reader that takes stored parameters as its template skips the arrays of targets without a word, also if the checkpoint
    was trained without the ties. Read the full tree, and pass it here.

    Args:
        stored: Stored parameters, or shapes and dtypes of them; their values are not used.
        full: Full parameters with the same paths, in any containers.
        ties: The ties of `stored`.
        atol: The largest difference between the entries of two tied leaves that counts as equal. The source's values are kept.

    Returns:
        The values of `full` in a tree like `stored`.

    Raises:
        TieError: A leaf is missing, superfluous, or of another shape or dtype; or the two leaves of a tie differ.

    Examples:
        >>> import numpy as np
        >>> table = np.arange(6.0).reshape(3, 2)
        >>> ties = Tie("embed", "head", transform="transpose")
        >>> load_full({"embed": np.zeros((3, 2)), "head": None}, {"embed": table, "head": table.T}, ties)["head"] is None
        True
    """
    kept, treedef = leaves_by_path(stored)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf, stored)
    wanted, found = leaves_by_path(view(shapes, ties))[0], leaves_by_path(full)[0]
    for path in {**wanted, **found}:
        if path not in found or path not in wanted:
            raise TieError(f"{path}: {'missing from' if path in wanted else 'only in'} the full parameters")
        if is_array(wanted[path]) and not fits(found[path], wanted[path]):
            got = f"{tuple(jnp.shape(found[path]))} {getattr(found[path], 'dtype', type(found[path]).__name__)}"
            raise TieError(f"{path}: expected {wanted[path].shape} {wanted[path].dtype}, got {got} in the full parameters")
    for tie in resolve(ties, full):
        read = bits(beside(apply_transform(tie, found[tie.source]), found[tie.target])), bits(found[tie.target])
        if (how := _difference(*read, atol)) is not None:
            raise TieError(
                f"{tie}: the two arrays differ{how}, so these parameters were not tied; continue untied, or tie them by retie, "
                "which says whose values remain"
            )
    return jax.tree_util.tree_unflatten(treedef, [None if leaf is None else found[path] for path, leaf in kept.items()])


def _difference(one: np.ndarray, other: np.ndarray, atol: float) -> str | None:
    """Return in words by how much two arrays differ, None if they are equal; NaN equals NaN."""
    differ = one != other
    if jnp.issubdtype(one.dtype, jnp.inexact):
        differ &= ~(np.isnan(one) & np.isnan(other))
    if not differ.any():
        return None
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        return ""
    most = float(np.abs(np.subtract(one[differ], other[differ])).max())
    return None if most <= atol else f" by up to {most:.3g}"
