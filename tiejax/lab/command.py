"""The command `tiejax NAME`, which starts every study and tool of the package."""

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from tiejax.lab.commands.studies import load
from tiejax.lab.runs import launch
from tiejax.lab.settings import completion
from tiejax.lab.settings.command_line import STATUS, BadInput, CommandLine, nearest, run_main
from tiejax.lab.settings.study import Study
from tiejax.system.visible import cut


class Tool(NamedTuple):
    """A command that is not a study. main: `argv` -> exit status. settings, line: its flags, if it has one set of them."""

    main: Callable[[Sequence[str]], int]
    settings: type | None = None
    line: CommandLine | None = None


class Command(NamedTuple):
    """A command by name. help: one line. load: imports it; no command loads jax before it runs."""

    help: str
    load: Callable[[], Study | Tool]


def _check() -> Tool:
    from tiejax.lab.commands import check

    return Tool(check.main, check.Settings, check.COMMAND)


def _tie() -> Tool:
    from tiejax.lab.commands import tie

    return Tool(tie.main, tie.Settings, tie.COMMAND)


def _untie() -> Tool:
    from tiejax.lab.commands import untie

    return Tool(untie.main, untie.Settings, untie.COMMAND)


def _factorise() -> Tool:
    from tiejax.lab.commands import factorise

    return Tool(factorise.main, factorise.Settings, factorise.COMMAND)


def _share() -> Tool:
    from tiejax.lab.commands import share

    return Tool(share.main, share.Settings, share.COMMAND)


def _runs() -> Tool:
    from tiejax.lab.commands import runs

    return Tool(runs.main, runs.Settings, runs.COMMAND)


# The studies by their names in commands: their names in run directories, and what they do.
STUDIES = {
    "exor": ("exor", "compare tied with untied models on a synthetic task where tying must help or hurt"),
    "untying": ("untying", "train models that are tied first and untied later on the task of exor"),
    "text-mlm": ("text_mlm", "compare tied with untied models on text with planted synonyms of common words"),
    "layer-tying": ("layer_tying", "let an agent tie and untie the layers of a model while it trains"),
    "embedding-coupling": ("embedding_coupling", "compare encoders with input and output embeddings of different widths"),
    "causal-untying": ("causal_untying", "train causal language models that are tied first and untied later"),
    "diagnose": ("diagnosis", "measure how similar the input and output embeddings of a checkpoint are"),
    "theory": ("theory", "minimise the loss of trained models of exor without weight decay, to check a theorem"),
    "compare": ("compare", "compare finished runs of one study (exor, untying, ...)"),
}
TOOLS = {
    "check": Command("check that checkpoints store what their configurations say about tying", _check),
    "tie": Command("write a tied copy of an untied checkpoint, and report how much its logits change", _tie),
    "untie": Command("write an untied copy of a tied checkpoint", _untie),
    "factorise": Command("write embedding tables as products of narrow factors, and list what each rank saves", _factorise),
    "share": Command("convert a trained model of layer-tying to shared layers with low-rank adaptations", _share),
    "runs": Command("list the run directories under a folder, with their results", _runs),
}
COMMANDS = {name: Command(text, functools.partial(load, study)) for name, (study, text) in STUDIES.items()} | TOOLS


def main() -> NoReturn:
    """Run the command that the first argument names, and exit with its status."""
    sys.argv[0] = "tiejax"
    run_main(start)


def start(argv: Sequence[str]) -> int:
    """Run the command that the first argument names; return the exit status. Raises BadInput for an unknown command."""
    name, rest = (argv[0].replace("_", "-"), argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print(overview())
        return 0
    if name == "--version":
        print(f"tiejax {importlib.metadata.version('tiejax')}")
        return 0
    if name == "--print-completion":
        print(completion_script(rest), end="")
        return 0
    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or f"; expected one of {', '.join(COMMANDS)}"
        raise BadInput(f"unknown command '{cut(argv[0])}'{hint}")
    sys.argv = [f"tiejax {name}", *rest]  # the name of the program in messages
    command = COMMANDS[name].load()
    return launch.main(command, rest) if isinstance(command, Study) else command.main(rest)


def overview() -> str:
    """Return the help of `tiejax`, with one line for each command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    head = ["usage: tiejax COMMAND ...", "", "A library and laboratory for weight tying in JAX.", ""]
    tail = [
        "",
        "`tiejax COMMAND --help` explains the settings of a command; `tiejax --version` prints the version.",
        '`eval "$(tiejax --print-completion bash)"` in ~/.bashrc (or zsh, in ~/.zshrc) completes commands and flags.',
        STATUS,
    ]
    return "\n".join([*head, *lines, *tail])


def completion_script(argv: Sequence[str]) -> str:
    """Return the script with which a shell completes commands and their flags. Raises BadInput for an unknown shell."""
    if len(argv) != 1 or argv[0] not in completion.SHELLS:
        raise BadInput(f"--print-completion: expected {' or '.join(completion.SHELLS)}, got '{cut(' '.join(argv))}'")
    return completion.script(argv[0], {name: _words(name) for name in COMMANDS})


def _words(name: str) -> completion.Words:
    """Return the words that complete a command."""
    command = COMMANDS[name].load()
    if isinstance(command, Study):
        return completion.words(command.settings, command.command)
    if command.settings is None or command.line is None:
        return completion.Words([], {})
    return completion.words(command.settings, command.line)
