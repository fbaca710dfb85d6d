"""Shell completion of the command `tiejax`: a static script that lists commands, flags and choices."""

import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tiejax.lab.settings import named_configs
from tiejax.lab.settings.command_line import CommandLine

SHELLS = ("bash", "zsh")
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


class Words(NamedTuple):
    """Completions of a command. flags: all flags, as `--name`. values: flag -> its values, for flags with a fixed set."""

    flags: Sequence[str]
    values: Mapping[str, Sequence[str]]


def words(settings: type[Any], line: CommandLine) -> Words:
    """Return the flags of a command, and the values of those with a fixed set."""
    hints = {name: kind for name, kind in typing.get_type_hints(settings).items() if name not in line.positional}
    values = {f"--{name}": found for name, kind in hints.items() if (found := _choices(kind))}
    if line.configurations:
        values["--config"] = named_configs.names(line.configurations)
    flags = [f"--{name}" for name in ("config", "help", "print_config", *line.switches, *hints)]
    return Words(flags, values)


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
    cases = []
    for name, found in commands.items():
        cases += [_case(f'"{name} {flag}"', values) for flag, values in found.values.items()]
        # Otherwise flags; words without a dash are completed as files.
        cases += [_case(f'"{name} "*', found.flags, only_dashes=True)] if found.flags else []
    names = shlex.quote(" ".join([*commands, "--help", "--version", "--print-completion"]))
    text = TEMPLATE % {"commands": names, "cases": "\n".join(cases)}
    return text if shell == "bash" else ZSH + text


def _case(pattern: str, found: Sequence[str], only_dashes: bool = False) -> str:
    assign = f"words={shlex.quote(' '.join(found))}"
    if only_dashes:
        assign = f"case $word in -*) {assign} ;; esac"
    return f"            {pattern}) {assign} ;;"
