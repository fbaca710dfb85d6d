"""Shell completion of the command `tiejax`: a static script that lists commands, flags and choices."""

import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tiejax.lab.settings import named_configs
from tiejax.lab.settings.command_line import CommandLine, option_names

SHELLS = ("bash", "zsh", "fish")
OPTIONS = ("--help", "--version", "--print-completion")  # of `tiejax` without a command
TEMPLATE = """\
_tiejax() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]//_/-} words=
    if [ "$before" = "=" ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    if [ "$word" = "=" ]; then before=${COMP_WORDS[COMP_CWORD-1]} word=; fi
    COMPREPLY=()
    if [ "$COMP_CWORD" -le 1 ]; then
        words=%(commands)s
    else
        case "$command $before" in
%(cases)s
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _tiejax tiejax
"""
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
# `__tiejax_command exor` succeeds if the command line begins with this command, without arguments if it has none yet.
FISH = """\
function __tiejax_command
    set -l words (commandline -opc) ''
    test (string replace -a _ - -- "$words[2]") = "$argv"
end
"""


class Words(NamedTuple):
    """Completions of a command.

    flags: all flags, as `--name`. values: flag -> its values, for flags with a fixed set. alone: flags without a value.
    """

    flags: Sequence[str]
    values: Mapping[str, Sequence[str]]
    alone: Sequence[str] = ()


def words(settings: type[Any], line: CommandLine) -> Words:
    """Return the flags of a command, and the values of those with a fixed set."""
    hints = {name: kind for name, kind in typing.get_type_hints(settings).items() if name not in line.positional}
    values = {f"--{name}": found for name, kind in hints.items() if (found := _choices(kind))}
    if line.configurations:
        values["--config"] = named_configs.names(line.configurations)
    flags = [f"--{name}" for name in option_names(settings, line)]
    return Words(flags, values, [flag for flag in flags if flag[2:] not in {"config", *hints}])


def _choices(kind: Any) -> list[str]:
    """Return the values of a Literal or a bool, also as part of a union; nothing for any other type."""
    if kind is bool:
        return ["true", "false"]
    if typing.get_origin(kind) is typing.Literal:
        return [str(value) for value in typing.get_args(kind)]
    if typing.get_origin(kind) in (list, dict):
        return []
    return [choice for part in typing.get_args(kind) for choice in _choices(part)]


def script(shell: str, commands: Mapping[str, Words]) -> str:
    """Return the script for a shell of `SHELLS`. Values that are not listed are completed as files."""
    if shell == "fish":
        return FISH + "".join(f"complete -c tiejax {line}\n" for line in _lines_of_fish(commands))
    cases = []
    for name, found in commands.items():
        cases += [_case(f'"{name} {flag}"', values) for flag, values in found.values.items()]
        # Otherwise flags; words without a dash are completed as files.
        cases += [_case(f'"{name} "*', found.flags, only_dashes=True)] if found.flags else []
    cases.append(_case('"help "*', [*commands]))
    names = shlex.quote(" ".join([*commands, "help", *OPTIONS]))
    text = TEMPLATE % {"commands": names, "cases": "\n".join(cases)}
    return text if shell == "bash" else ZSH + text


def _lines_of_fish(commands: Mapping[str, Words]) -> list[str]:
    """Return the arguments of fish's `complete`, a line for each flag. -x: with a listed value. -r: with any value or file."""
    lines = [f"-n '__tiejax_command' -f -a {shlex.quote(' '.join([*commands, 'help']))}"]
    lines += [f"-n '__tiejax_command' -f -l {option[2:]}" for option in OPTIONS]
    lines.append(f"-n '__tiejax_command {OPTIONS[-1]}' -f -a '{' '.join(SHELLS)}'")
    lines.append(f"-n '__tiejax_command help' -f -a {shlex.quote(' '.join(commands))}")
    for name, found in commands.items():
        for flag in found.flags:
            values = f" -a {shlex.quote(' '.join(found.values[flag]))}" if flag in found.values else ""
            kind = "" if flag in found.alone else " -x" if values and flag != "--config" else " -r"
            lines.append(f"-n '__tiejax_command {name}' -l {flag[2:]}{kind}{values}")
    return lines


def _case(pattern: str, found: Sequence[str], only_dashes: bool = False) -> str:
    assign = f"words={shlex.quote(' '.join(found))}"
    if only_dashes:
        assign = f"case $word in -*) {assign} ;; esac"
    return f"            {pattern}) {assign} ;;"
