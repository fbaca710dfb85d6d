"""The command `bench.py NAME`, which checks the settings before it imports and runs a benchmark."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.benchmarks import BENCHMARKS, Benchmark
from experiments.bench.settings import BenchSettings
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, nearest
from tiejax.lab.settings.sizes import check_memory
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
    _check_sizes(benchmark, settings)
    RunDirectory.probe(Path(settings.out))
    # Before jax is imported, as in the studies.
    if benchmark.device_a_core(settings):
        environment.one_device_a_core()
    function_of(benchmark.run)(settings, Console(switches["quiet"]))
    return 0


def _check_sizes(benchmark: Benchmark, settings: BenchSettings) -> None:
    """Raise BadInput if a measured study needs more memory than the machine has. Only the records of one step are counted."""
    options = [name for name in benchmark.sizes.OPTIONS if hasattr(settings, name)]
    for study in settings.largest_studies:
        check_memory(dataclasses.replace(study, steps=1), benchmark.sizes.need, options)
