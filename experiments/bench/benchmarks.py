"""The benchmarks by name: settings, help and the function that runs each. Loads no jax."""

import dataclasses
from collections.abc import Callable
from typing import Any

from experiments.bench.settings import (
    CausalBench,
    CheckpointsBench,
    DecoderBench,
    DeviceBench,
    EncoderBench,
    ExorBench,
    LayersBench,
    StatisticsBench,
    TargetsBench,
    TextBench,
    TransferBench,
)
from tiejax.lab.settings.command_line import CommandLine
from tiejax.lab.settings.study import Entry, Sizes
from tiejax.lab.studies.causal_untying import sizes as causal_sizes
from tiejax.lab.studies.embedding_coupling import sizes as coupling_sizes
from tiejax.lab.studies.exor import sizes as exor_sizes
from tiejax.lab.studies.layer_tying import sizes as layer_sizes
from tiejax.lab.studies.text_mlm import sizes as text_sizes
from tiejax.system.processors import cores

SWITCHES = {"quiet": "print only the path of the results"}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark as a command.

    settings: dataclass of its settings, which loads no jax. run: measures, prints and writes the results, `(settings,
    console)`; its module, which needs jax, is imported when it is called, after the settings were checked. sizes: memory that
    the measured study needs, as in `Study`. description, example: as in `CommandLine`. device_a_core: whether every CPU core
    is a device of this process, unless the environment decides (False for benchmarks that measure in processes with their own
    devices).
    """

    settings: type[Any]
    run: Entry
    sizes: Sizes
    description: str
    example: str
    device_a_core: Callable[[Any], bool] = lambda settings: False

    @property
    def command(self) -> CommandLine:
        """The command line, without the benchmark's name."""
        return CommandLine(self.description, f"Example: {self.example}.", SWITCHES)


BENCHMARKS = {
    "exor": Benchmark(
        ExorBench,
        "experiments.bench.exor:run",
        exor_sizes,
        "Measure the training throughput of EXor: the ensemble on each of its engines and, if torch is installed, the same "
        "protocol as a plain torch loop. The other benchmarks are text, layers, decoder, causal, encoder, transfer, device, "
        "targets, checkpoints and statistics; `PROGRAM text --help` explains the settings of text.",
        "PROGRAM exor --seeds [8,32]",
        device_a_core=lambda settings: True,
    ),
    "text": Benchmark(
        TextBench,
        "experiments.bench.text:run",
        text_sizes,
        "Measure real (unpadded) tokens per second in training of the text study: with predictions at every position of padded "
        "rows, as published; at the masked tokens only; and at the masked tokens of packed rows. The packed form is also "
        "compared with torch, if it is installed.",
        "PROGRAM text --corpus novels/ --tokenizer vocab.txt",
        # As the study does, if its seeds can be distributed evenly.
        device_a_core=lambda settings: settings.seeds % cores() == 0,
    ),
    "layers": Benchmark(
        LayersBench,
        "experiments.bench.layers:run",
        layer_sizes,
        "Measure time and memory of a training step of the layer-tying study for four forms: untied, as a plain scan over the "
        "layers; untied, with owners (the layer whose weights each layer uses); tied, with only the distinct layers stored; "
        "and tied, with all layers stored. Then measure the time that a change of ties takes.",
        "PROGRAM layers --layers [12] --width 256",
    ),
    "decoder": Benchmark(
        DecoderBench,
        "experiments.bench.decoder:run",
        layer_sizes,
        "Measure a training step of a causal language model (GPT-2, or BERT with a causal mask), untied and with tied layers, "
        "on all cores, and compare it with the transformers library's model in a plain torch loop. The two sides take turns.",
        "PROGRAM decoder --layers [12] --architecture bert",
    ),
    "causal": Benchmark(
        CausalBench,
        "experiments.bench.causal:run",
        causal_sizes,
        "Measure tokens per second of the causal language models that are tied and untied, one model on each core, and compare "
        "them with the transformers library's GPT-2 in a plain torch loop, one on all cores and one on each core. The sides "
        "take turns.",
        "PROGRAM causal --layers 2 --width 64",
        device_a_core=lambda settings: True,  # for the rate of products
    ),
    "encoder": Benchmark(
        EncoderBench,
        "experiments.bench.encoder:run",
        coupling_sizes,
        "Measure real (unpadded) tokens per second in pre-training of the coupled base encoder, and compare them with the "
        "transformers Trainer, which pads, and with a plain torch loop on packed rows. All sides take turns.",
        "PROGRAM encoder --corpus novels/ --seconds 2",
    ),
    "transfer": Benchmark(
        TransferBench,
        "experiments.bench.transfer:run",
        coupling_sizes,
        "Measure member-steps per second in fine-tuning: an ensemble of seeds, initial encoders (pre-trained or random) and "
        "learning rates, compared with the same members one after the other.",
        "PROGRAM transfer --seeds 10",
    ),
    "device": Benchmark(
        DeviceBench,
        "experiments.bench.device:run",
        exor_sizes,
        "Measure this machine, with or without a GPU or TPU, in more than ten minutes: training rates of five parts of "
        "the studies, and whether losses, and the number of EXor's seeds that solve the task, agree with those of its CPU.",
        "PROGRAM device --out my_gpu",
    ),
    "targets": Benchmark(
        TargetsBench,
        "experiments.bench.targets:run",
        exor_sizes,
        "Compile a training step of every study for GPUs or TPUs that this machine lacks, and report the number of kernels, "
        "the memory per device, and the precision of matrix products. Needs the target's compiler: pip install -e '.[cuda]' "
        "or '.[tpu]'.",
        "JAX_PLATFORMS=cpu PROGRAM targets --programs ['exor, fast']",
    ),
    "checkpoints": Benchmark(
        CheckpointsBench,
        "experiments.bench.checkpoints:run",
        exor_sizes,
        "Measure time and memory of the commands on checkpoints: check on many small folders; factorise, tie and diagnose on "
        "random tables. Two of these tables take 4 GB of disk at the default size.",
        "PROGRAM checkpoints --commands [check]",
    ),
    "statistics": Benchmark(
        StatisticsBench,
        "experiments.bench.statistics:run",
        exor_sizes,
        "Measure the time to test a family of claims: sign-flip tests, adjusted p-values and intervals, compared with p-values "
        "and 95 % intervals in plain numpy.",
        "PROGRAM statistics --claims 20 --seeds 256",
    ),
}
