"""Typed command lines: the fields of a frozen dataclass are the flags of a command and the keys of its YAML files.

jsonargparse parses values and prints the help. On top of that, flags override files in any order, flags cannot be abbreviated,
and bad input is reported in one line that names the option or the file, with exit status 2.
"""

import argparse
import contextlib
import dataclasses
import difflib
import errno
import gc
import logging
import math
import os
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import docstring_parser
import jsonargparse

from tiejax.lab.settings import named_configs, yaml_text
from tiejax.lab.settings.yaml_text import NotYaml, first_fault, of_path, of_value
from tiejax.system.files import naming_file, read_bytes
from tiejax.system.visible import cut, visible_line, visible_lines

# The mode in which jsonargparse reads values and prints a configuration.
MODE = "tiejax"
jsonargparse.set_loader(MODE, yaml_text.load, (NotYaml,))
jsonargparse.set_dumper(MODE, yaml_text.dump)
MOST_BYTES = 2**20  # of a configuration file
STANDARD_OUTPUT, STANDARD_ERROR = Path("standard output"), Path("standard error")  # in messages
PROGRAM = "PROGRAM"  # placeholder for the command in an example
HELP_ALL = "help-all"  # the option that explains all options
MOST_SEEDS = 10**6
RANGE = re.compile(r"(\d{1,10})-(\d{1,10})")  # of seeds, inclusive
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
OPTION = re.compile(r"-(?!\.?\d)")  # beginning of a word that is no value

Config = TypeVar("Config")


STATUS = (
    "Exit status: 0 success; 2 bad input; 3 another process of the cluster exited; 4 a file could not be read or written; "
    "130 interrupted. Every status except 0 comes with a one-line message that says what to do."
)
ADVICE = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some disk space",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EACCES: "allow reading and writing",
    errno.EPERM: "allow reading and writing",
    errno.EROFS: "allow writing",
    errno.EBADF: "open it",
}


class BadInput(Exception):
    """Invalid input: one line that names the option or file and says what is expected."""


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command line and its help.

    Args:
        description: what the command does
        example: an example, with PROGRAM in place of the command
        switches: flags without a value, name -> help
        positional: fields that are given without a flag; each is optional
        first: the fields and switches that are used most, which the help shows first
        configurations: folder in `configs/` of the configurations that come with tiejax
        status: the exit statuses
        name: subcommand, if the program has several
    """

    description: str
    example: str
    switches: Mapping[str, str]
    positional: Sequence[str] = ()
    first: Sequence[str] = ()
    configurations: str | None = None
    name: str = ""
    status: str = STATUS


def parse(
    config_class: type[Config], command: CommandLine, argv: Sequence[str], base: Path | None = None
) -> tuple[Config, dict[str, bool]]:
    """Return the configuration and the switches in `argv`; raises BadInput.

    base: a configuration that files and flags override (that of the run that is resumed). `--help` and `--print_config` print
    and exit. Options may be written with hyphens in place of underscores.
    """
    argv = _with_underscores(argv, option_names(config_class, command))
    hints = {name: kind for name, kind in typing.get_type_hints(config_class).items() if name not in command.positional}
    # Switches are not part of the configuration, so that --print_config does not print them.
    switches = {name: f"--{name}" in argv for name in command.switches}
    words = _joined([word for word in argv if word not in {f"--{name}" for name in switches}], {"config": str, **hints})
    files = [word.partition("=")[2] for word in words if word.partition("=")[0] == "--config"]
    if "" in files:
        raise BadInput("--config: expected a file")
    flags = [_as_in_file(word, hints) for word in words if word.partition("=")[0] != "--config"]
    parser = _parser(config_class, command)
    values: dict[str, Any] = {}
    for file in ([str(base)] if base else []) + files:
        values |= _read_file(file, config_class, parser, command)
    try:
        parser.set_defaults(values)
        namespace = parser.parse_args(flags)
    except jsonargparse.ArgumentError as error:
        raise BadInput(_explain(str(error), config_class, command)) from None
    chosen = {field.name: namespace[field.name] for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    if fault := first_fault(chosen, of_value) or first_fault(chosen, of_path):
        raise BadInput(f"{'' if fault[0] in command.positional else '--'}{fault[0]}: {fault[1]}")
    if isinstance(chosen.get("out"), str):  # `~` that no shell has expanded, as in a file or after `=`
        chosen["out"] = os.path.expanduser(chosen["out"])
    return config_class(**chosen), switches


def program() -> str:
    """Return how this command was started: `python experiments/exor.py` or `tiejax exor`."""
    started = sys.argv[0]
    return shlex.join(["python", started]) if started.endswith(".py") else started


def option_names(config_class: type, command: CommandLine) -> list[str]:
    """Return the names of all options of a command, without dashes."""
    fields = [name for name in typing.get_type_hints(config_class) if name not in command.positional]
    return ["config", "help", HELP_ALL, "print_config", *command.switches, *fields]


def _with_underscores(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a command line with every option under its name; other words, and unknown options, stay as they are."""
    by_spelling = {name.replace("-", "_"): name for name in names}

    def named(word: str) -> str:
        option, equals, value = word.partition("=")
        name = by_spelling.get(option.removeprefix("--").removesuffix("+").replace("-", "_"))
        if name is None or not option.startswith("--"):
            return word
        return f"--{name}{'+' if option.endswith('+') else ''}{equals}{value}"

    return [named(word) for word in argv]


class _Help(jsonargparse.DefaultHelpFormatter):
    """A format of help that keeps paragraphs apart, and says nothing of a default that is null: the text explains it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = str(super()._get_help_string(action))
        return text.replace(", default: %(default)s", "") if action.default is None else text

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(_Help, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


class _HelpAll(argparse._HelpAction):
    """The option that prints the help of all options, and exits."""

    def __call__(self, parser: Any, *_: Any) -> NoReturn:
        parser.most_used = None
        parser.print_help()
        sys.exit(0)


class _Parser(jsonargparse.ArgumentParser):
    """A parser whose help cannot control the terminal, even by defaults that were read from a file.

    most_used: the only group of options that the help shows, after the positional arguments; None for all groups. options: the
    number of all options.
    """

    most_used: Any = None
    options = 0

    def format_help(self, formatter: Any = None) -> str:
        if self.most_used is None:
            return str(super().format_help(formatter))
        groups, epilog = self._action_groups, self.epilog
        self._action_groups = [groups[0], self.most_used]
        self.epilog = f"--{HELP_ALL} explains all {self.options} options.\n\n{epilog}"
        try:
            return str(super().format_help(formatter))
        finally:
            self._action_groups, self.epilog = groups, epilog

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            with naming_file(STANDARD_OUTPUT):  # argparse would ignore that it cannot be written
                (file or sys.stderr).write(visible_lines(message))


def _parser(config_class: type, command: CommandLine) -> _Parser:
    parser = _Parser(
        description=command.description.replace(PROGRAM, program()),
        prog=Path(sys.argv[0]).name,
        usage=_usage(config_class, command),
        epilog=f"{command.example.replace(PROGRAM, program())}\n\n{command.status}",
        exit_on_error=False,
        allow_abbrev=False,
        parser_mode=MODE,
        formatter_class=_Help,
    )
    parser.add_argument(f"--{HELP_ALL}", action=_HelpAll, help="explain all options and exit")
    parser.add_argument("--config", action="config", help=_config_help(command))
    for name, text in command.switches.items():
        parser.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=text)
    for name in command.positional:
        several = typing.get_type_hints(config_class)[name] == list[str]
        parser.add_argument(name, nargs="*" if several else "?", type=str)
    parser.add_class_arguments(config_class, skip=set(command.positional))
    # jsonargparse reads only the docstrings of the class and of its first base.
    docs = field_docs(config_class)
    for action in parser._actions:
        if action.dest in docs:
            action.help = docs[action.dest]
        if action.dest == "print_config":
            action.metavar = "[=FLAGS]"  # that of jsonargparse contains a backspace
        if action.dest == "help" and command.first:
            action.help = "show the most used settings and exit"
    if command.first:
        _put_first(parser, ("config", *command.first))
        parser.options = len(option_names(config_class, command))
    return parser


def _usage(config_class: type, command: CommandLine) -> str:
    hints = typing.get_type_hints(config_class)
    positional = (f"{name.upper()} ..." if hints[name] == list[str] else f"[{name.upper()}]" for name in command.positional)
    return " ".join(filter(None, ("%(prog)s", command.name, *positional, "[--setting VALUE ...]")))


def _config_help(command: CommandLine) -> str:
    """Return the help of `--config`, with the names of the configurations that come with tiejax."""
    names = named_configs.names(command.configurations) if command.configurations else []
    or_name = f", or the name of a configuration that comes with tiejax ({', '.join(names)})" if names else ""
    return f"YAML file with any of the settings below{or_name}; flags override it"


def _put_first(parser: _Parser, first: Sequence[str]) -> None:
    """Show these options before all others, in this order; argparse has no option for that."""
    most_used = parser.add_argument_group("most used settings")
    by_name = {action.dest: action for action in parser._actions}
    for group in parser._action_groups:
        group._group_actions = [action for action in group._group_actions if action.dest not in first]
    most_used._group_actions = [by_name[name] for name in first]
    others = [group for group in parser._action_groups if group is not most_used]
    parser._action_groups = [*others[:1], most_used, *others[1:]]  # after the positional arguments
    parser.most_used = most_used


def field_docs(config_class: type) -> dict[str, str]:
    """Return the documentation of each field, from the docstrings of a class and its bases; the class overrides its bases."""
    docs: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        parsed = docstring_parser.parse(base.__doc__ or "")
        docs |= {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    return docs


def _joined(argv: Sequence[str], hints: Mapping[str, Any]) -> list[str]:
    """Return a command line with each field and its value as one word, `--name=value`, unless the value is missing.

    Fields that are lists of words take several, for shell patterns: `--name a b` becomes `--name=["a", "b"]`.
    """
    joined, waiting = list[str](), list(argv)
    while waiting:
        option, equals, value = (word := waiting.pop(0)).partition("=")
        kind = hints.get(option.removeprefix("--").removesuffix("+")) if option.startswith("--") else None
        if option.endswith("+") and list not in _kinds(kind):  # only lists can be appended to
            kind = None
        if kind == list[str] and not option.endswith("+") and not value.startswith("["):
            values = [value] if value else []
            while waiting and not waiting[0].startswith("--"):
                values.append(waiting.pop(0))
            if not values:
                raise BadInput(f"{option}: expected at least one value")
            word = f"{option}={values[0] if values[0].startswith('[') else yaml_text.dump_line(values)}"
            # Of two values the later counts, as it does for other fields; words look as if they were added.
            if not values[0].startswith("[") and any(before.startswith(f"{option}=") for before in joined):
                raise BadInput(f"{option}: given twice; write {option} A B, or {option}+ B for more values")
        elif kind is not None and not equals and waiting and not OPTION.match(waiting[0]):
            word = f"{option}={waiting.pop(0)}"
        joined.append(word)
    return joined


def _as_in_file(word: str, hints: Mapping[str, Any]) -> str:
    """Return `--name=value` with a value that jsonargparse reads as it would be read in a file; any other word as it is.

    jsonargparse would read `010` as text and `[010]` as 8, and try other readings of a list or mapping that is invalid YAML.
    """
    option, equals, text = word.partition("=")
    name = option.removeprefix("--").removesuffix("+")
    if not equals or not option.startswith("--") or name not in hints:
        return word
    kind = hints[name]
    if option == "--seeds":
        text = str(_seed_range(text, option) or text)
    try:
        value, as_text = yaml_text.load(text), yaml_text.load_as_text(text)
    except NotYaml as error:
        if {list, dict} & _kinds(kind):
            raise BadInput(f"{option}: expected {_value_words(name, kind)}, got {cut(text)}: {error}") from None
        return word  # refused later, or text
    if option.endswith("+"):
        return word
    if isinstance(value, list | dict):
        written = _as_written(value, as_text, kind)
        text = text if written == value else yaml_text.dump_line(written)
    elif type(value) in (int, float) and not _is_text(kind) and not JSON_NUMBER.fullmatch(text):
        text = str(value) if isinstance(value, int) or math.isfinite(value) else text
    return f"{option}={text}"


def _seed_range(value: str, option: str) -> list[int] | None:
    """Return the seeds of "FIRST-LAST", or None for any other value; raises BadInput."""
    match = RANGE.fullmatch(value)
    if match is None:
        return None
    first, last = map(int, match.groups())
    if not first <= last < first + MOST_SEEDS:
        raise BadInput(f"{option}: expected FIRST-LAST with 1 to {MOST_SEEDS:,} seeds, got {cut(value)}")
    return list(range(first, last + 1))


def _read_file(file: str, config_class: type, parser: jsonargparse.ArgumentParser, command: CommandLine) -> dict[str, Any]:
    if fault := first_fault({"file": file}, of_path):
        raise BadInput(f"--config: {fault[1]}")
    try:
        found = named_configs.find(file)
        if found is None:
            raise BadInput(f"--config {cut(file)}: not found{_nearest_configuration(file, command)}")
        with resources.as_file(found) as path:
            text = read_bytes(path, MOST_BYTES).decode("utf-8")
        values, as_text = yaml_text.load(text), yaml_text.load_as_text(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--config {file}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    except NotYaml as error:
        place = f", line {error.line}" if error.line else ""
        raise BadInput(f"--config {file}{place}: invalid YAML: {error}") from None
    if values is None:  # comments only: every default
        return {}
    if not isinstance(values, dict):
        raise BadInput(f"--config {file}: expected lines `field: value`, got a {type(values).__name__}")
    names = [field.name for field in dataclasses.fields(config_class)]
    for name in values:
        if name not in names:
            raise BadInput(f"--config {file}: unknown field '{cut(name)}'{nearest(str(name), names)}")
    hints = typing.get_type_hints(config_class)
    values = {name: _as_written(value, as_text[name], hints[name]) for name, value in values.items()}
    if isinstance(values.get("seeds"), str):
        values["seeds"] = _seed_range(values["seeds"], f"--config {file}: seeds") or values["seeds"]
    for name, value in values.items():  # jsonargparse accepts null for any field
        if value is None and type(None) not in typing.get_args(hints[name]):
            raise BadInput(f"--config {file}: {name}: expected {_value_words(name, hints[name])}, got null")
    if fault := first_fault(values, of_value):
        raise BadInput(f"--config {file}: {fault[0]}: {fault[1]}")
    try:
        parser.parse_object(values)
    except jsonargparse.ArgumentError as error:
        raise BadInput(f"--config {file}: {_explain(str(error), config_class, None)}") from None
    return values


def _as_written(value: Any, text: Any, kind: Any) -> Any:
    """Return a value of a file, with the text that was written wherever the field expects text: `out: 010` names a folder 010.

    text: the same value with all scalars as text.
    """
    if isinstance(value, list) and (items := _items_of(kind, list)):
        return [_as_written(one, written, items[0]) for one, written in zip(value, text, strict=True)]
    if isinstance(value, dict) and (items := _items_of(kind, dict)):
        # Both are in the order of the file, in which no key occurs twice, neither as a value nor as text.
        pairs = zip(value.items(), text.items(), strict=True)
        return {_as_written(name, key, items[0]): _as_written(one, written, items[1]) for (name, one), (key, written) in pairs}
    return text if isinstance(value, int | float) and _is_text(kind) else value


def _is_text(kind: Any) -> bool:
    """Return whether a field takes text, or one of several words, and no number."""
    return str in (kinds := _kinds(kind)) and not {int, float, bool} & kinds


def _items_of(kind: Any, container: type) -> tuple[Any, ...]:
    """Return the types of the items of a list or mapping, () if the type hint accepts none."""
    return next((typing.get_args(one) for one in (kind, *typing.get_args(kind)) if typing.get_origin(one) is container), ())


def _kinds(kind: Any) -> set[Any]:
    """Return the types that a type hint accepts, without the types of their items."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {found for one in inner for found in _kinds(one)}
    return {type(value) for value in inner} if origin is typing.Literal else {origin or kind}


def _nearest_configuration(file: str, command: CommandLine) -> str:
    """Return the end of a "not found" message, which lists the configurations of the study, or '' if there are none."""
    study = file.removeprefix("configs/").partition("/")[0] if "/" in file else command.configurations or ""
    names = named_configs.names(study) if re.fullmatch(r"\w+", study) else []
    return f", neither as a file nor among the configurations {', '.join(names)}" if names else ""


def nearest(name: str, names: Sequence[str], dashes: str = "") -> str:
    """Return the end of a message, "; did you mean ...?", with the most similar of `names`, or '' if none is similar."""
    near = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.5)
    return f"; did you mean '{dashes}{near[0]}'?" if near else ""


def _explain(message: str, config_class: type, command: CommandLine | None) -> str:
    """Return an error message of jsonargparse, reworded and on one line."""
    dashes = "--" if command else ""
    hints = typing.get_type_hints(config_class)
    if match := re.match(r"unrecognized arguments: (\S+)", message):
        flag = match[1].split("=")[0]
        if not flag.startswith("-"):
            return f"unexpected argument '{cut(flag)}'"
        names = option_names(config_class, command) if command else list(hints)
        return f"unknown option '{cut(flag)}'{nearest(flag.lstrip('-'), names, '--')}"
    if match := re.match(r'Parser key "(\w+)"', message):
        name = match[1]
        if name in hints:
            value = re.search(r"(?:Given|Got) value: (.*)", message)
            got = f", got {_quoted(value[1])}" if value else ""
            return f"{dashes}{name}: expected {_value_words(name, hints[name])}{got}"
    return " ".join(message.split())


def _quoted(value: str) -> str:
    """Return a value for a message, in quotes if YAML reads it as text."""
    try:
        is_text = isinstance(yaml_text.load(value), str)
    except NotYaml:
        is_text = True
    return f"'{cut(value)}'" if is_text else cut(value)


def _value_words(name: str, kind: Any) -> str:
    """Return the values that a field accepts in words."""
    return _type_name(kind) + (", or a range FIRST-LAST" if name == "seeds" else "")


def _type_name(kind: Any) -> str:
    """Return a type in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        names = [_type_name(one) for one in inner if one is not type(None)]
        return " or ".join(names)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(value) for value in inner)
    if origin is list:
        return f"a list [...], each {_type_name(inner[0])}"
    if origin is dict:
        return f"{{{_type_name(inner[0])}: {_type_name(inner[1])}}}"
    return {int: "an integer", float: "a number", bool: "true or false", str: "text", Any: "a value"}.get(kind, str(kind))


def differences(before: object, now: object) -> list[str]:
    """Return the fields in which two configurations of one class differ, as `field: before -> now`."""
    return [
        f"{field.name}: {cut(getattr(before, field.name))} -> {cut(getattr(now, field.name))}"
        for field in dataclasses.fields(before)  # type: ignore[arg-type]
        if getattr(before, field.name) != getattr(now, field.name)
    ]


class Refused(Exception):
    """Raised if a file cannot be read or written, or a process of a run has died; the message is one line with what to do."""


def refused(error: OSError, then: str) -> BadInput | Refused:
    """Return the exception that reports an OSError: BadInput if a file name is too long, otherwise Refused.

    then: what to do once the cause is removed.
    """
    if error.errno == errno.ENAMETOOLONG:
        return BadInput(f"{cut(error.filename)}: file name too long; use a shorter one")
    if error.errno == errno.ENOENT and error.filename is None:
        return Refused(f"the working directory no longer exists; change to another, then {then}")
    if isinstance(error, BrokenPipeError):
        return Refused(f"the program that reads the output has exited; {then}")
    advice = ADVICE.get(error.errno or 0, "fix this")
    where = f"{error.filename}: " if error.filename is not None else ""
    return Refused(f"{where}{error.strerror or error}; {advice}, then {then}")


def report(error: BadInput | Refused) -> int:
    """Print an error in one line; return the exit status of the command."""
    with contextlib.suppress(OSError):  # the status says it too
        print(f"{visible_line(Path(sys.argv[0]).name)}: error: {visible_line(str(error))}", file=sys.stderr, flush=True)
    return 2 if isinstance(error, BadInput) else 4


def run_main(main: Callable[[list[str]], int]) -> NoReturn:
    """Run `main(argv)` as a command and exit: with status 2 after bad input, 4 after an error of the operating system.

    Both are reported in one line on standard error; only errors in tiejax itself show a traceback. It is an error of the
    operating system if output cannot be written, because standard output is closed or its reader has exited.
    """
    gc.set_threshold(50_000)  # imports and tracing leave few cycles; by default a short run is an eighth slower
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns in several lines if it cannot write its cache
    os.environ["MPLBACKEND"] = "agg"  # figures are only written to files; matplotlib cannot be imported with an unknown one
    _open_standard_error()
    try:
        status = _checked_output(main)
    except (BadInput, Refused, OSError) as error:
        status = report(refused(error, "run it again") if isinstance(error, OSError) else error)
    except MemoryError as error:
        why = f" ({cut(' '.join(str(error).split()))})" if str(error) else ""
        status = report(Refused(f"out of memory{why}; free some, or raise the limit (ulimit -v), then run it again"))
    except KeyboardInterrupt:  # before or after training, when there is nothing to save
        print(f"{visible_line(Path(sys.argv[0]).name)}: interrupted", file=sys.stderr)
        status = 130
    _drop_output()
    sys.exit(status)


def _checked_output(main: Callable[[list[str]], int]) -> int:
    """Return the status of `main(argv)`, also if it exits as `--help` does; raises OSError if its output cannot be written."""
    if sys.stdout is None:  # closed by the shell, as in `command >&-`
        raise OSError(errno.EBADF, "is closed", str(STANDARD_OUTPUT))
    try:
        status = main(sys.argv[1:])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    with naming_file(STANDARD_OUTPUT):
        sys.stdout.flush()
    return status


def _open_standard_error() -> None:
    """Open standard error if it is closed, so that no file of the command takes its place and receives messages."""
    if sys.stderr is None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115, open until the process ends


def _drop_output() -> None:
    """Discard output that cannot be written, about which Python would complain at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
