"""What the transformers library does with the tables of one architecture, by building and saving it."""

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from architectures.small_models import FLAG, Model, build, groups, has_head, parts_of, save, small_config
from transformers import PretrainedConfig, PreTrainedModel

from tiejax.checkpoints.hub.locate import LAYER

TEXT = "text_config"
STATES = (None, True, False)  # of the flag at one level of a config.json; None if it is absent
OTHERS = re.compile(r"(share|tie|tied|legacy)")  # settings that may say which tables are one


Saved = Mapping[bool, tuple[Model, Mapping[str, list[str]]]]


def row_of(kind: type[PreTrainedModel], folder: Path, saved: Saved | None = None) -> dict[str, Any]:
    """Return the row of one class: names in files and in memory with the flag true and false, and which flags tie it.

    saved: the models of a class with a head, tied and untied by the flag, and what `save` has returned for them. With them the
    row is made without the decisions by the flag at each level and by settings, which take most of the time.
    """
    row: dict[str, Any] = {"class": kind.__name__, "type": kind.config_class.model_type, "prefix": kind.base_model_prefix}
    try:
        return row | (_found(kind, folder) if saved is None else _tables(kind, saved))
    except Exception as error:  # whatever an architecture raises that cannot be built without a real configuration
        return row | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


def _found(kind: type[PreTrainedModel], folder: Path) -> dict[str, Any]:
    tied = build(kind, True)
    if tied.input is None:
        return {"tokens": False}
    untied = build(kind, False)
    if tied.output is None:
        alone = not has_head(tied) and groups(tied) == groups(untied)  # nothing that the flag could tie
        return {"tokens": True, "head": False if alone else None, "input": tied.names(tied.input)}
    saved = {flag: (model, save(model, folder / str(flag))) for flag, model in ((True, tied), (False, untied))}
    row = _tables(kind, saved) | {"flag": "".join(_decisions(kind)), "settings": dict(_settings(kind, tied))}
    row["blocks"] = block_of(kind)
    row["scaled"] = row["scaled"] or bool(row["blocks"])
    if len(row["levels"]) > 1:
        row["decides"] = [_only(kind, place) for place in range(len(row["levels"]))]
    return row


def _tables(kind: type[PreTrainedModel], saved: Saved) -> dict[str, Any]:
    """Return what the files and the memory of both models of a class with a head say."""
    row: dict[str, Any] = {"tokens": True, "head": True, "tied": {}, "flag": "", "settings": {}}
    for flag, (model, in_file) in saved.items():
        row["tied"][str(flag).lower()] = model.tied
        row[str(flag).lower()] = {
            "input": model.names(model.input),
            "output": model.names(model.output),
            "shared": model.shared(),
            "input_in_file": in_file["input"],
            "output_in_file": in_file["output"],
        }
    tied, untied = saved[True][0], saved[False][0]
    row["one_if_untied"] = next((group for group in groups(untied) if set(group) & set(untied.names(untied.input))), [])
    row["scaled"] = _uses_flag(kind)
    row["unlike"] = untied.input.weight.shape != untied.output.weight.shape
    kept = groups(untied)
    row["more"] = [group for group in groups(tied) if group not in kept and group != tied.shared()]
    usual = kind.config_class()
    return row | {"levels": [type(part).__name__ for part in parts_of(usual)]}


def block_of(kind: type[PreTrainedModel]) -> str:
    """Return the name, in its layer, of a tensor that the flag makes one in several layers, "" if there is none.

    All layers are built, since the first two need not share any.
    """
    tied, untied = (groups(build(kind, flag, cut=False)) for flag in (True, False))
    found = [[LAYER.match(name) for name in group] for group in tied if group not in untied]
    return min((group[0][2] for group in found if all(group) and len({match[1] for match in group}) > 1), default="")


def _only(kind: type[PreTrainedModel], place: int) -> bool:
    """Return whether the flag at one level of the configuration ties the tables if the flags at all others say untied."""
    return build(kind, False, place).tied


def _decisions(kind: type[PreTrainedModel]) -> Iterator[str]:
    """Yield whether the tables are one, t or f, for the states of the flag at the top and in the text model's configuration.

    The states are those of STATES, at the top level first; the second level counts only if there is one. "?" if a model cannot
    be built, or if the flag in another part of the configuration counts.
    """
    usual = small_config(kind, True)
    inner = [TEXT] if isinstance(getattr(usual, TEXT, None), PretrainedConfig) else []
    others = (True, False) if len(list(parts_of(usual))) > 1 + len(inner) else (True,)  # of the flag in other parts
    for states in itertools.product(STATES, repeat=1 + len(inner)):
        try:
            found = {build(kind, other, states=dict(zip(["", *inner], states, strict=True))).tied for other in others}
        except Exception:  # whatever a configuration without the flag raises
            found = set()
        yield {(True,): "t", (False,): "f"}.get(tuple(found), "?")


def _uses_flag(kind: type[PreTrainedModel]) -> bool:
    """Return whether the flag changes more than which tables are one: a factor of the logits, or another setting."""
    with contextlib.suppress(OSError, TypeError):
        if FLAG in inspect.getsource(kind.forward):
            return True
    return _without_flag(kind.config_class(**{FLAG: True}).to_dict()) != _without_flag(
        kind.config_class(**{FLAG: False}).to_dict()
    )


def _without_flag(content: Any) -> Any:
    """Return the content of a configuration without the flag at any level."""
    if not isinstance(content, dict):
        return content
    return {name: _without_flag(value) for name, value in content.items() if name != FLAG}


def _settings(kind: type[PreTrainedModel], tied: Model) -> Iterator[tuple[str, bool]]:
    """Yield the settings, with their default, whose other value makes other tables one, or cannot be built."""
    for name, value in vars(kind.config_class()).items():
        if isinstance(value, bool) and OTHERS.search(name) and name != FLAG:
            try:
                other = build(kind, True, states={"": True}, settings={name: not value})
                same = (other.shared(), other.names(other.output)) == (tied.shared(), tied.names(tied.output))
            except Exception:  # whatever an inconsistent configuration raises
                same = False
            if not same:
                yield name, value
