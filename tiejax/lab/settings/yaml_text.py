"""The subset of YAML for settings: plain values, lists and mappings with distinct keys; no aliases, tags or objects."""

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from tiejax.system.visible import cut, visible, visible_lines

DEEPEST = 32
LARGEST = 2**63  # in JSON, numpy and the files of a run
# Dates, merges and `=` are read as text; sets, binary data and objects are refused.
KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in KINDS)


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


# Set on the subclass, so that the tables of yaml.SafeLoader stay unchanged.
_Loader.yaml_constructors = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in TAGS}
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in known if tag in TAGS]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _FlagLoader(_Loader):
    """A loader that reads 5e-4 as a number, which is text in YAML 1.1."""


_FlagLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load(text: str) -> Any:
    """Return the content of a YAML file; raises NotYaml."""
    return _load(text, _Loader)


def load_flag(text: str) -> Any:
    """Return the value of an option, read as YAML; raises NotYaml."""
    return _load(text, _FlagLoader)


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


def dump(values: Any) -> str:
    """Return values as YAML; invisible and control characters are written as escapes."""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return text if visible_lines(text) == text else yaml.safe_dump(values, sort_keys=False)


def dump_words(words: Sequence[str]) -> str:
    """Return words as a YAML list on one line, whatever characters they contain."""
    return yaml.safe_dump(list(words), default_style='"', default_flow_style=True, width=math.inf).rstrip("\n")


def fault(value: Any) -> str | None:
    """Return why a value is not allowed as a setting, or None: text invalid in file names, or integers beyond 64 bits."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return next((why for item in value if (why := fault(item))), None)
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return "contains an integer of more than 64 bits"
    if isinstance(value, str) and "\0" in value:
        return "contains a NUL character"
    if isinstance(value, str) and not _is_encodable(value):
        return "contains a lone surrogate, half of a character"
    return None


def _is_encodable(text: str) -> bool:
    try:
        # File names need not be UTF-8; Python represents their bytes by surrogates.
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
