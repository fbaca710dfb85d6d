"""Storage of factorised tables E ~ A B: in the form of OPT, which the transformers library loads, or in tiejax's own form.

In tiejax's form, X.weight is replaced by X.weight.rows, which holds A [V, r], and X.weight.map, which holds B [r, D]. Two
tables that share A have one map each, and the rows have the input table's name. config.json names the tensors under
`factorised`.
"""

from collections.abc import Callable, Iterator
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
    if title_of(checkpoint.config) != "OPT" or not predicts(checkpoint.config):
        return None
    input_table = product.tables.get("input")
    # OPT uses one narrow table for both roles, so that one of two different tables cannot be factorised alone.
    serves_both = len(product.tables) > 1 or (stored.relation == "one" and flag_of(checkpoint.config).tied is True)
    if input_table is None or not serves_both or not input_table.name.endswith(OPT_INPUT):
        return None
    prefix = input_table.name.removesuffix(OPT_INPUT)
    names = {role: f"{prefix}project_{way}.weight" for role, way in zip(ROLES, ("in", "out"), strict=True)}
    maps = _maps_of_opt(checkpoint, product, names)
    if maps is None or maps["input"].shape[1] == product.rank:
        return None
    parts = [_rows_part(input_table.name, input_table, product)]
    for role, values in (("input", maps["input"].T), ("output", maps["output"])):
        parts.append(part_of(names[role], input_table.tensor.dtype, values))
    config = with_flag({**checkpoint.config, OPT_WIDTH: product.rank}, True)
    return Form(f"as OPT with {OPT_WIDTH} {product.rank}, which the transformers library loads", config, parts)


def _maps_of_opt(checkpoint: Checkpoint, product: Product, names: dict[str, str]) -> dict[str, np.ndarray] | None:
    """Return B_in and B_out, [r, H], composed with the maps that the checkpoint already has; None if shapes do not fit H."""
    hidden, width = checkpoint.config.get("hidden_size"), product.maps["input"].shape[1]
    maps = {role: product.maps.get(role, product.maps["input"]) for role in ROLES}
    old = [_matrix(checkpoint, name) for name in names.values()]
    if hidden == width and old == [None, None]:
        return maps
    if any(
        tensor is None or tensor.shape != shape for tensor, shape in zip(old, ((hidden, width), (width, hidden)), strict=True)
    ):
        return None
    before_in, before_out = (HubTable(tensor)[:] for tensor in old if tensor is not None)
    return {"input": maps["input"] @ before_in.T, "output": maps["output"] @ before_out}


def _rows_part(name: str, table: HubTable, product: Product) -> Part:
    dtype, shape = table.tensor.dtype, (table.shape[0], product.rank)

    def blocks() -> Iterator[bytes]:
        for block in product.rows():
            yield rounded(block, dtype, name).tobytes()

    return Part(name, dtype, shape, shape[0] * shape[1] * BYTES[dtype], blocks)
