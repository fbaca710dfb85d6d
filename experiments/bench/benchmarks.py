"""The benchmarks by name, each a command."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

from experiments.bench.settings import (
    CheckpointsBench,
    DecoderBench,
    DeviceBench,
    EncoderBench,
    ExorBench,
    LayersBench,
    TargetsBench,
    TextBench,
    TransferBench,
)
from tiejax.lab.runs.environment import cores
from tiejax.lab.settings.command_line import CommandLine
from tiejax.lab.studies.embedding_coupling import sizes as coupling_sizes
from tiejax.lab.studies.exor import sizes as exor_sizes
from tiejax.lab.studies.layer_tying import sizes as layer_sizes
from tiejax.lab.studies.text_mlm import sizes as text_sizes

SWITCHES = {"quiet": "print nothing but the path of the results"}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark as a command.

    module: has `run(settings, console)`, and is imported once the settings are found good. sizes: what the study that is
    measured needs of memory, as of `Study`. description, example: as of `CommandLine`. device_a_core: whether every core is to
    be a device, where the environment says nothing (default: no, as where processes that it measures have their own).
    huge_pages: whether it asks for huge pages, which processes that it measures inherit.
    """

    settings: type[Any]
    module: str
    sizes: ModuleType
    description: str
    example: str
    device_a_core: Callable[[Any], bool] = lambda settings: False
    huge_pages: Callable[[Any], bool] = lambda settings: False

    @property
    def command(self) -> CommandLine:
        """How it is called."""
        return CommandLine(self.description, f"Example: {self.example}", SWITCHES)


BENCHMARKS = {
    "exor": Benchmark(
        ExorBench,
        "experiments.bench.exor",
        exor_sizes,
        "Measure training throughput of `exor` (the ensemble on its engines and, where torch is installed, the "
        "same protocol as a plain torch loop); `PROGRAM text --help`, and so on for layers, decoder, "
        "encoder, transfer, device, targets and checkpoints, are about the others.",
        "PROGRAM exor --seeds [8,32]",
        device_a_core=lambda settings: True,
    ),
    "text": Benchmark(
        TextBench,
        "experiments.bench.text",
        text_sizes,
        "Measure how many real (unpadded) tokens a second the text study trains on: predicting everywhere with "
        "padded rows, as published, at the masked tokens only, and at these in packed rows; and the last beside torch.",
        "PROGRAM text --corpus novels/ --tokenizer vocab.txt",
        # As the study does, where its seeds can be dealt out evenly.
        device_a_core=lambda settings: settings.seeds % cores() == 0,
        huge_pages=lambda settings: settings.huge_pages,
    ),
    "layers": Benchmark(
        LayersBench,
        "experiments.bench.layers",
        layer_sizes,
        "Measure the time of a training step of the layer-tying study, and its bytes, for layers untied in a "
        "scan without owners, untied under owners, and tied, in compact and in full storage; and the time of a change of "
        "ties.",
        "PROGRAM layers --layers [12] --width 256",
    ),
    "decoder": Benchmark(
        DecoderBench,
        "experiments.bench.decoder",
        layer_sizes,
        "Measure a training step of a causal language model, GPT-2 or BERT's block, untied and with tied "
        "layers, on all cores, beside the transformers library's model in a plain torch loop, in turns.",
        "PROGRAM decoder --layers [12] --architecture bert",
        huge_pages=lambda settings: settings.huge_pages,
    ),
    "encoder": Benchmark(
        EncoderBench,
        "experiments.bench.encoder",
        coupling_sizes,
        "Measure how many real (unpadded) tokens a second the coupled base encoder is pre-trained on, beside "
        "the transformers library's trainer with its own padding, and a plain torch loop on packed rows, all in turn.",
        "PROGRAM encoder --corpus novels/ --seconds 2",
        huge_pages=lambda settings: settings.huge_pages,
    ),
    "transfer": Benchmark(
        TransferBench,
        "experiments.bench.transfer",
        coupling_sizes,
        "Measure how many steps of single members a second fine-tuning makes as an ensemble of seeds, starts "
        "and learning rates, beside the same members one after the other.",
        "PROGRAM transfer --seeds 10",
    ),
    "device": Benchmark(
        DeviceBench,
        "experiments.bench.device",
        exor_sizes,
        "Measure everything worth knowing of one machine, with a GPU, a TPU or neither, in about ten minutes: "
        "rates of every study, and whether its losses, and the number of EXor's seeds that solve the task, are its CPU's.",
        "PROGRAM device --out my_gpu",
    ),
    "targets": Benchmark(
        TargetsBench,
        "experiments.bench.targets",
        exor_sizes,
        "Compile a training step of every study for GPUs or TPUs that are not here, and say how many kernels "
        "it is, how many bytes a device needs, and in what precision products are formed. Needs the target's compiler: "
        "pip install -e '.[cuda]', or '.[tpu]'.",
        "JAX_PLATFORMS=cpu PROGRAM targets --programs ['exor, fast']",
    ),
    "checkpoints": Benchmark(
        CheckpointsBench,
        "experiments.bench.checkpoints",
        exor_sizes,
        "Measure seconds and memory of the commands on checkpoints: check of many small folders, and factorise, tie and "
        "diagnose of tables drawn at random, two of which take 4 GB on the disk unless they are asked for smaller.",
        "PROGRAM checkpoints --commands [check]",
    ),
}
