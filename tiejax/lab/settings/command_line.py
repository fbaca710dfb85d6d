"""Typed command lines: the fields of a frozen dataclass are the flags of a command and the keys of its YAML files.

A value of a flag is read as in a file, as YAML, unless the field takes text. Flags override files in any order and cannot be
abbreviated, and bad input is reported in one line that names the option or the file, with exit status 2.
"""

import argparse
import contextlib
import dataclasses
import difflib
import errno
import gc
import logging
import os
import re
import shlex
import sys
import types
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import docstring_parser

from tiejax.lab.settings import named_configs, yaml_text
from tiejax.lab.settings.yaml_text import NotYaml
from tiejax.system.files import naming_file, read_bytes
from tiejax.system.visible import cut, visible_line, visible_lines

MOST_BYTES = 2**20  # of a configuration file
STANDARD_OUTPUT, STANDARD_ERROR = Path("standard output"), Path("standard error")  # in messages
PROGRAM = "PROGRAM"  # placeholder for the command in an example
HELP_ALL = "help-all"  # the option that explains all options
OPTIONS = {  # of every command, without a value
    "help": "show this help and exit",
    HELP_ALL: "explain all options and exit",
    "print_config": "print all settings as a file for --config and exit",
}
MOST_SEEDS = 10**6
RANGE = re.compile(r"(\d{1,10})-(\d{1,10})")  # of seeds, inclusive
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
        name: subcommand, if the program has several
    """

    description: str
    example: str
    switches: Mapping[str, str]
    positional: Sequence[str] = ()
    first: Sequence[str] = ()
    configurations: str | None = None
    name: str = ""


def parse(
    config_class: type[Config], command: CommandLine, argv: Sequence[str], base: Path | None = None
) -> tuple[Config, dict[str, bool]]:
    """Return the configuration and the switches in `argv`; raises BadInput.

    base: a configuration that files and flags override (that of the run that is resumed). `--help` and `--print_config` print
    and exit.
    """
    hints = typing.get_type_hints(config_class)
    words, options = _split(argv, config_class, command)
    values: dict[str, Any] = {}
    for file in ([str(base)] if base else []) + [text for option, text in options if option == "--config"]:
        values |= _read_file(file, config_class, command)
    asked = {option for option, _ in options}
    if asked & {"--help", f"--{HELP_ALL}"}:
        _show(_help(config_class(**values), command, every=f"--{HELP_ALL}" in asked or not command.first))
    for option, text in options:
        if (name := option.removeprefix("--").removesuffix("+")) in hints:
            before = values[name] if name in values else getattr(config_class(), name)
            values[name] = _read_flag(option, text, hints[name], before)
    for name in command.positional:
        if words:
            values[name], words = (words, []) if hints[name] == list[str] else (words[0], words[1:])
    if words:
        raise BadInput(f"unexpected argument '{cut(words[0])}'")
    if fault := yaml_text.first_fault(values):
        raise BadInput(f"{'' if fault[0] in command.positional else '--'}{fault[0]}: {fault[1]}")
    if isinstance(values.get("out"), str):  # `~` that no shell has expanded, as in a file or after `=`
        values["out"] = os.path.expanduser(values["out"])
    config = config_class(**values)
    if "--print_config" in asked:
        _show(yaml_text.dump(dataclasses.asdict(config)))  # type: ignore[call-overload]
    return config, {name: f"--{name}" in asked for name in command.switches}


def program() -> str:
    """Return how this command was started: `python experiments/exor.py` or `tiejax exor`."""
    started = sys.argv[0]
    return shlex.join(["python", started]) if started.endswith(".py") else started


def option_names(config_class: type, command: CommandLine) -> list[str]:
    """Return the names of all options of a command, without dashes."""
    fields = [name for name in typing.get_type_hints(config_class) if name not in command.positional]
    return ["config", "help", HELP_ALL, "print_config", *command.switches, *fields]


def _split(argv: Sequence[str], config_class: type, command: CommandLine) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the words of a command line that belong to no option, and its options, each with its text ("" for switches).

    An option may be written with hyphens in place of underscores. Fields that are lists of words take several, for shell
    patterns: the text of `--name a b` is `["a", "b"]`.
    """
    names = {name.replace("-", "_"): name for name in option_names(config_class, command)}
    hints = {"config": str, **typing.get_type_hints(config_class)}
    words, options, waiting = list[str](), list[tuple[str, str]](), list(argv)
    while waiting:
        option, equals, text = (word := waiting.pop(0)).partition("=")
        if not OPTION.match(word):
            words.append(word)
            continue
        option, plus = "--help" if option == "-h" else option.removesuffix("+"), "+" if option.endswith("+") else ""
        name = names.get(option.removeprefix("--").replace("-", "_"), "") if option.startswith("--") else ""
        kind = hints.get(name)
        if not name or (plus and list not in _kinds(kind)):  # only lists can be appended to
            raise BadInput(f"unknown option '{cut(option)}{plus}'{nearest(option.lstrip('-'), list(names.values()), '--')}")
        if kind is None and equals:
            raise BadInput(f"--{name}: expected no value, got '{cut(text)}'")
        if kind == list[str] and not plus and not text.startswith("["):
            given = [text] if text else []
            while waiting and not waiting[0].startswith("--"):
                given.append(waiting.pop(0))
            if not given:
                raise BadInput(f"--{name}: expected at least one value")
            text = given[0] if given[0].startswith("[") else yaml_text.dump_line(given)
        elif kind is not None and not equals:
            if not waiting or OPTION.match(waiting[0]):
                raise BadInput(f"--{name}: expected {'a file' if name == 'config' else 'one argument'}")
            text = waiting.pop(0)
        options.append((f"--{name}{plus}", text))
    return words, options


def _read_flag(option: str, text: str, kind: Any, before: Any) -> Any:
    """Return the value of a flag, read as in a file if the field takes anything but text; raises BadInput.

    before: the value to which `--name+` appends.
    """
    name, kinds = option.removeprefix("--").removesuffix("+"), _kinds(kind)
    try:
        value, as_text = yaml_text.load(text), yaml_text.load_as_text(text)
    except NotYaml as error:
        if {list, dict} & kinds:
            raise BadInput(f"{option}: expected {_value_words(name, kind)}, got {cut(text)}: {error}") from None
        value = as_text = text
    if _is_text(kind):
        takes_text = type(value) not in kinds - {str} or not fits(value, kind)
    else:
        takes_text = kind == list[str] and not isinstance(value, list)
    if not text or takes_text or (value is None and type(None) not in kinds):
        value = as_text = text  # as it was written
    if option.endswith("+"):
        had = before if isinstance(before, list) else [] if before is None else [before]
        value, as_text = ([*had, *(each if isinstance(each, list) else [each])] for each in (value, as_text))
    return _fitted(value, as_text, name, kind, option)


class _Help(argparse.HelpFormatter):
    """A format of help that keeps paragraphs apart."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(_Help, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


def _help(defaults: Any, command: CommandLine, every: bool) -> str:
    """Return the help of a command: of its most used options, or of all. It cannot control the terminal.

    defaults: the configuration whose values are shown as defaults, unless they are None: the text then explains the default.
    """
    config_class, first = type(defaults), ["config", *command.first] if command.first else []
    hints, docs, names = typing.get_type_hints(config_class), field_docs(config_class), option_names(config_class, command)
    hint = "" if every else f"--{HELP_ALL} explains all {len(names)} options."
    parser = argparse.ArgumentParser(
        prog=Path(sys.argv[0]).name,
        usage=_usage(config_class, command),
        description=command.description.replace(PROGRAM, program()),
        epilog="\n\n".join(filter(None, [hint, command.example.replace(PROGRAM, program()), STATUS])),
        formatter_class=_Help,
        add_help=False,
    )
    vars(parser)["color"] = False  # which Python 3.14 would add
    groups = {"positional arguments": command.positional, "most used settings": first}
    groups |= {"options": [name for name in names if name not in first]} if every else {}
    texts = {"config": _config_help(command)} | OPTIONS | dict(command.switches)
    for title, shown in groups.items():
        group = parser.add_argument_group(title)
        for name in shown:
            if name in command.positional:
                group.add_argument(name, help=docs[name].replace("%", "%%"))
            elif name in hints:
                default = getattr(defaults, name)
                about = _value_words(name, hints[name]) + ("" if default is None else f"; default: {default}")
                group.add_argument(f"--{name}", help=f"{docs[name]} ({about})".replace("%", "%%"))
            else:
                option = ["-h", "--help"] if name == "help" else [f"--{name}"]
                group.add_argument(*option, action="store" if name == "config" else "store_true", help=texts[name])
    return visible_lines(parser.format_help())


def _show(text: str) -> NoReturn:
    """Print a text and exit."""
    with naming_file(STANDARD_OUTPUT):
        print(text.removesuffix("\n"))
    sys.exit(0)


def _usage(config_class: type, command: CommandLine) -> str:
    hints = typing.get_type_hints(config_class)
    positional = (f"{name.upper()} ..." if hints[name] == list[str] else f"[{name.upper()}]" for name in command.positional)
    return " ".join(filter(None, ("%(prog)s", command.name, *positional, "[--setting VALUE ...]")))


def _config_help(command: CommandLine) -> str:
    """Return the help of `--config`, with the names of the configurations that come with tiejax."""
    names = named_configs.names(command.configurations) if command.configurations else []
    or_name = f", or the name of a configuration that comes with tiejax ({', '.join(names)})" if names else ""
    return f"YAML file with any of the settings below{or_name}; flags override it"


def field_docs(config_class: type) -> dict[str, str]:
    """Return the documentation of each field, from the docstrings of a class and its bases; the class overrides its bases."""
    docs: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        parsed = docstring_parser.parse(base.__doc__ or "")
        docs |= {param.arg_name: " ".join((param.description or "").split()) for param in parsed.params}
    return docs


def _seed_range(value: str, option: str) -> list[int] | None:
    """Return the seeds of "FIRST-LAST", or None for any other value; raises BadInput."""
    match = RANGE.fullmatch(value)
    if match is None:
        return None
    first, last = map(int, match.groups())
    if not first <= last < first + MOST_SEEDS:
        raise BadInput(f"{option}: expected FIRST-LAST with 1 to {MOST_SEEDS:,} seeds, got {cut(value)}")
    return list(range(first, last + 1))


def _read_file(file: str, config_class: type, command: CommandLine) -> dict[str, Any]:
    if fault := yaml_text.first_fault({"file": file}) if file else ("file", "expected a file"):
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
    values, as_text = (_renamed(config_class, each, values) for each in (values, as_text))
    names = [field.name for field in dataclasses.fields(config_class)]
    for name in values:
        if name not in names:
            raise BadInput(f"--config {file}: unknown field '{cut(name)}'{nearest(str(name), names)}")
    hints = typing.get_type_hints(config_class)
    values = {
        name: _fitted(value, as_text[name], name, hints[name], f"--config {file}: {name}", in_file=True)
        for name, value in values.items()
    }
    if fault := yaml_text.first_fault(values):
        raise BadInput(f"--config {file}: {fault[0]}: {fault[1]}")
    return values


def _renamed(config_class: type, values: Mapping[str, Any], originals: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file with fields of earlier versions under their present names, unless these are given as well.

    originals: the values as they were read, which decide what a field of an earlier version says.
    """
    renamed: Mapping[str, tuple[str, Mapping[Any, Any]]] = getattr(config_class, "RENAMED", {})
    former: Mapping[str, Container[Any]] = getattr(config_class, "REMOVED", {})  # name -> the values that are ignored
    removed = [name for name, ignored in former.items() if values.get(name) in ignored]
    kept = {name: value for name, value in values.items() if name not in renamed and name not in removed}
    for old, (new, meanings) in renamed.items():
        if old in originals:
            if not isinstance(originals[old], bool):
                kept[old] = values[old]  # reported as an unknown field
            else:
                kept.setdefault(new, meanings[originals[old]])
    return kept


class _Unfit(Exception):
    """Raised with a value that a field does not accept, or with the item of it that does not fit."""


def _fitted(value: Any, text: Any, name: str, kind: Any, where: str, in_file: bool = False) -> Any:
    """Return a value as a field holds it; raises BadInput, which begins with `where`. text, in_file: as of `_converted`."""
    if name == "seeds" and isinstance(value, str) and (seeds := _seed_range(value, where)):
        return seeds
    try:
        return _converted(value, text, kind, in_file)
    except _Unfit as unfit:
        (found,) = unfit.args
        got = f"'{cut(found)}'" if isinstance(found, str) else "null" if found is None else cut(found)
        raise BadInput(f"{where}: expected {_value_words(name, kind)}, got {got}") from None


def fits(value: Any, kind: Any) -> bool:
    """Return whether a JSON value has a type, as a type hint."""
    with contextlib.suppress(_Unfit):
        return bool(_converted(value, value, kind, in_file=True) == value)
    return False


def _converted(value: Any, text: Any, kind: Any, in_file: bool) -> Any:
    """Return a value as a type holds it, text as it was written: `out: 010` names a folder 010. Raises _Unfit.

    text: the same value with all scalars as text. in_file: whether an integer for a number stays an integer; those of files do,
    as it is recorded in run directories.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        unfit = []
        for one in inner:
            try:
                return _converted(value, text, one, in_file)
            except _Unfit as error:
                unfit.append(error)
        raise next((error for error in unfit if error.args[0] is not value), unfit[0])
    if origin is list and isinstance(value, list):
        return [_converted(one, written, inner[0], in_file) for one, written in zip(value, text, strict=True)]
    if origin is dict and isinstance(value, dict):
        # Both are in the order of the file, in which no key occurs twice, neither as a value nor as text.
        pairs = zip(value.items(), text.items(), strict=True)
        return {
            _converted(key, key_text, inner[0], in_file): _converted(one, written, inner[1], in_file)
            for (key, one), (key_text, written) in pairs
        }
    if value is not None and (text in inner if origin is typing.Literal else kind is str and isinstance(text, str)):
        return text
    if kind is float and type(value) in (int, float):
        with contextlib.suppress(OverflowError):
            number = float(value)
            return value if in_file else number
    if kind is Any or (kind in (int, bool, type(None)) and type(value) is kind):
        return value
    raise _Unfit(value)


def _is_text(kind: Any) -> bool:
    """Return whether a field takes text, or one of several words, and no number."""
    return str in (kinds := _kinds(kind)) and not {int, float, bool} & kinds


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
