"""Storage of factorised tables E ~ A B: in the form of OPT, which the transformers library loads, or in tiejax's own form.

In tiejax's form, X.weight is replaced by X.weight.rows, which holds A [V, r], and X.weight.map, which holds B [r, D]. Two
tables that share A have one map each, and the rows have the input table's name. config.json names the tensors under
`factorised`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from tiejax.checkpoints.hub.arrays import rounded
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import flag_of, predicts, title_of, with_flag
from tiejax.checkpoints.hub.locate import FACTORISED
from tiejax.checkpoints.hub.stored import Stored
from tiejax.checkpoints.hub.tables import BYTES, DTYPES, HubTable
from tiejax.checkpoints.rewrite.rewrite import Part, part_of

OPT_WIDTH, OPT_INPUT = "word_embed_proj_dim", "embed_tokens.weight"
ROLES = ("input", "output")


class Factors(NamedTuple):
    """A table E ~ A B. rows: A [V, r], read from the file on access; map: B [r, D] in float32."""

    rows: HubTable
    map: Float[np.ndarray, "rank width"]


class Product(NamedTuple):
    """Factors to write. energy: share of the tables' energy kept. rows: yields A in float32 blocks of rows. maps: B by role."""

    tables: dict[str, HubTable]
    rank: int
    energy: float
    rows: Callable[[], Iterator[Float[np.ndarray, "block rank"]]]
    maps: dict[str, Float[np.ndarray, "rank width"]]


class Maps(NamedTuple):
    """Maps that are written beside A.

    widths: of each, [r, width]. replaced: bytes of the maps whose place they take. own_at: the rank at which they are in
    tiejax's own form instead, and replace none.
    """

    widths: tuple[int, ...]
    replaced: int = 0
    own_at: int | None = None


class Form(NamedTuple):
    """The form of written factors. title: its description. config: the new config.json. parts: tensors replacing the tables."""

    title: str
    config: dict[str, Any]
    parts: list[Part]


def factors(folder: Path) -> dict[str, Factors]:
    """Return the factors of a checkpoint in tiejax's form, by role: `input`, `output`, or both.

    Args:
        folder: a checkpoint written by `tiejax factorise`

    Returns:
        For each role, A [V, r] and B [r, D] with E ~ A B.

    Raises:
        CheckpointError: if the checkpoint has no factors, or their shapes do not fit
    """
    checkpoint = open_checkpoint(folder)
    entry = checkpoint.config.get(FACTORISED)
    named = {role: entry[role] for role in ROLES if role in entry} if isinstance(entry, dict) else {}
    if not named:
        raise CheckpointError(f"{folder}: config.json has no factors under `{FACTORISED}`")
    return {role: _read(checkpoint, role, names) for role, names in named.items()}


def _read(checkpoint: Checkpoint, role: str, names: object) -> Factors:
    names = names if isinstance(names, dict) else {}
    rows, second = (_matrix(checkpoint, names.get(part)) for part in ("rows", "map"))
    if rows is None or second is None or rows.shape[1] != second.shape[0]:
        raise CheckpointError(
            f"{checkpoint.folder}: `{FACTORISED}` in config.json must name tensors rows [tokens, rank] and map [rank, width] "
            f"of the {role} table"
        )
    return Factors(HubTable(rows), HubTable(second)[:])


def _matrix(checkpoint: Checkpoint, name: object) -> Tensor | None:
    tensor = checkpoint.tensors.get(name) if isinstance(name, str) else None
    return tensor if tensor is not None and len(tensor.shape) == 2 and tensor.dtype in DTYPES else None


def form_of(checkpoint: Checkpoint, stored: Stored, product: Product) -> Form:
    """Return the form of OPT where the transformers library computes exactly that product, or else tiejax's own form."""
    return _opt(checkpoint, stored, product) or _own(checkpoint, product)


def _own(checkpoint: Checkpoint, product: Product) -> Form:
    first = next(iter(product.tables.values()))
    rows = f"{first.name}.rows"
    entry: dict[str, Any] = {"tables": "both" if len(product.tables) > 1 else next(iter(product.tables))}
    entry |= {"rank": product.rank, "energy": product.energy}
    parts = [_rows_part(rows, first, product)]
    for role, table in product.tables.items():
        entry[role] = {"rows": rows, "map": f"{table.name}.map"}
        parts.append(part_of(entry[role]["map"], table.tensor.dtype, product.maps[role]))
    return Form("in tiejax's own form, which no other library loads", {**checkpoint.config, FACTORISED: entry}, parts)


def _opt(checkpoint: Checkpoint, stored: Stored, product: Product) -> Form | None:
    """Return the factors in the form of OPT, None if that form cannot hold them.

    OPT adds A_i W_in^T to the position embeddings, and computes logits as (h W_out^T) A^T, with W_in [H, r] `project_in` and
    W_out [r, H] `project_out`; so W_in = B_in^T and W_out = B_out. The transformers library creates the two only if r
    differs from H.
    """
    names = _names_of_opt(checkpoint, stored, product.tables)
    if names is None:
        return None
    input_table = product.tables["input"]
    maps = _maps_of_opt(checkpoint, product, names)
    if maps is None or maps["input"].shape[1] == product.rank:
        return None
    parts = [_rows_part(input_table.name, input_table, product)]
    for role, values in (("input", maps["input"].T), ("output", maps["output"])):
        parts.append(part_of(names[role], input_table.tensor.dtype, values))
    config = with_flag({**checkpoint.config, OPT_WIDTH: product.rank}, True)
    return Form(f"as OPT with {OPT_WIDTH} {product.rank}, which the transformers library loads", config, parts)


def _names_of_opt(checkpoint: Checkpoint, stored: Stored, tables: Mapping[str, HubTable]) -> dict[str, str] | None:
    """Return the names of OPT's two maps by role, None if its form cannot hold factors of these tables."""
    if title_of(checkpoint.config) != "OPT" or not predicts(checkpoint.config):
        return None
    input_table = tables.get("input")
    # OPT uses one narrow table for both roles, so that one of two different tables cannot be factorised alone.
    serves_both = len(tables) > 1 or (stored.relation == "one" and flag_of(checkpoint.config).tied is True)
    if input_table is None or not serves_both or not input_table.name.endswith(OPT_INPUT):
        return None
    prefix = input_table.name.removesuffix(OPT_INPUT)
    return {role: f"{prefix}project_{way}.weight" for role, way in zip(ROLES, ("in", "out"), strict=True)}


def maps_of(checkpoint: Checkpoint, stored: Stored, tables: Mapping[str, HubTable]) -> Maps:
    """Return the maps that are written with factors of these tables: one for each, or the two of OPT to its hidden size."""
    own, names = Maps(tuple(table.shape[1] for table in tables.values())), _names_of_opt(checkpoint, stored, tables)
    old = None if names is None else _old_maps(checkpoint, names, tables["input"].shape[1])
    if old is None:
        return own
    hidden = checkpoint.config["hidden_size"]
    return Maps((hidden, hidden), sum(HubTable(tensor).nbytes for tensor in old), hidden)


def _old_maps(checkpoint: Checkpoint, names: Mapping[str, str], width: int) -> list[Tensor] | None:
    """Return the two maps that an OPT already has between its tables and its states, or none; None if shapes do not fit."""
    hidden = checkpoint.config.get("hidden_size")
    old = [_matrix(checkpoint, name) for name in names.values()]
    if hidden == width and old == [None, None]:
        return []
    shapes = ((hidden, width), (width, hidden))
    fitting = [tensor for tensor, shape in zip(old, shapes, strict=True) if tensor is not None and tensor.shape == shape]
    return fitting if len(fitting) == len(shapes) else None


def _maps_of_opt(checkpoint: Checkpoint, product: Product, names: dict[str, str]) -> dict[str, np.ndarray] | None:
    """Return B_in and B_out, [r, H], composed with the maps that the checkpoint already has; None if shapes do not fit H."""
    maps = {role: product.maps.get(role, product.maps["input"]) for role in ROLES}
    old = _old_maps(checkpoint, names, product.maps["input"].shape[1])
    if not old:
        return None if old is None else maps
    before_in, before_out = (HubTable(tensor)[:] for tensor in old)
    return {"input": maps["input"] @ before_in.T, "output": maps["output"] @ before_out}


def _rows_part(name: str, table: HubTable, product: Product) -> Part:
    dtype, shape = table.tensor.dtype, (table.shape[0], product.rank)

    def blocks() -> Iterator[bytes]:
        for block in product.rows():
            yield rounded(block, dtype, name).tobytes()

    return Part(name, dtype, shape, shape[0] * shape[1] * BYTES[dtype], blocks)
