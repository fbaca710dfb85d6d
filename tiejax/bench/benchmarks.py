"""The benchmarks by name, each a command."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tiejax.bench.settings import (
    DecoderBench,
    DeviceBench,
    EncoderBench,
    ExorBench,
    LayersBench,
    TargetsBench,
    TextBench,
    TransferBench,
)
from tiejax.runs.environment import cores
from tiejax.settings.command_line import CommandLine
from tiejax.studies.embedding_coupling import sizes as coupling_sizes
from tiejax.studies.exor import sizes as exor_sizes
from tiejax.studies.layer_tying import sizes as layer_sizes
from tiejax.studies.text_mlm import sizes as text_sizes


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark as a command.

    module: has `run(settings, console)`, and is imported once the settings are found good. sizes: what the study that is
    measured needs of memory, as of `Study`. device_a_core: whether every core
    is to be a device, where the environment says nothing.
    """

    settings: type[Any]
    command: CommandLine
    module: str
    sizes: ModuleType
    device_a_core: Callable[[Any], bool]


SWITCHES = {"quiet": "print nothing but the path of the results"}
BENCHMARKS = {
    "exor": Benchmark(
        ExorBench,
        CommandLine(
            description="Measure training throughput of `exor` (the ensemble on its engines and, where torch is installed, the "
            "same protocol as a plain torch loop); `PROGRAM text --help`, and so on for layers, decoder, "
            "encoder, transfer, device and targets, are about the others.",
            example="Example: PROGRAM exor --seeds [8,32]",
            switches=SWITCHES,
        ),
        module="tiejax.bench.exor",
        sizes=exor_sizes,
        device_a_core=lambda settings: True,
    ),
    "text": Benchmark(
        TextBench,
        CommandLine(
            description="Measure how many real (unpadded) tokens a second the text study trains on: predicting everywhere with "
            "padded rows, as published, at the masked tokens only, and at these in packed rows; and the last beside torch.",
            example="Example: PROGRAM text --corpus novels/ --tokenizer vocab.txt",
            switches=SWITCHES,
        ),
        module="tiejax.bench.text",
        sizes=text_sizes,
        # As the study does, where its seeds can be dealt out evenly.
        device_a_core=lambda settings: settings.seeds % cores() == 0,
    ),
    "layers": Benchmark(
        LayersBench,
        CommandLine(
            description="Measure the time of a training step of the layer-tying study, and its bytes, for layers untied in a "
            "scan without owners, untied under owners, and tied, in compact and in full storage; and the time of a change of "
            "ties.",
            example="Example: PROGRAM layers --layers [12] --width 256",
            switches=SWITCHES,
        ),
        module="tiejax.bench.layers",
        sizes=layer_sizes,
        device_a_core=lambda settings: False,
    ),
    "decoder": Benchmark(
        DecoderBench,
        CommandLine(
            description="Measure a training step of a causal language model, GPT-2 or BERT's block, untied and with tied "
            "layers, on all cores, beside the transformers library's model in a plain torch loop, in turns.",
            example="Example: PROGRAM decoder --layers [12] --architecture bert",
            switches=SWITCHES,
        ),
        module="tiejax.bench.decoder",
        sizes=layer_sizes,
        # The processes that it measures have devices of their own.
        device_a_core=lambda settings: False,
    ),
    "encoder": Benchmark(
        EncoderBench,
        CommandLine(
            description="Measure how many real (unpadded) tokens a second the coupled base encoder is pre-trained on, beside "
            "the transformers library's trainer with its own padding, and a plain torch loop on packed rows, all in turn.",
            example="Example: PROGRAM encoder --corpus novels/ --huge_pages true",
            switches=SWITCHES,
        ),
        module="tiejax.bench.encoder",
        sizes=coupling_sizes,
        # The processes that it measures have devices of their own.
        device_a_core=lambda settings: False,
    ),
    "transfer": Benchmark(
        TransferBench,
        CommandLine(
            description="Measure how many steps of single members a second fine-tuning makes as an ensemble of seeds, starts "
            "and learning rates, beside the same members one after the other.",
            example="Example: PROGRAM transfer --seeds 10",
            switches=SWITCHES,
        ),
        module="tiejax.bench.transfer",
        sizes=coupling_sizes,
        # As those of the encoder.
        device_a_core=lambda settings: False,
    ),
    "device": Benchmark(
        DeviceBench,
        CommandLine(
            description="Measure everything worth knowing of one machine, with a GPU, a TPU or neither, in about ten minutes: "
            "rates of every study, and whether its losses, and the number of EXor's seeds that solve the task, are its CPU's.",
            example="Example: PROGRAM device --out my_gpu",
            switches=SWITCHES,
        ),
        module="tiejax.bench.device",
        sizes=exor_sizes,
        # The processes that it measures in have devices of their own.
        device_a_core=lambda settings: False,
    ),
    "targets": Benchmark(
        TargetsBench,
        CommandLine(
            description="Compile a training step of every study for GPUs or TPUs that are not here, and say how many kernels "
            "it is, how many bytes a device needs, and in what precision products are formed. Needs the target's compiler: "
            "pip install -e '.[cuda]', or '.[tpu]'.",
            example="Example: JAX_PLATFORMS=cpu PROGRAM targets --programs ['exor, fast']",
            switches=SWITCHES,
        ),
        module="tiejax.bench.targets",
        sizes=exor_sizes,
        device_a_core=lambda settings: False,
    ),
}
