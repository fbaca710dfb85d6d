"""Static maps of layers to owners, by the names under which they were published."""

from collections.abc import Mapping

import numpy as np

from tiejax.tying.errors import TieError
from tiejax.tying.owner import Owner, check_owner, independent

MAPS = ("untied", "all-one", "sequence", "cycle", "cycle-reversed", "sandwich", "reversed-halves")


def static_map(name: str, layers: int, distinct: int) -> Owner:
    """Return the owner vector of a static map by name.

    untied: every layer its own; all-one: layer 0 for all (ALBERT, Lan et al., arXiv:1909.11942).
    sequence, cycle, cycle-reversed: `distinct` layers, each several times in a row; one after the other, again and again; the
    same with the last round backwards (Takase and Kiyono, arXiv:2104.06022).
    sandwich: the first and the last their own, one for all between (Subformer, Reid et al., arXiv:2101.00234).
    reversed-halves: the second half is the first one backwards.
    Raises TieError if there is no such map, or `distinct` is not between 1 and `layers`.
    """
    _check_distinct(layers, distinct)
    place = np.arange(layers)
    if name == "untied":
        group = place
    elif name == "all-one":
        group = np.zeros(layers, int)
    elif name == "sequence":
        group = place * distinct // layers
    elif name == "cycle":
        group = place % distinct
    elif name == "cycle-reversed":
        group = np.where(place < layers - distinct, place % distinct, layers - 1 - place)
    elif name == "sandwich":
        group = np.where(place == 0, 0, np.where(place == layers - 1, 2, 1))
    elif name == "reversed-halves":
        group = np.minimum(place, layers - 1 - place)
    else:
        raise TieError(f"there is no map {name}; there are {', '.join(MAPS)}")
    return of_groups(group)


def of_groups(group: np.ndarray) -> Owner:
    """Return the owner vector under which layers of one group share weights, those of its first layer."""
    _, first, which = np.unique(group, return_index=True, return_inverse=True)
    return check_owner(first[which])


def random_map(layers: int, distinct: int, rng: np.random.Generator) -> Owner:
    """Return a map of exactly so many distinct layers.

    Layer 0 is its own; which others are is uniform, and so is each copy's owner among those before it.
    Raises TieError if `distinct` is not between 1 and `layers`.
    """
    _check_distinct(layers, distinct)
    owners = np.r_[0, 1 + rng.choice(layers - 1, distinct - 1, replace=False)] if layers > 1 else np.zeros(1, int)
    owner = independent(layers)
    for layer in range(layers):
        if layer not in owners:
            owner[layer] = rng.choice(np.sort(owners[owners < layer]))
    return check_owner(owner)


def _check_distinct(layers: int, distinct: int) -> None:
    if not 1 <= distinct <= layers:
        raise TieError(f"a map of {layers} layers has 1 to {layers} distinct ones, not {distinct}")


def check_maps(maps: Mapping[str, object], layers: int) -> dict[str, Owner]:
    """Return maps that a user has written, checked; raises TieError that names the map and what is wrong with it."""
    checked = {}
    for name, owner in maps.items():
        if not isinstance(owner, list) or len(owner) != layers:
            length = f"{len(owner)} entries" if isinstance(owner, list) else repr(owner)
            raise TieError(f"{name}: must have one owner for each of the {layers} layers, has {length}")
        try:
            checked[name] = check_owner(owner)
        except TieError as error:
            raise TieError(f"{name}: {error}") from None
    return checked
