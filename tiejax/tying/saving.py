"""Saved parameters: ties to and from JSON, and checkpoints of full parameters, read into stored ones."""

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiejax.tying.errors import TieError, short
from tiejax.tying.leaves import beside, bits, is_array
from tiejax.tying.optimizer_state import fits
from tiejax.tying.store import view
from tiejax.tying.tie import PyTree, Tie, apply_transform, leaves_by_path
from tiejax.tying.ties import TiesLike, as_ties, resolve
from tiejax.tying.transforms import Cast, Reshape, Scale, Slice, Transpose, parts

# Transforms with values, by their names in JSON; the value is the field or the fields of the class.
WITH_VALUES: dict[str, Any] = {"cast": Cast, "scale": Scale, "reshape": Reshape, "slice": Slice}


def ties_to_json(ties: TiesLike) -> str:
    """Write ties as JSON, in a form that `ties_from_json` and people can read.

    A pattern is written as it is; write `resolve(ties, params)` to have one entry per leaf instead, which does not depend on
    the tree that it is applied to later.

    Args:
        ties: A tie or several.

    Returns:
        A JSON list with an object per tie: `source`, `target`, `transform` and `gradient`. Transforms with values are objects,
        such as `{"scale": 0.5}`; several transforms, and array weights, are lists.

    Raises:
        TieError: A transform is a pair of functions, or a gradient weight is traced.

    Examples:
        >>> ties_to_json(Tie("embed", "head", transform="transpose"))
        '[{"source": "embed", "target": "head", "transform": "transpose", "gradient": "all"}]'
    """
    written = [
        {"source": tie.source, "target": tie.target, "transform": _transform_to_json(tie), "gradient": _gradient_to_json(tie)}
        for tie in as_ties(ties)
    ]
    return json.dumps(written)


def ties_from_json(text: str | bytes) -> list[Tie]:
    """Read ties that `ties_to_json` wrote.

    Args:
        text: A JSON list of objects. `transform` and `gradient` may be left out.

    Returns:
        The ties.

    Raises:
        TieError: The text is not JSON of this form, or a tie is invalid.

    Examples:
        >>> ties_from_json('[{"source": "embed", "target": "head", "gradient": [1, 0.5]}]')
        [Tie(source='embed', target='head', transform='identity', gradient=(1, 0.5))]
    """
    try:
        read = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise TieError(f"expected ties as JSON, got {short(text)} ({error})") from None
    if not isinstance(read, list):
        raise TieError(f"expected a JSON list of ties, got {text[:80]!r}")
    return [_from_json(number, entry) for number, entry in enumerate(read)]


def _from_json(number: int, entry: Any) -> Tie:
    fields = ("source", "target", "transform", "gradient")
    if not isinstance(entry, dict) or not {"source", "target"} <= set(entry) <= set(fields):
        raise TieError(f"tie {number}: expected an object with {', '.join(fields)}, got {json.dumps(entry)[:80]}")
    try:
        return Tie(**entry | {"transform": _transform_from_json(entry.get("transform", "identity"))})
    except TieError as error:
        raise TieError(f"tie {number}: {error}") from None


def _transform_to_json(tie: Tie) -> Any:
    written: list[Any] = []
    for part in parts(tie.transform):
        name = next((name for name, kind in WITH_VALUES.items() if isinstance(part, kind)), None)
        if isinstance(part, Slice):
            written.append({name: {"index": part.index, "axis": part.axis}})
        elif name is not None:
            written.append({name: getattr(part, next(iter(part.__dataclass_fields__)))})
        elif isinstance(part, Transpose):
            written.append("transpose")
        else:
            raise TieError(f"{tie}: a pair of functions cannot be written to JSON; write the tie as code where it is loaded")
    return written[0] if len(written) == 1 else written or "identity"


def _transform_from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_transform_from_json(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    name, fields = next(iter(value.items()), ("", {}))
    has_fields = name != "slice" or (isinstance(fields, dict) and {"index"} <= set(fields) <= {"index", "axis"})
    if len(value) != 1 or name not in WITH_VALUES or not has_fields:
        raise TieError(f"unknown transform {json.dumps(value)[:80]}; expected a name or one of {', '.join(WITH_VALUES)}")
    return Slice(**fields) if name == "slice" else WITH_VALUES[name](fields)


def _gradient_to_json(tie: Tie) -> Any:
    if isinstance(tie.gradient, str):
        return tie.gradient
    if any(isinstance(weight, jax.core.Tracer) for weight in tie.weights):
        raise TieError(f"{tie}: traced gradient weights cannot be written to JSON; write the tie outside compiled functions")
    return [weight if isinstance(weight, int | float) else np.asarray(weight).tolist() for weight in tie.weights]


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
        >>> stored = {"embed": np.zeros((3, 2)), "head": None}
        >>> load_full(stored, {"embed": table, "head": table.T}, ties)["head"] is None
        True
    """
    kept, treedef = leaves_by_path(stored)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf, stored)
    wanted, found = leaves_by_path(view(shapes, ties))[0], leaves_by_path(full)[0]
    for path in {**wanted, **found}:
        if path not in found or path not in wanted:
            raise TieError(f"{path}: {'missing from' if path in wanted else 'only in'} the full parameters")
        if wanted[path] is None and found[path] is not None:
            raise TieError(f"{path}: only in the full parameters, where the stored ones have None")
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
