"""What the transformers library does with the embedding tables of each of its architectures: their names, and what ties them.

The facts are in architectures.json. `tests/architectures` writes that file: it builds every architecture of several versions of
the library with the flag true and false, saves it, and looks which tensors of the file are the two tables. An architecture that
it could not build is absent.
"""

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal, NamedTuple

# What decides whether the tables are one: the flag, or nothing.
Ties = Literal["by flag", "always", "never"]
FILE = "architectures.json"
NAMES = ("input", "output", "kept", "inner")  # fields that hold names of tensors


class Architecture(NamedTuple):
    """The tables of one class of models, or of all classes of one `model_type` that predict tokens.

    Attributes:
        name: the class, or the `model_type`
        type: its `model_type`
        prefix: the prefix of the base model's tensors, which files of that base model lack
        input: names of the input table in files
        output: names of the output table in files; none if the architecture predicts no tokens
        kept: names under which the library stores the one table of tied models
        inner: names of further copies of the input table, which the library stores only for untied models
        more: groups of names of other tensors that are one if these tables are one
        by_text: whether the flag that counts is that in `text_config`, not the one at the top
        ties: what decides whether the tables are one, by major version of the library
        flags: the default of the flag, by major version of the library
    """

    name: str
    type: str
    prefix: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    kept: tuple[str, ...]
    inner: tuple[str, ...]
    more: tuple[tuple[str, ...], ...]
    by_text: bool
    ties: Mapping[str, Ties]
    flags: Mapping[str, bool]

    @property
    def default(self) -> bool | None:
        """The default of the flag, None if versions of the library disagree or have none."""
        return next(iter(self.flags.values())) if len(set(self.flags.values())) == 1 else None

    @property
    def shared(self) -> str:
        """The name under which the library stores the one table of a tied model."""
        return (*self.kept, *self.input)[0]

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tensors that are one if the two tables are one."""
        further = (name for names in self.more for name in names)
        return (*self.input, *self.output, *self.kept, *self.inner, *further)

    @property
    def by_flag(self) -> bool:
        """Whether the flag decides in some version of the library."""
        return "by flag" in self.ties.values()

    def only(self, ties: Ties) -> bool:
        """Return whether all versions of the library agree that this is what ties the tables."""
        return set(self.ties.values()) == {ties}


@functools.cache
def known() -> dict[str, Architecture]:
    """Return all known architectures, by name of their class."""
    content = json.loads((resources.files("tiejax.checkpoints.hub") / FILE).read_text("utf-8"))
    found = {name: _with_head(name, row) for name, row in content["heads"].items()}
    for kind, rows in content["headless"].items():
        found |= {
            name: Architecture(name, kind, "", tuple(inputs), (), (), (), (), False, {}, {}) for name, inputs in rows.items()
        }
    return found


def _with_head(name: str, row: Mapping[str, Any]) -> Architecture:
    tensors: dict[str, Any] = {field: tuple(row.get(field, ())) for field in NAMES}
    others_tied = tuple(tuple(group) for group in row.get("more", ()))
    usual: dict[str, Any] = {"prefix": "", "by_text": False, "flags": {}}
    others: dict[str, Any] = {field: row.get(field, value) for field, value in usual.items()}
    return Architecture(name=name, type=row["type"], ties=row["ties"], more=others_tied, **others, **tensors)


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture that a configuration names, None if it is unknown.

    Without `architectures`, it is that of all classes of its `model_type` that predict tokens, if they agree on what ties them.
    """
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return next((known()[name] for name in names if isinstance(name, str) and name in known()), None)
    kind = config.get("model_type")
    return _of_type(kind) if isinstance(kind, str) else None


@functools.cache
def _of_type(kind: str) -> Architecture | None:
    classes = [one for one in known().values() if one.type == kind and one.output]
    if not classes:
        return None
    classes.sort(key=lambda one: -len(one.input))  # of an encoder and decoder, the names of the whole model come first
    ties = dict(classes[0].ties)
    for one in classes[1:]:
        if any(ties.setdefault(version, of) != of for version, of in one.ties.items()):
            return None
    tensors: dict[str, Any] = {
        field: tuple(dict.fromkeys(name for one in classes for name in getattr(one, field))) for field in NAMES
    }
    return classes[0]._replace(name=kind, ties=ties, **tensors)
