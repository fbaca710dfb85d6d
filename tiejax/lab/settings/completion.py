"""Shell completion of the command `tiejax`: a static script that lists commands, flags and choices."""

import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


# Flag -> its values if there is a fixed set of them, [] if any value or file may follow, None if it is given alone.
Flags = Mapping[str, Sequence[str] | None]


def flags(settings: type[Any], line: CommandLine) -> Flags:
    """Return the flags of a command."""
    hints = {name: kind for name, kind in typing.get_type_hints(settings).items() if name not in line.positional}
    values = {name: _choices(kind) for name, kind in hints.items()}
    values["config"] = named_configs.names(line.configurations) if line.configurations else []
    return {f"--{name}": values.get(name) for name in option_names(settings, line)}


def _choices(kind: Any) -> list[str]:
    """Return the values of a Literal or a bool, also as part of a union; nothing for any other type."""
    if kind is bool:
        return ["true", "false"]
    if typing.get_origin(kind) is typing.Literal:
        return [str(value) for value in typing.get_args(kind)]
    if typing.get_origin(kind) in (list, dict):
        return []
    return [choice for part in typing.get_args(kind) for choice in _choices(part)]


def script(shell: str, commands: Mapping[str, Flags]) -> str:
    """Return the script for a shell of `SHELLS`. Values that are not listed are completed as files."""
    if shell == "fish":
        return FISH + "".join(f"complete -c tiejax {line}\n" for line in _lines_of_fish(commands))
    cases = []
    for name, found in commands.items():
        cases += [f'"{name} {flag}") words={_quoted(values)} ;;' for flag, values in found.items() if values]
        # Otherwise flags; words without a dash are completed as files.
        cases.append(f'"{name} "*) case $word in -*) words={_quoted(found)} ;; esac ;;')
    cases.append(f'"help "*) words={_quoted(commands)} ;;')
    indented = "\n".join(f"            {case}" for case in cases)
    text = TEMPLATE % {"commands": _quoted([*commands, "help", *OPTIONS]), "cases": indented}
    return text if shell == "bash" else ZSH + text


def _lines_of_fish(commands: Mapping[str, Flags]) -> list[str]:
    """Return the arguments of fish's `complete`, a line for each flag. -x: with a listed value. -r: with any value or file."""
    lines = [f"-n '__tiejax_command' -f -a {_quoted([*commands, 'help'])}"]
    lines += [f"-n '__tiejax_command' -f -l {option[2:]}" for option in OPTIONS]
    lines.append(f"-n '__tiejax_command {OPTIONS[-1]}' -f -a {_quoted(SHELLS)}")
    lines.append(f"-n '__tiejax_command help' -f -a {_quoted(commands)}")
    for name, found in commands.items():
        for flag, values in found.items():
            listed = f" -a {_quoted(values)}" if values else ""
            kind = "" if values is None else " -x" if values and flag != "--config" else " -r"
            lines.append(f"-n '__tiejax_command {name}' -l {flag[2:]}{kind}{listed}")
    return lines


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))
