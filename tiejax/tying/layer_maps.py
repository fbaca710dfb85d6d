"""Fixed owner vectors: published maps by name, random maps, and user-written maps."""

from collections.abc import Mapping

import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.owner import Owner, check_owner, independent

MAPS = ("untied", "all-one", "sequence", "cycle", "cycle-reversed", "sandwich", "middle-cycle", "reversed-halves")
WITH_DISTINCT = ("sequence", "cycle", "cycle-reversed", "middle-cycle")  # maps with a given number of distinct layers


def static_map(name: str, layers: int, distinct: int) -> Owner:
    """Return the owner vector of a published map.

    * `untied`: every layer has separate weights.
    * `all-one`: all layers read layer 0 (ALBERT, Lan et al., arXiv:1909.11942).
    * `sequence`, `cycle`, `cycle-reversed`: there are `distinct` layers. `sequence` repeats each of them several times in a
      row; `cycle` repeats all of them in order; `cycle-reversed` does the same, but reverses the last repetition (Takase and
      Kiyono, arXiv:2104.06022).
    * `sandwich`: the first and the last layer have separate weights, and all layers between them share weights (Subformer, Reid
      et al., arXiv:2101.00234).
    * `middle-cycle`: the first and the last layer have separate weights, and the layers between them repeat `distinct - 2`
      layers (at least one) in order (Bae et al., arXiv:2507.10524).
    * `reversed-halves`: the second half repeats the layers of the first half in reverse order.

    Args:
        name: The name of the map, one of `MAPS`.
        layers: The number of layers.
        distinct: The number of distinct layers, for `sequence`, `cycle`, `cycle-reversed` and `middle-cycle`.

    Returns:
        The owner vector, int32 `[layers]`.

    Raises:
        TieError: The map is unknown, or `distinct` is not between 1 and `layers`.
    """
    _check_distinct(layers, distinct)
    layer = np.arange(layers)
    ends = (layer == 0) | (layer == layers - 1)
    groups = {
        "untied": layer,
        "all-one": np.zeros(layers, int),
        "sequence": layer * distinct // layers,
        "cycle": layer % distinct,
        "cycle-reversed": np.where(layer < layers - distinct, layer % distinct, layers - 1 - layer),
        "sandwich": np.where(ends, layer, layers),
        "middle-cycle": np.where(ends, layer, layers + (layer - 1) % max(1, distinct - 2)),
        "reversed-halves": np.minimum(layer, layers - 1 - layer),
    }
    if name not in groups:
        raise TieError(f"unknown map {name[:80]!r}; expected one of {', '.join(MAPS)}")
    return owner_from_groups(groups[name])


def owner_from_groups(group: np.ndarray) -> Owner:
    """Return the owner vector in which the layers of each group read the weights of the group's first layer.

    `group` holds a group label per layer, `[layers]`.
    """
    _, first, which = np.unique(group, return_index=True, return_inverse=True)
    return check_owner(first[which])


def random_map(layers: int, distinct: int, rng: np.random.Generator) -> Owner:
    """Draw an owner vector with exactly `distinct` distinct layers.

    Layer 0 owns itself. The other owners are drawn uniformly, then the owner of each copy uniformly from the earlier owners.

    Args:
        layers: The number of layers.
        distinct: The number of distinct layers.
        rng: The random number generator.

    Returns:
        The owner vector, int32 `[layers]`.

    Raises:
        TieError: `distinct` is not between 1 and `layers`.
    """
    _check_distinct(layers, distinct)
    owners = np.r_[0, 1 + rng.choice(layers - 1, distinct - 1, replace=False)] if layers > 1 else np.zeros(1, int)
    owner = independent(layers)
    for layer in range(layers):
        if layer not in owners:
            owner[layer] = rng.choice(np.sort(owners[owners < layer]))
    return check_owner(owner)


def _check_distinct(layers: int, distinct: int) -> None:
    if not isinstance(distinct, int | np.integer) or not 1 <= distinct <= layers:
        raise TieError(f"distinct: expected 1 to {layers} distinct layers in a map of {layers} layers, got {distinct}")


def check_maps(maps: Mapping[str, object], layers: int) -> dict[str, Owner]:
    """Check a mapping from names to user-written owner vectors.

    Raises TieError with the name of the map if it is not a list of `layers` indices, or not an owner vector (`check_owner`).
    """
    checked = {}
    for name, owner in maps.items():
        if not isinstance(owner, list) or len(owner) != layers:
            found = f"{len(owner)} entries" if isinstance(owner, list) else repr(owner)[:80]
            raise TieError(f"{name}: expected a list of {layers} owners, one per layer, got {found}")
        try:
            checked[name] = check_owner(owner)
        except TieError as error:
            raise TieError(f"{name}: {error}") from None
    return checked
