"""The command `bench.py NAME`: settings checked first, then the benchmark is imported and run."""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.benchmarks import BENCHMARKS, Benchmark
from experiments.bench.settings import BenchSettings
from tiejax.lab.runs import environment, huge_pages
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names; return the exit status. Raises BadInput."""
    name, rest = (argv[0], argv[1:]) if argv else ("none", [])
    if name not in BENCHMARKS:
        if not {"-h", "--help"} & set(argv):
            raise BadInput(
                f"name a benchmark first: {', '.join(BENCHMARKS)}, as in `{command_line.program()} exor`; got {name}"
            )
        name, rest = "exor", ["--help"]  # which names the others
    benchmark = BENCHMARKS[name]
    settings, switches = command_line.parse(benchmark.settings, dataclasses.replace(benchmark.command, name=name), rest)
    settings.check()
    if benchmark.huge_pages(settings):
        huge_pages.restart()  # which every process of a comparison inherits
    environment.check_flags()
    _check_sizes(benchmark, settings)
    RunDirectory.probe(Path(settings.out))
    # Before jax is imported, as the studies do.
    if benchmark.device_a_core(settings):
        environment.one_device_a_core()
    importlib.import_module(benchmark.module).run(settings, Console(switches["quiet"]))
    return 0


def _check_sizes(benchmark: Benchmark, settings: BenchSettings) -> None:
    """Raise BadInput if what is measured needs more memory than there is; next to nothing is recorded."""
    options = [name for name in benchmark.sizes.OPTIONS if hasattr(settings, name)]
    for study in settings.largest:
        check_memory(dataclasses.replace(study, steps=1), benchmark.sizes.need, options)
