"""Ties to and from JSON, to be saved beside stored parameters."""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tiejax.tying.errors import TieError, short
from tiejax.tying.tie import Tie
from tiejax.tying.ties import TiesLike, as_ties
from tiejax.tying.transforms import Cast, Reshape, Scale, Slice, parts

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
    except (TypeError, ValueError) as error:
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
        elif hasattr(part, "name"):
            written.append(part.name)
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
