"""The command `tiejax NAME`, which starts every study and tool of the package."""

import functools
import importlib
import importlib.metadata
import shutil
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from tiejax.lab.commands.studies import STUDIES, load
from tiejax.lab.runs import entry
from tiejax.lab.settings import completion
from tiejax.lab.settings.command_line import HELP_ALL, STATUS, BadInput, nearest, run_main
from tiejax.lab.settings.study import Study
from tiejax.system.visible import cut

# Tools by name; each is a module of `tiejax.lab.commands`.
TOOLS = {
    "check": "check that checkpoints store what their configurations say about tying",
    "tie": "write a tied copy of an untied checkpoint, and report how much its logits change",
    "untie": "write an untied copy of a tied checkpoint",
    "factorise": "write embedding tables as products of narrow factors, and list what each rank saves",
    "share": "convert a trained model of layer-tying to shared layers with low-rank adaptations",
    "runs": "list the run directories under a folder, with their results",
    "join": "join finished runs of the same settings with different seeds to one run",
}
COMMANDS = {name: text for name, (_, text) in STUDIES.items()} | TOOLS  # with their help of one line


def loaded(name: str) -> Study | ModuleType:
    """Import a command: a study, or the module of a tool. Loads no jax."""
    return load(STUDIES[name][0]) if name in STUDIES else importlib.import_module(f"tiejax.lab.commands.{name}")


def main() -> NoReturn:
    """Run the command that the first argument names, and exit with its status."""
    sys.argv[0] = "tiejax"
    run_main(start)


def start(argv: Sequence[str]) -> int:
    """Run the command that the first argument names; return the exit status. Raises BadInput for an unknown command."""
    name, rest = (argv[0].replace("_", "-"), argv[1:]) if argv else ("help", [])
    if name == "help" and rest:  # of a command
        return start([*rest, "--help"])
    if name in ("help", "-h", "--help", "--help-all"):
        print(overview(shutil.get_terminal_size().columns))
        return 0
    if name in ("-V", "--version"):
        print(f"tiejax {importlib.metadata.version('tiejax')}")
        return 0
    if name == "--print-completion":
        print(completion_script(rest), end="")
        return 0
    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or f"; expected one of {', '.join(COMMANDS)}"
        raise BadInput(f"unknown command '{cut(argv[0])}'{hint}")
    sys.argv = [f"tiejax {name}", *rest]  # the name of the program in messages
    command = loaded(name)
    return entry.main(command, rest) if isinstance(command, Study) else int(command.main(rest))


def overview(columns: int) -> str:
    """Return the help of `tiejax`, with a paragraph for each command."""
    fill = functools.partial(textwrap.fill, width=columns, break_long_words=False, break_on_hyphens=False)
    width = max(map(len, COMMANDS))
    commands = [
        fill(text, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4))
        for name, text in COMMANDS.items()
    ]
    about = [
        "`tiejax help COMMAND` or `tiejax COMMAND --help` explains the most used settings of a command, "
        f"`tiejax COMMAND --{HELP_ALL}` all of them; `tiejax --version` (or -V) prints the version.",
        "`tiejax --print-completion SHELL` prints a script for bash, zsh or fish that completes commands and flags: "
        '`eval "$(tiejax --print-completion bash)"` in ~/.bashrc, the same with zsh in ~/.zshrc, or '
        "`tiejax --print-completion fish | source` in ~/.config/fish/config.fish.",
        STATUS,
    ]
    head = ["usage: tiejax COMMAND ...", "A library and laboratory for weight tying in JAX."]
    return "\n\n".join([*head, "\n".join(commands), *map(fill, about)])


def completion_script(argv: Sequence[str]) -> str:
    """Return the script with which a shell completes commands and their flags. Raises BadInput for an unknown shell."""
    if len(argv) != 1 or argv[0] not in completion.SHELLS:
        *others, last = completion.SHELLS
        raise BadInput(f"--print-completion: expected {', '.join(others)} or {last}, got '{cut(' '.join(argv))}'")

    def flags(command: Study | ModuleType) -> completion.Flags:
        if isinstance(command, Study):
            return completion.flags(command.settings, command.command)
        return completion.flags(command.Settings, command.COMMAND)

    return completion.script(argv[0], {name: flags(loaded(name)) for name in COMMANDS})
