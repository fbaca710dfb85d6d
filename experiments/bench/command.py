"""The command `bench.py NAME`, which checks the settings before it imports and runs a benchmark."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.benchmarks import BENCHMARKS
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, nearest
from tiejax.lab.settings.study import function_of
from tiejax.system.visible import cut


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the first argument names; return the exit status. Raises BadInput."""
    name, rest = (argv[0], argv[1:]) if argv else ("", [])
    if name not in BENCHMARKS:
        if not {"-h", "--help"} & set(argv):
            got = f"got '{cut(name)}'{nearest(name, list(BENCHMARKS))}" if name else "got none"
            raise BadInput(f"expected a benchmark as the first argument: {', '.join(BENCHMARKS)}; {got}")
        name, rest = "exor", ["--help"]  # the help that lists the others
    benchmark = BENCHMARKS[name]
    settings, switches = command_line.parse(benchmark.settings, dataclasses.replace(benchmark.command, name=name), rest)
    settings.check()
    environment.check_flags()
    RunDirectory.probe(Path(settings.out))
    # Before jax is imported, as in the studies.
    if benchmark.device_a_core(settings):
        environment.one_device_a_core()
    function_of(benchmark.run)(settings, Console(switches["quiet"]))
    return 0
