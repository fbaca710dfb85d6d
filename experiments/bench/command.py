"""The command `bench.py NAME`, which checks the settings before it imports and runs a benchmark. Loads no jax."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import docstring_parser

from experiments.bench import settings as of
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput, CommandLine, nearest
from tiejax.lab.settings.study import Entry, function_of
from tiejax.system.processors import cores
from tiejax.system.visible import cut


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark as a command.

    settings: dataclass of its settings, which loads no jax. run: measures, prints and writes the results, `(settings,
    console)`; its module, which needs jax, is imported when it is called, after the settings were checked. device_a_core:
    whether every CPU core is a device of this process, unless the environment decides (False for benchmarks that measure in
    processes with their own devices).
    """

    settings: type[of.BenchSettings]
    run: Entry
    device_a_core: Callable[[Any], bool] = lambda settings: False

    @property
    def command(self) -> CommandLine:
        """The command line, without the benchmark's name."""
        description = docstring_parser.parse(self.settings.__doc__ or "").long_description or ""
        switches = {"quiet": "print only the path of the results"}
        return CommandLine(" ".join(description.split()), f"Example: {self.settings.EXAMPLE}.", switches)


BENCHMARKS = {
    "exor": Benchmark(of.ExorBench, "experiments.bench.exor:run", lambda settings: True),
    # As the study does, if its seeds can be distributed evenly.
    "text": Benchmark(of.TextBench, "experiments.bench.text:run", lambda settings: settings.seeds % cores() == 0),
    "layers": Benchmark(of.LayersBench, "experiments.bench.layers:run"),
    "decoder": Benchmark(of.DecoderBench, "experiments.bench.decoder:run"),
    "causal": Benchmark(of.CausalBench, "experiments.bench.causal:run", lambda settings: True),  # for the rate of products
    "encoder": Benchmark(of.EncoderBench, "experiments.bench.encoder:run"),
    "transfer": Benchmark(of.TransferBench, "experiments.bench.transfer:run"),
    "device": Benchmark(of.DeviceBench, "experiments.bench.device:run"),
    "targets": Benchmark(of.TargetsBench, "experiments.bench.targets:run"),
    "checkpoints": Benchmark(of.CheckpointsBench, "experiments.bench.checkpoints:run"),
    "statistics": Benchmark(of.StatisticsBench, "experiments.bench.statistics:run"),
}


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
