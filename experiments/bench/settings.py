"""Settings of every benchmark, and the settings of the study that each one measures. Loads no jax.

The docstrings are the help: their first line heads the list of settings, and what follows describes the benchmark.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.shared import Settings, TextSettings, with_defaults
from tiejax.lab.studies.causal_untying import settings as causal_settings
from tiejax.lab.studies.embedding_coupling import settings as coupling_settings
from tiejax.lab.studies.exor import settings as exor_settings
from tiejax.lab.studies.layer_tying import settings as layer_settings
from tiejax.lab.studies.text_mlm import settings as text_settings
from tiejax.models.shapes import Shape
from tiejax.system.visible import cut

ENDLESS = 100_000_000  # more steps than any measurement trains
RECORD_EVERY = 500  # EXor's default
EXACT_EVERY = 10_000  # close to EXor's default on the plain engine
HEAD_WIDTH = 32
LORA_RANK = 4  # of the low-rank adaptation in one of the tied models
TRANSFER_RATES = [1e-3, 3e-3, 1e-2]  # the number of rates is the number of members; their values do not matter
NO_RECORDS = {"record_every": ENDLESS, "validate_every": ENDLESS, "validation_batches": 1}

Engine = Literal["fast", "plain"]
Form = Literal["published", "masked", "packed"]
Storage = Literal["compact", "full"]
_Exor = Literal["exor, fast", "exor, plain", "exor, mixer", "exor, lstm"]
_Others = Literal["text", "text, bfloat16", "layers, 12", "layers, 12, bfloat16", "encoder", "rembert", "causal, 124M"]
Recorded = Literal["causal, h100", "causal, 8,192 x 128", "layers, length"]
Program = Literal[_Exor, _Others, Recorded]
Part = Literal["exor", "text", "layers", "encoder", "fine_tuning"]
CheckpointCommand = Literal["check", "factorise", "tie", "diagnose"]
Study = TypeVar("Study")


@dataclasses.dataclass(frozen=True)
class BenchSettings(Settings):
    """Settings of every benchmark.

    Args:
        out: folder for results.json
    """

    # Not annotated: no settings.
    EXAMPLE = ""  # a command line, with PROGRAM in place of the command
    COUNTS = tuple[str, ...]()  # names of the settings that are at least 1, unless the study's own check covers them
    CHOICES = tuple[tuple[str, Any], ...]()  # settings with the Literal of which at least one value is chosen

    out: str = "runs/bench"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        for name, choices in self.CHOICES:
            if getattr(self, name) == []:
                raise BadInput(f"--{name}: expected at least one of {'; '.join(get_args(choices))}, got []")
        checks.check_counts(self, self.COUNTS)
        super().check()
        self.study_settings()

    def study_settings(self) -> Any:
        """Return resolved settings of the measured study, None if there are several. Raises BadInput."""

    def _study(self, kind: type[Study], **values: Any) -> Study:
        """Return resolved settings of a study: `values`, and those of this benchmark that have the same name."""
        same = {field.name for field in dataclasses.fields(kind)} & set(vars(self)) - {"out"}  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in same} | values).resolved()  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class TimedBench(BenchSettings):
    """Number and length of the measurements.

    Args:
        repeats: measurements per form, at least 5
        seconds: length of a measurement, at least one step
    """

    repeats: int = 5
    seconds: float = 1.5

    def check(self) -> None:
        check_repeats(self.repeats)
        checks.check_counts(self, ("repeats",))
        checks.check_positive(self, ("seconds",))
        super().check()


def check_repeats(repeats: int) -> None:
    """Check that medians and ranges are those of at least 5 measurements."""
    if repeats < 5:
        raise BadInput(f"--repeats: expected at least 5 measurements, got {repeats}")


@with_defaults(out="runs/bench/exor")
class ExorBench(TimedBench):
    """Throughput of EXor's training, recording included.

    Measure the training throughput of EXor: the ensemble on each of its engines and, if torch is installed, the same protocol
    as a plain torch loop. The other benchmarks are text, layers, decoder, causal, encoder, transfer, device, targets,
    checkpoints and statistics; `PROGRAM text --help` explains the settings of text.

    Args:
        seeds: ensemble sizes to measure, in seeds; every seed is trained tied and untied, so there are twice as many models
        engines: engines to measure (default: fast and plain for the transformer, plain for the lstm and the mixer)
        model: architecture; only the transformer is compared with torch and with the limit set by the machine's arithmetic
        size: published size of the architecture; medium is measured without recording
        repeats: measurements per ensemble size and engine, at least 5
        seconds: length of a measurement; those of torch are twice as long
        out: folder for results.json and the figure
    """

    EXAMPLE = "PROGRAM exor --seeds [8,32]"
    CHOICES = (("engines", Engine),)

    seeds: list[int] = dataclasses.field(default_factory=lambda: [1, 8, 32, 128])
    engines: list[Engine] | None = None
    model: Literal["transformer", "lstm", "mixer"] = "transformer"
    size: Literal["small", "medium"] = "small"

    def check(self) -> None:
        check_all("seeds", self.seeds, least=1)
        if self.engines and self.model != "transformer" and self.engines != ["plain"]:
            raise BadInput(
                f"--engines: the {self.model} depends on the order of its symbols, so only [plain] can be measured, "
                f"got {self.engines}"
            )
        super().check()

    @property
    def measured_engines(self) -> list[Engine]:
        """The engines to measure, defaults filled in."""
        return self.engines or (["fast", "plain"] if self.model == "transformer" else ["plain"])

    def study_settings(
        self, engine: Engine | None = None, seeds: int | None = None, recording: bool = True
    ) -> exor_settings.Settings:
        """Return resolved settings of the study. recording: whether to record, at EXor's default interval."""
        engine, seeds = engine or self.measured_engines[0], seeds or max(self.seeds)
        every = RECORD_EVERY if recording else ENDLESS
        exact = max(every, EXACT_EVERY) if engine == "plain" else every
        every_step = {"steps": ENDLESS, "record_every": every, "exact_every": exact}
        return self._study(exor_settings.Settings, seeds=seeds, engine=engine, **every_step)


def check_all(name: str, numbers: list[int], least: int) -> None:
    """Check that a list has numbers, all of them at least `least`."""
    if not numbers or min(numbers) < least:
        raise BadInput(f"--{name}: expected a list of numbers >= {least}, got {numbers}")


@with_defaults(vocab_size=30_522, seconds=4.0, out="runs/bench/text")
class TextBench(TimedBench, TextSettings):
    """Throughput of the text study's training at the published size, in three forms.

    Measure real (unpadded) tokens per second in training of the text study: with predictions at every position of padded rows,
    as published; at the masked tokens only; and at the masked tokens of packed rows. The packed form is also compared with
    torch, if it is installed.

    Args:
        seeds: number of seeds, each trained tied and untied
        batch_size: sentences per step
        forms: forms to measure: published (predictions at every position of padded rows), masked (predictions only at the
            masked tokens), packed (the same in packed rows)
    """

    EXAMPLE = "PROGRAM text --corpus novels/ --tokenizer vocab.txt"
    CHOICES = (("forms", Form),)

    seeds: int = 2
    batch_size: int = 128
    forms: list[Form] = dataclasses.field(default_factory=lambda: list(get_args(Form)))

    def study_settings(self, form: Form = "packed") -> text_settings.Settings:
        """Return resolved settings of the study, without records and validation. Raises BadInput."""
        packing = "packed" if form == "packed" else "padded"
        return self._study(text_settings.Settings, steps=ENDLESS, packing=packing, **NO_RECORDS)


@with_defaults(repeats=7, seconds=2.0, out="runs/bench/layers")
class LayersBench(TimedBench):
    """Time of a training step with tied and with untied layers, and of changing the ties.

    Measure time and memory of a training step of the layer-tying study for four forms: untied, as a plain scan over the layers;
    untied, with owners (the layer whose weights each layer uses); tied, with only the distinct layers stored; and tied, with
    all layers stored. Then measure the time that a change of ties takes.

    Args:
        layers: depths to measure, in layers
        share: layers per distinct layer in the tied models: with 6, a model of 12 layers has 2 distinct ones (map `sequence`)
        width: width of embeddings and hidden states
        heads: number of attention heads (default: one for every 32 columns)
        vocab_size: number of tokens in the vocabulary
        context: tokens per block
        batch_size: blocks per step
        repeats: measurements per form, at least 5; the forms take turns
    """

    EXAMPLE = "PROGRAM layers --layers [12] --width 256"
    COUNTS = ("share", "width", "vocab_size", "batch_size")

    layers: list[int] = dataclasses.field(default_factory=lambda: [12, 48])
    share: int = 6
    width: int = 128
    heads: int | None = None
    vocab_size: int = 4096
    context: int = 128
    batch_size: int = 8

    def check(self) -> None:
        check_all("layers", self.layers, least=2)
        if self.heads is None and self.width % HEAD_WIDTH:
            raise BadInput(f"--width: without --heads, expected a multiple of {HEAD_WIDTH}, got {self.width}")
        super().check()

    def study_settings(self, layers: int | None = None, storage: Storage = "full") -> layer_settings.Settings:
        """Return resolved settings of the study, by default with the most layers. Raises BadInput."""
        layers, heads = layers or max(self.layers), self.width // HEAD_WIDTH if self.heads is None else self.heads
        return self._study(layer_settings.Settings, layers=layers, storage=storage, heads=heads)


@with_defaults(seconds=4.0, repeats=5, out="runs/bench/decoder")
class DecoderBench(LayersBench):
    """Step time of a causal language model, untied and with tied layers, compared with the transformers library in torch.

    Measure a training step of a causal language model (GPT-2, or BERT with a causal mask), untied and with tied layers, on all
    cores, and compare it with the transformers library's model in a plain torch loop. The two sides take turns.

    Args:
        architecture: gpt2, or bert with a causal mask
        repeats: measurements per side, at least 5; the sides take turns
    """

    EXAMPLE = "PROGRAM decoder --layers [12] --architecture bert"

    architecture: Literal["gpt2", "bert"] = "gpt2"


@with_defaults(seconds=4.0, out="runs/bench/causal")
class CausalBench(TimedBench):
    """Throughput of the untied models of causal_untying.py, compared with the transformers library's GPT-2 in torch.

    Measure tokens per second of the causal language models that are tied and untied, by default those of the published run,
    one model on each core, and compare them with the transformers library's GPT-2 in a plain torch loop, one on all cores and
    one on each core. The sides take turns.

    Args:
        layers: number of layers
        width: width of tables and states
        heads: number of attention heads
        context: tokens of a block
        batch_size: blocks per step
        vocab_size: number of tokens
    """

    EXAMPLE = "PROGRAM causal --layers 4 --width 128 --heads 4 --vocab_size 4096"

    layers: int = 2
    width: int = 64
    heads: int = 2
    context: int = 128
    batch_size: int = 8
    vocab_size: int = 1024

    def study_settings(self) -> causal_settings.Settings:
        """Return resolved settings of the study, without records and validation. Raises BadInput."""
        rare = ENDLESS // 6  # so that the forks, at sixths of the steps, are at steps of records
        every = {"steps": 6 * rare, "record_every": rare, "validate_every": rare}
        return self._study(causal_settings.Settings, validation_blocks=1, **every)


@with_defaults(vocab_size=3072, seconds=4.0, out="runs/bench/encoder")
class EncoderBench(TimedBench, TextSettings):
    """Throughput of pre-training the coupled base encoder, compared with the transformers Trainer and a plain torch loop.

    Measure real (unpadded) tokens per second in pre-training of the coupled base encoder, and compare them with the
    transformers Trainer, which pads, and with a plain torch loop on packed rows. All sides take turns.

    Args:
        max_length: tokens in a packed row, and the longest sentence
        batch_rows: packed rows per step; a batch of the Trainer has as many sentences as these rows hold on average
    """

    EXAMPLE = "PROGRAM encoder --corpus novels/ --seconds 2"
    SHAPE = Shape(64, 64, 64, 3, 4, coupled=True)  # of the trained encoder

    max_length: int = 64
    batch_rows: int = 32

    def study_settings(self, seeds: int = 1) -> coupling_settings.Settings:
        """Return resolved settings of the study, without records and validation. Raises BadInput."""
        return self._study(coupling_settings.Settings, seeds=seeds, steps=ENDLESS, **NO_RECORDS)


@with_defaults(seconds=4.0, out="runs/bench/transfer")
class TransferBench(TimedBench, TextSettings):
    """Throughput of fine-tuning at the study's default size: as an ensemble, and one member after the other.

    Measure member-steps per second in fine-tuning: an ensemble of seeds, initial encoders (pre-trained or random) and learning
    rates, compared with the same members one after the other.

    Args:
        seeds: pre-training seeds of the ensemble, each with and without pre-training, at each of three learning rates
    """

    EXAMPLE = "PROGRAM transfer --seeds 10"
    COUNTS = ("seeds",)

    seeds: int = 2

    def study_settings(self) -> coupling_settings.Settings:
        """Return resolved settings of the study."""
        return self._study(coupling_settings.Settings, fine_tuning_rates=TRANSFER_RATES)


@with_defaults(seconds=2.0, out="runs/bench/device")
class DeviceBench(TimedBench):
    """Training rates of every study on this machine, and a comparison of its results with those of its CPU.

    Measure this machine, with or without a GPU or TPU, in more than ten minutes: training rates of five parts of the studies,
    and whether losses, and the number of EXor's seeds that solve the task, agree with those of its CPU.

    Args:
        parts: parts to measure: any of exor, text, layers, encoder, fine_tuning
        seeds: seeds of EXor, each trained tied and untied; the seeds that solve the task are counted
        first_steps: training steps whose losses are compared with those on the CPU
    """

    EXAMPLE = "PROGRAM device --out my_gpu"
    COUNTS = ("seeds", "first_steps")
    CHOICES = (("parts", Part),)

    parts: list[Part] = dataclasses.field(default_factory=lambda: list(get_args(Part)))
    seeds: int = 32
    first_steps: int = 50


@with_defaults(out="runs/bench/targets")
class TargetsBench(BenchSettings):
    """Kernels, memory and precision of every study's training step, compiled for GPUs and TPUs that this machine lacks.

    Compile a training step of every study for GPUs or TPUs that this machine lacks, and report the number of kernels, the
    memory per device, and the precision of matrix products. Needs the target's compiler: pip install -e '.[cuda]' or '.[tpu]'.

    Args:
        target: h100:N for N GPUs, or a TPU topology such as v5e:2x2
        programs: programs to compile (default: all)
        compare: a file such as docs/targets.json; kernels, bytes and precisions are compared with its entries for the target
    """

    EXAMPLE = "JAX_PLATFORMS=cpu PROGRAM targets --programs ['exor, fast']"
    CHOICES = (("programs", Program),)

    target: str = "v5e:2x2"
    programs: list[Program] = dataclasses.field(default_factory=lambda: list(get_args(Program)))
    compare: str | None = None

    def check(self) -> None:
        super().check()
        if self.compare is not None and not Path(self.compare).is_file():
            raise BadInput(f"--compare: {cut(self.compare)} is not a file; give one such as docs/targets.json")


@with_defaults(out="runs/bench/checkpoints")
class CheckpointsBench(BenchSettings):
    """Time and memory of the commands on checkpoints.

    Measure time and memory of the commands on checkpoints: check on many small folders; factorise, tie and diagnose on random
    tables. Two of these tables take 4 GB of disk at the default size.

    Args:
        commands: commands to measure: any of check, factorise, tie, diagnose
        folders: number of small checkpoints for check
        factorised: rows and columns of the table for factorise
        rows: rows of each of the two tables for tie and diagnose
        width: columns of each of the two tables
        repeats: runs of each command
    """

    EXAMPLE = "PROGRAM checkpoints --commands [check]"
    COUNTS = ("folders", "rows", "width", "repeats")
    CHOICES = (("commands", CheckpointCommand),)

    commands: list[CheckpointCommand] = dataclasses.field(default_factory=lambda: list(get_args(CheckpointCommand)))
    folders: int = 1000
    factorised: list[int] = dataclasses.field(default_factory=lambda: [50_000, 1024])
    rows: int = 250_000
    width: int = 4096
    repeats: int = 1

    def check(self) -> None:
        super().check()
        if len(self.factorised) != 2 or min(self.factorised) < 2:
            raise BadInput(f"--factorised: expected [ROWS, COLUMNS], each at least 2, got {self.factorised}")


@with_defaults(out="runs/bench/statistics")
class StatisticsBench(BenchSettings):
    """Time to test a family of claims by sign flips, and to do the same in plain numpy.

    Measure the time to test a family of claims: sign-flip tests, adjusted p-values and intervals, compared with p-values and 95
    % intervals in plain numpy.

    Args:
        claims: claims in the family
        seeds: differences per claim, at least 17 (with fewer seeds every flip is enumerated)
        repeats: measurements, at least 5; both sides take turns
    """

    EXAMPLE = "PROGRAM statistics --claims 20 --seeds 256"
    COUNTS = ("claims",)

    claims: int = 40
    seeds: int = 1024
    repeats: int = 5

    def check(self) -> None:
        super().check()
        if self.seeds < 17:
            raise BadInput(f"--seeds: expected at least 17, got {self.seeds}")
        check_repeats(self.repeats)
