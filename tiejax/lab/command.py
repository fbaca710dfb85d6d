"""The command `tiejax NAME`: everything that `experiments/` starts, wherever tiejax is installed."""

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from tiejax.lab.runs import launch
from tiejax.lab.settings.command_line import STATUS, BadInput, nearest, run_main


class Command(NamedTuple):
    """What a name starts. module: whose `STUDY` is run, or whose `main(argv)` is called. help: one line."""

    module: str
    help: str


COMMANDS = {
    "exor": Command(
        "tiejax.lab.studies.exor.settings", "tied against untied where tying must help or hurt, many seeds at once"
    ),
    "untying": Command("tiejax.lab.studies.untying.settings", "EXor, with ties that end in the middle of training"),
    "text-mlm": Command(
        "tiejax.lab.studies.text_mlm.settings", "tied against untied on text, with planted twins of common words"
    ),
    "layer-tying": Command(
        "tiejax.lab.studies.layer_tying.settings", "layers tied and untied by an agent while a model trains"
    ),
    "embedding-coupling": Command(
        "tiejax.lab.studies.embedding_coupling.settings", "input and output tables of different widths, fine-tuned and probed"
    ),
    "diagnose": Command("tiejax.lab.studies.diagnosis.settings", "should this checkpoint tie its embeddings?"),
    "check": Command("tiejax.lab.commands.check", "do checkpoints store what their configurations say of tying?"),
    "tie": Command("tiejax.lab.commands.tie", "write an untied checkpoint anew as a tied one, and say how far its logits move"),
    "untie": Command("tiejax.lab.commands.untie", "write a tied checkpoint anew as an untied one"),
    "factorise": Command(
        "tiejax.lab.commands.factorise", "tables as products of narrow factors, and what every rank keeps for its bytes"
    ),
    "compare": Command("tiejax.lab.studies.comparison.settings", "runs of one study beside each other"),
    "runs": Command("tiejax.lab.commands.runs", "the run directories under a folder, and what was found in them"),
    "bench": Command("experiments.bench.command", "how fast all of this is on this machine"),
}


def main() -> NoReturn:
    """Run what the first word names, and exit with its status."""
    sys.argv[0] = "tiejax"
    run_main(start)


def start(argv: Sequence[str]) -> int:
    """Run what the first word names; return the exit status. Raises BadInput where it names nothing."""
    name, rest = (argv[0].replace("_", "-"), argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print(overview())
        return 0
    if name == "--version":
        print(f"tiejax {importlib.metadata.version('tiejax')}")
        return 0
    if name not in COMMANDS:
        raise BadInput(f"{name}: is no command{nearest(name, list(COMMANDS))}; there are {', '.join(COMMANDS)}")
    sys.argv = [f"tiejax {name}", *rest]  # what a command calls itself
    module = importlib.import_module(COMMANDS[name].module)
    if hasattr(module, "STUDY"):
        return launch.main(module.STUDY, rest)
    status: int = module.main(rest)
    return status


def overview() -> str:
    """Return the help of all commands, a line each."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    head = ["usage: tiejax COMMAND ...", "", "The library and laboratory for weight tying in JAX.", ""]
    tail = [
        "",
        "`tiejax COMMAND --help` explains the settings of a command; `tiejax --version` says which tiejax this is.",
        STATUS,
    ]
    return "\n".join([*head, *lines, *tail])
