"""Methods that the user defines: a fixed map of layers together with a change of the model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tiejax.lab.settings.command_line import BadInput
from tiejax.system.visible import cut
from tiejax.tying.errors import TieError
from tiejax.tying.layer_maps import MAPS, WITH_DISTINCT, check_maps, static_map
from tiejax.tying.owner import Owner, check_owner

# Power of N, the number of layers that share the same weights, by which the updates of the residual stream are multiplied.
SCALES = {"none": 0.0, "1/N": -1.0, "1/sqrt(N)": -0.5}
MOST = 2**20  # of counts


class Variant(NamedTuple):
    """A fixed map and a change of the model: the fields of `--variants`, as `Settings` explains them."""

    map: str | list[int]
    distinct: int | None = None
    lora_rank: int = 0
    residual_scale: str = "none"
    width: int | None = None
    initial_weights: str | None = None
    better_than: str | None = None
    not_worse_than: str | None = None

    def owner(self, layers: int, distinct: int) -> Owner:
        """Return the owner vector; distinct: number of distinct layers of the run."""
        if isinstance(self.map, list):
            return check_owner(self.map)
        return static_map(self.map, layers, self.distinct or distinct)


def check_variants(given: Mapping[str, Mapping[str, Any]], names: Sequence[str], layers: int, heads: int) -> None:
    """Check the variants of `--variants`, their fields by name. Raises BadInput, which names the field.

    names: all methods of the run. layers, heads: of the model.
    """
    for name, fields in given.items():
        if problem := _problem(fields, [other for other in names if other != name], layers, heads):
            raise BadInput(f"--variants: {cut(name)}: {problem}")


def _problem(fields: Mapping[str, Any], others: Sequence[str], layers: int, heads: int) -> str | None:
    """Return the first reason why the fields of a variant are invalid, None if they are valid; others: the other methods."""
    if "map" not in fields:
        return f"expected fields with a map, such as {{map: sequence, lora_rank: 4}}, got {cut(fields)}"
    if unknown := [field for field in fields if field not in Variant._fields]:
        return f"unknown field {cut(unknown[0])!r}; the fields are {', '.join(Variant._fields)}"
    variant = Variant(**fields)
    if not isinstance(variant.map, str):
        try:
            check_maps({"map": variant.map}, layers)
        except TieError as error:
            return str(error)
    elif variant.map not in MAPS:
        return f"map: expected one of {', '.join(MAPS)} or a list of layers, got {cut(variant.map)}"
    for field, least, most in (("distinct", 1, layers), ("lora_rank", 0, MOST), ("width", 1, MOST)):
        value = getattr(variant, field)
        absent = value is None and field != "lora_rank"
        if not absent and (type(value) is not int or not least <= value <= most):
            return f"{field}: expected a whole number from {least} to {most:,}, got {cut(value)}"
    if variant.distinct is not None and variant.map not in WITH_DISTINCT:
        return f"distinct: the map determines the distinct layers, except for {', '.join(WITH_DISTINCT)}; leave it out"
    if not isinstance(variant.residual_scale, str) or variant.residual_scale not in SCALES:
        return f"residual_scale: expected one of {', '.join(SCALES)}, got {cut(variant.residual_scale)}"
    if variant.width is not None and variant.width % heads:
        return f"width: expected a multiple of --heads {heads}, got {variant.width}"
    file = variant.initial_weights
    if file is not None and (not isinstance(file, str) or not file):
        return f"initial_weights: expected the path of a file of weights, got {cut(file)!r}"
    for field in ("better_than", "not_worse_than"):
        if (other := getattr(variant, field)) is not None and other not in others:
            return f"{field}: expected another method of the run, got {cut(other)}"
    return None
