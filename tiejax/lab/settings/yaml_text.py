"""YAML as settings are written in it: plain values, lists and mappings, each key once; nothing that can grow or act."""

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from tiejax.system.visible import visible, visible_lines

DEEPEST = 32
LARGEST = 2**63  # what JSON, numpy and the files of a run can hold
# Dates, merges and `=` are text; sets, binary and objects are no settings.
KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in KINDS)


class NotYaml(ValueError):
    """Text that is no YAML of settings. str: why. line: where, from 1, if that is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class _Loader(yaml.SafeLoader):
    """Reads scalars, lists and mappings alone."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            # A few lines of aliases of aliases are billions of values.
            self._refuse(f"*{event.anchor} stands for a value; write the value itself", event)
        if getattr(event, "tag", None) not in (None, "!"):
            self._refuse(f"the tag {event.tag.replace('tag:yaml.org,2002:', '!!')} is not read; write a plain value", event)
        if self.depth == DEEPEST:
            self._refuse(f"is nested deeper than {DEEPEST} levels", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                self._refuse("a list or a mapping is no key", key_node)
            if key in seen:
                self._refuse(f"{key} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: Any) -> None:
        """Merge nothing."""

    @staticmethod
    def _refuse(reason: str, where: Any) -> None:
        raise yaml.constructor.ConstructorError(None, None, reason, where.start_mark)


# A subclass would otherwise share these tables with yaml's own loader.
_Loader.yaml_constructors = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in TAGS}
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in known if tag in TAGS]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _LoaderOfFlags(_Loader):
    """Reads 5e-4 as a number, which YAML 1.1 takes for text."""


_LoaderOfFlags.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load(text: str) -> Any:
    """Return what a YAML file holds; raises NotYaml."""
    return _load(text, _Loader)


def load_flag(text: str) -> Any:
    """Return what an option's value is as YAML; raises NotYaml."""
    return _load(text, _LoaderOfFlags)


def _load(text: str, loader: type[_Loader]) -> Any:
    try:
        return yaml.load(text, loader)
    except yaml.reader.ReaderError as error:
        letter = error.character if isinstance(error.character, str) else chr(error.character)
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise NotYaml(f"the character {visible(letter)} may not stand in YAML", line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise NotYaml(error.problem or "unreadable", mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # an escape or a number that Python does not have
        raise NotYaml(str(error)) from None


def dump(values: Any) -> str:
    """Return values as YAML; letters that are not seen, or that act on a terminal, are written as escapes."""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return text if visible_lines(text) == text else yaml.safe_dump(values, sort_keys=False)


def dump_words(words: Sequence[str]) -> str:
    """Return words as a list on one line, whatever they are made of."""
    return yaml.safe_dump(list(words), default_style='"', default_flow_style=True, width=math.inf).rstrip("\n")


def fault(value: Any) -> str | None:
    """Say why a value cannot be a setting, or return None: text that no file's name can be, numbers beyond 64 bits."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return next((why for item in value if (why := fault(item))), None)
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return "holds a whole number of more than 64 bits"
    if isinstance(value, str) and "\0" in value:
        return "holds a NUL character"
    if isinstance(value, str) and not _is_encodable(value):
        return "holds half a character, a lone surrogate"
    return None


def _is_encodable(text: str) -> bool:
    try:
        # As the system spells file names, which need not be UTF-8.
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
