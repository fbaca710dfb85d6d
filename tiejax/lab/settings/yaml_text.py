"""The subset of YAML 1.2 for settings: plain values, lists and mappings with distinct keys; no aliases, tags or objects.

PyYAML reads YAML 1.1, in which `010` is 8, `1:30` is 90 and `no` is false. Its loader gets the rules of the core schema of
YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), in which these are 10 and two words.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from tiejax.system.visible import cut, visible, visible_lines

DEEPEST = 32
LARGEST = 2**63  # in JSON, numpy and the files of a run
PREFIX = "tag:yaml.org,2002:"
CLOUD = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
# Plain scalars that are not text: pattern and possible first characters.
SCALARS = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}


class NotYaml(ValueError):
    """Invalid YAML. str: the reason. line: its line, counted from 1, or None."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class _Loader(yaml.SafeLoader):
    """A loader of scalars, lists and mappings only."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            # A few lines of aliases of aliases can expand to billions of values.
            self._refuse(f"aliases such as *{cut(event.anchor)} are not supported; write the value itself", event)
        if getattr(event, "tag", None) not in (None, "!"):
            tag = cut(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self._refuse(f"tags such as {tag} are not supported; write a plain value", event)
        if self.depth == DEEPEST:
            self._refuse(f"nested deeper than {DEEPEST} levels", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                self._refuse("a list or a mapping cannot be a key", key_node)
            if key in seen:
                self._refuse(f"{cut(key)} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: Any) -> None:
        """Leave merge keys (`<<`) as they are."""

    @staticmethod
    def _refuse(reason: str, where: Any) -> None:
        raise yaml.constructor.ConstructorError(None, None, reason, where.start_mark)


def _integer(loader: _Loader, node: Any) -> int:
    digits = loader.construct_scalar(node)
    return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))


def _add_scalars(kind: Any) -> None:
    """Make a loader or dumper class recognise the plain scalars of YAML 1.2."""
    for name, (pattern, letters) in SCALARS.items():
        empty = [""] if name == "null" else []
        kind.add_implicit_resolver(PREFIX + name, re.compile(rf"(?:{pattern})\Z"), [*letters, *empty])


# Set on the subclass, so that the tables of yaml.SafeLoader stay unchanged. Dates, merges and `=` are read as text; sets,
# binary data and objects are refused.
_Loader.yaml_constructors = {
    **{PREFIX + kind: yaml.SafeLoader.yaml_constructors[PREFIX + kind] for kind in (*SCALARS, "str", "seq", "map")},
    PREFIX + "int": _integer,
}
_Loader.yaml_implicit_resolvers = {}
_add_scalars(_Loader)


class _TextLoader(_Loader):
    """A loader that leaves every plain scalar as the text that was written."""


_TextLoader.yaml_implicit_resolvers = {}


def load(text: str) -> Any:
    """Return the content of a YAML file, or the value of an option; raises NotYaml."""
    return _load(text, _Loader)


def load_as_text(text: str) -> Any:
    """Return the content of a YAML file with every scalar as the text that was written; raises NotYaml."""
    return _load(text, _TextLoader)


def _load(text: str, loader: type[_Loader]) -> Any:
    try:
        return yaml.load(text, loader)
    except yaml.reader.ReaderError as error:
        letter = error.character if isinstance(error.character, str) else chr(error.character)
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise NotYaml(f"the character {visible(letter)} is not allowed in YAML", line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotYaml(error.problem or "unreadable", mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # an escape or a number that Python does not support
        raise NotYaml(str(error)) from None


class _Dumper(yaml.SafeDumper):
    """A dumper that writes text in quotes if it would be read as a number or a truth value by YAML 1.1 or by YAML 1.2."""


_add_scalars(_Dumper)  # in addition to those of YAML 1.1


class _LineDumper(_Dumper):
    """A dumper that writes all text in quotes, so that line ends in it are escaped."""


_LineDumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(f"{PREFIX}str", text, style='"'))


def dump(values: Any) -> str:
    """Return values as YAML; invisible and control characters are written as escapes."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text if visible_lines(text) == text else yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def dump_line(values: Any) -> str:
    """Return values as YAML on one line, whatever characters they contain."""
    text: str = yaml.dump(values, Dumper=_LineDumper, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.rstrip("\n")


def first_fault(values: Mapping[str, Any], fault_of: Callable[[Any], str | None]) -> tuple[str, str] | None:
    """Return the name of the first value with a fault, by `of_value` or `of_path`, and the fault, or None."""
    return next(((name, why) for name, value in values.items() if (why := _fault(value, fault_of))), None)


def _fault(value: Any, fault_of: Callable[[Any], str | None]) -> str | None:
    """Return the first fault within a value, by `fault_of`."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return next((why for item in value if (why := _fault(item, fault_of))), None)
    return fault_of(value)


def of_path(value: Any) -> str | None:
    """Return the fault of a value that names a file which is not on this machine."""
    if isinstance(value, str) and CLOUD.match(value):
        return f"expected a path on this machine, got {cut(value)}; copy it here, or mount it"
    if isinstance(value, str) and value.startswith("~") and os.path.expanduser(value) == value:
        return f"expected a path on this machine, got {cut(value)}: the home directory of that user is not known"
    return None


def of_value(value: Any) -> str | None:
    """Return the fault of a value that is not allowed as a setting: text invalid in file names, integers beyond 64 bits."""
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return "contains an integer of more than 64 bits"
    if not isinstance(value, str):
        return None
    if "\0" in value:
        return "contains a NUL character"
    try:
        # File names need not be UTF-8; Python represents their bytes by surrogates.
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "contains a lone surrogate, half of a character"
    return None
