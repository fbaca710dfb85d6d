"""What the transformers library does with the embedding tables of each of its architectures: their names, and what ties them.

The facts are in architectures.json. `tests/architectures` writes that file: it builds every architecture of several versions of
the library with the flag true and false, saves it, and looks which tensors of the file are the two tables. An architecture that
it could not build is absent.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

# What decides whether the tables are one: the flag, or nothing.
Ties = Literal["by flag", "always", "never"]
FILE = "architectures.json"
NAMES = ("input", "output", "kept", "inner")  # fields that hold names of tensors
NONE: Mapping[str, Any] = MappingProxyType({})
STATES = (None, True, False)  # of the flag at one level of a configuration, in the order of `Architecture.flag`


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
        more: groups of names of other tensors that the flag makes one, by major version of the library
        ties: what decides whether the tables are one, by major version of the library
        flag: whether the tables are one, "t" or "f" ("?" if unknown), by major version of the library, for the states of the
            flag at the top of the configuration (absent, true, false) and, if the class has a `text_config`, for each of these
            in there
        separate: names of copies of the input table that are separate parameters of an untied model, by major version
        settings: the values of settings of the configuration under which all this is known
        blocks: the name, in its layer, of a tensor that the flag makes one in several layers, by major version
        scaled: whether the flag also changes something else, such as a factor of the logits or blocks of layers
        unlike: whether the output table of an untied model has another shape than the input table
    """

    name: str
    type: str
    prefix: str = ""
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    more: Mapping[str, tuple[tuple[str, ...], ...]] = NONE
    ties: Mapping[str, Ties] = NONE
    flag: Mapping[str, str] = NONE
    separate: Mapping[str, tuple[str, ...]] = NONE
    settings: Mapping[str, bool] = NONE
    blocks: Mapping[str, str] = NONE
    scaled: bool = False
    unlike: bool = False

    def tied(self, version: str, states: Sequence[bool | None]) -> bool | None:
        """Return whether the flag ties the tables in a major version of the library, None if that is unknown.

        states: the flag at the top of the configuration and in `text_config`; None where it is absent.
        """
        table = self.flag.get(version, "")
        place = STATES.index(states[0]) if len(table) == 3 else 3 * STATES.index(states[0]) + STATES.index(states[1])
        return {"t": True, "f": False}.get(table[place : place + 1])

    @property
    def shared(self) -> str:
        """The name under which the library stores the one table of a tied model."""
        return (*self.kept, *self.input)[0]

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tensors that are one if the two tables are one."""
        further = (name for names in self.groups for name in names)
        return (*self.input, *self.output, *self.kept, *self.inner, *further)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of names of other tensors that the flag makes one in some version of the library."""
        return tuple(dict.fromkeys(group for groups in self.more.values() for group in groups))

    @property
    def bare(self) -> "Architecture":
        """The architecture with the names that files of its base model have."""

        def strip(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name.removeprefix(f"{self.prefix}.") for name in names)

        tensors: dict[str, Any] = {field: strip(getattr(self, field)) for field in NAMES}
        separate = {version: strip(names) for version, names in self.separate.items()}
        return self._replace(prefix="", separate=separate, **tensors)

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
    found = {name: Architecture(name, **_frozen(row)) for name, row in content["heads"].items()}
    for kind, rows in content["headless"].items():
        found |= {name: Architecture(name, kind, input=tuple(inputs)) for name, inputs in rows.items()}
    return found


def _frozen(value: Any) -> Any:
    """Return a value of JSON with its lists as tuples."""
    if isinstance(value, dict):
        return {name: _frozen(part) for name, part in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture that a configuration names, None if it is unknown, also for the configuration's settings.

    Without `architectures`, it is that of all classes of its `model_type` that predict tokens, if they agree on what ties them.
    """
    found = _named(config)
    return None if found is None or unusual(config) else found


def unusual(config: Mapping[str, Any]) -> str | None:
    """Return in words a setting of a configuration under which its architecture is not known, None if there is none."""
    found = _named(config)
    for name, value in (found.settings if found else {}).items():
        if config.get(name, value) != value:
            return f"{name} is {json.dumps(config[name])}"
    return None


def _named(config: Mapping[str, Any]) -> Architecture | None:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return next((known()[name] for name in names if isinstance(name, str) and name in known()), None)
    kind = config.get("model_type")
    return _of_type(kind) if isinstance(kind, str) else None


def unsafe(architecture: Architecture, title: str | None) -> str | None:
    """Return why logits may change if the flag is changed with the same tables; None if they do not."""
    if any(set(table) == {"?"} for table in architecture.flag.values()):
        return f"it is not known which flag ties {title}"
    if architecture.scaled:
        what = "which layers share a block" if architecture.blocks else "the scale of logits"
        return f"the flag of {title} changes more than its tables: {what}"
    if architecture.unlike:
        return f"an untied model of {title} has an output table of another shape"
    return None


def default_of(kind: str, version: str) -> bool | None:
    """Return the flag that configurations of a `model_type` have without one in a major version; None if that is unknown.

    It is read off a class that is tied by the flag: whether a configuration without it ties the tables.
    """
    classes = [one for one in known().values() if one.type == kind and one.ties.get(version) == "by flag"]
    found = {one.tied(version, (None, None)) for one in classes if len(one.flag.get(version, "")) == len(STATES)}
    return found.pop() if len(found) == 1 else None


@functools.cache
def _of_type(kind: str) -> Architecture | None:
    classes = [one for one in known().values() if one.type == kind and one.output]
    if not classes:
        return None
    classes.sort(key=lambda one: -len(one.input))  # of an encoder and decoder, the names of the whole model come first
    ties, flag = dict(classes[0].ties), dict(classes[0].flag)
    for one in classes[1:]:
        if any(ties.setdefault(version, of) != of for version, of in one.ties.items()):
            return None
        if any(flag.setdefault(version, of) != of for version, of in one.flag.items()):
            return None
    tensors: dict[str, Any] = {
        field: tuple(dict.fromkeys(name for one in classes for name in getattr(one, field))) for field in NAMES
    }
    settings = {name: value for one in classes for name, value in one.settings.items()}
    scaled, unlike = any(one.scaled for one in classes), any(one.unlike for one in classes)
    return classes[0]._replace(name=kind, ties=ties, flag=flag, settings=settings, scaled=scaled, unlike=unlike, **tensors)
