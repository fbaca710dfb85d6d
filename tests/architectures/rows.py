"""What the transformers library does with the tables of one architecture, by building and saving it."""

from pathlib import Path
from typing import Any

from architectures.small_models import FLAG, build, groups, parts_of, save
from transformers import PreTrainedModel


def row_of(kind: type[PreTrainedModel], folder: Path) -> dict[str, Any]:
    """Return the row of one class: names in files and in memory with the flag true and false, and which flags tie it."""
    row: dict[str, Any] = {"class": kind.__name__, "type": kind.config_class.model_type, "prefix": kind.base_model_prefix}
    try:
        return row | _found(kind, folder)
    except Exception as error:  # whatever an architecture raises that cannot be built without a real configuration
        return row | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _found(kind: type[PreTrainedModel], folder: Path) -> dict[str, Any]:
    tied = build(kind, True)
    if tied.input is None:
        return {"tokens": False}
    if tied.output is None:
        return {"tokens": True, "head": False, "input": tied.names(tied.input)}
    untied = build(kind, False)
    row: dict[str, Any] = {"tokens": True, "head": True, "tied": {}}
    for flag, model in (("true", tied), ("false", untied)):
        row["tied"][flag] = model.tied
        in_file = save(model, folder / flag)
        row[flag] = {
            "input": model.names(model.input),
            "output": model.names(model.output),
            "shared": model.shared(),
            "input_in_file": in_file["input"],
            "output_in_file": in_file["output"],
        }
    kept = groups(untied)
    row["more"] = [group for group in groups(tied) if group not in kept and group != tied.shared()]
    usual = kind.config_class()
    row["default"] = [getattr(part, FLAG, None) for part in parts_of(usual)]
    levels = [type(part).__name__ for part in parts_of(usual)]
    row["levels"] = levels
    if len(levels) > 1:
        row["decides"] = [_only(kind, place) for place in range(len(levels))]
    return row


def _only(kind: type[PreTrainedModel], place: int) -> bool:
    """Return whether the flag at one level of the configuration ties the tables if the flags at all others say untied."""
    return build(kind, False, place).tied
