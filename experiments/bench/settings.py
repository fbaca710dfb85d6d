"""Settings of every benchmark, and the settings of the study that each one measures. Loads no jax."""

import abc
import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.shared import Settings, with_defaults
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

Engine = Literal["fast", "plain"]
Form = Literal["published", "masked", "packed"]
Storage = Literal["compact", "full"]
Program = Literal[
    "exor, fast",
    "exor, plain",
    "exor, mixer",
    "exor, lstm",
    "text",
    "text, bfloat16",
    "layers, 12",
    "layers, 12, bfloat16",
    "encoder",
    "rembert",
    "causal, 124M",
]
Part = Literal["exor", "text", "layers", "encoder", "fine_tuning"]
CheckpointCommand = Literal["check", "factorise", "tie", "diagnose"]


@dataclasses.dataclass(frozen=True)
class BenchSettings(Settings, abc.ABC):
    """Settings of every benchmark.

    Args:
        out: folder for results.json
    """

    out: str = "runs/bench"

    @property
    @abc.abstractmethod
    def largest_studies(self) -> list[Any]:
        """Resolved settings of the measured studies that need the most memory. Raises BadInput."""


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
        super().check()
        if self.repeats < 5:
            raise BadInput(f"--repeats: expected at least 5 measurements, got {self.repeats}")
        checks.check_counts(self, ("repeats",))
        checks.check_positive(self, ("seconds",))


@dataclasses.dataclass(frozen=True)
class ExorBench(TimedBench):
    """Throughput of EXor's training, recording included.

    Args:
        seeds: ensemble sizes to measure, in seeds; every seed is trained tied and untied, so there are twice as many models
        engines: engines to measure (default: fast and plain for the transformer, plain for the lstm and the mixer)
        model: architecture; only the transformer is compared with torch and with the limit set by the machine's arithmetic
        size: published size of the architecture; medium is measured without recording
        repeats: measurements per ensemble size and engine, at least 5
        seconds: length of a measurement
        torch_seconds: length of a measurement of the torch loop
        out: folder for results.json and the figure
    """

    seeds: list[int] = dataclasses.field(default_factory=lambda: [1, 8, 32, 128])
    engines: list[Engine] | None = None
    model: Literal["transformer", "lstm", "mixer"] = "transformer"
    size: Literal["small", "medium"] = "small"
    torch_seconds: float = 3.0
    out: str = "runs/bench/exor"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        if not self.seeds or min(self.seeds) < 1:
            raise BadInput(f"--seeds: expected a list of numbers >= 1, got {self.seeds}")
        if self.engines == []:
            raise BadInput("--engines: expected at least one of fast and plain, got []")
        if self.model != "transformer" and self.measured_engines != ["plain"]:
            raise BadInput(
                f"--engines: the {self.model} depends on the order of its symbols, so only [plain] can be measured, "
                f"got {self.measured_engines}"
            )
        super().check()
        checks.check_positive(self, ("torch_seconds",))

    @property
    def largest_studies(self) -> list[Any]:
        return [self.study_settings(engine, max(self.seeds), recording=False) for engine in self.measured_engines]

    @property
    def measured_engines(self) -> list[Engine]:
        """The engines to measure, defaults filled in."""
        if self.engines is not None:
            return self.engines
        return ["fast", "plain"] if self.model == "transformer" else ["plain"]

    def study_settings(self, engine: Engine, seeds: int, recording: bool = True) -> exor_settings.Settings:
        """Return resolved settings of the study. recording: whether to record, at EXor's default interval."""
        every = RECORD_EVERY if recording else ENDLESS
        return exor_settings.Settings(
            seeds=seeds,
            model=self.model,
            size=self.size,
            engine=engine,
            steps=ENDLESS,
            record_every=every,
            exact_every=max(every, EXACT_EVERY) if engine == "plain" else every,
        ).resolved()


@dataclasses.dataclass(frozen=True)
class TextBench(TimedBench):
    """Throughput of the text study's training at the published size, in three forms.

    Args:
        corpus: text files or folders, as for text_mlm.py (default: the documentation that comes with CPython)
        tokenizer: vocab.txt, tokenizer.json or a Hugging Face name (default: WordPiece trained on the corpus)
        vocab_size: tokens in a trained vocabulary
        data_dir: folder for prepared text (default: as for text_mlm.py)
        seeds: number of seeds, each trained tied and untied
        batch_size: sentences per step
        forms: forms to measure: published (predictions at every position of padded rows), masked (predictions only at the
            masked tokens), packed (the same in packed rows)
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    tokenizer: str | None = None
    vocab_size: int = 30_522
    data_dir: str | None = None
    seeds: int = 2
    batch_size: int = 128
    forms: list[Form] = dataclasses.field(default_factory=lambda: ["published", "masked", "packed"])
    seconds: float = 4.0
    out: str = "runs/bench/text"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        if not self.forms:
            raise BadInput("--forms: expected at least one of published, masked and packed, got []")
        super().check()
        self.study_settings(self.forms[0])

    @property
    def largest_studies(self) -> list[Any]:
        return [self.study_settings(form) for form in self.forms]

    def study_settings(self, form: Form) -> text_settings.Settings:
        """Return resolved settings of the study, without records and validation. Raises BadInput."""
        return text_settings.Settings(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            data_dir=self.data_dir,
            seeds=self.seeds,
            batch_size=self.batch_size,
            steps=ENDLESS,
            record_every=ENDLESS,
            validate_every=ENDLESS,
            validation_batches=1,
            packing="packed" if form == "packed" else "padded",
        ).resolved()


@dataclasses.dataclass(frozen=True)
class LayersBench(TimedBench):
    """Time of a training step with tied and with untied layers, and of changing the ties.

    Args:
        layers: depths to measure, in layers
        share: layers per distinct layer in the tied models: with 6, a model of 12 layers has 2 distinct ones (map `sequence`)
        lora_rank: rank of the low-rank adaptation in one of the tied models
        width: width of embeddings and hidden states, a multiple of 32, with one head per 32
        vocab_size: number of tokens in the vocabulary
        context: tokens per block
        batch_size: blocks per step
        repeats: measurements per form, at least 5; the forms take turns
    """

    layers: list[int] = dataclasses.field(default_factory=lambda: [12, 48])
    share: int = 6
    lora_rank: int = 4
    width: int = 128
    vocab_size: int = 4096
    context: int = 128
    batch_size: int = 8
    repeats: int = 7
    seconds: float = 2.0
    out: str = "runs/bench/layers"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        if not self.layers or min(self.layers) < 2:
            raise BadInput(f"--layers: expected a list of numbers >= 2, got {self.layers}")
        if self.width % HEAD_WIDTH:
            raise BadInput(f"--width: expected a multiple of {HEAD_WIDTH}, got {self.width}")
        checks.check_counts(self, ("share", "lora_rank", "width", "vocab_size", "batch_size"))
        super().check()
        self.study_settings(self.layers[0], "compact")

    @property
    def largest_studies(self) -> list[Any]:
        return [self.study_settings(max(self.layers), "full")]

    def study_settings(self, layers: int, storage: Storage) -> layer_settings.Settings:
        """Return resolved settings of the study. Raises BadInput."""
        return layer_settings.Settings(
            layers=layers,
            storage=storage,
            vocab_size=self.vocab_size,
            width=self.width,
            heads=self.width // HEAD_WIDTH,
            context=self.context,
            batch_size=self.batch_size,
        ).resolved()


@with_defaults(seconds=4.0, repeats=5, out="runs/bench/decoder")
class DecoderBench(LayersBench):
    """Step time of a causal language model, untied and with tied layers, compared with the transformers library in torch.

    Args:
        architecture: gpt2, or bert with a causal mask
        repeats: measurements per side, at least 5; the sides take turns
    """

    architecture: Literal["gpt2", "bert"] = "gpt2"

    def study_settings(self, layers: int, storage: Storage) -> layer_settings.Settings:
        """Return resolved settings of the study. Raises BadInput."""
        study = super().study_settings(layers, storage)
        return dataclasses.replace(study, architecture=self.architecture, activation="gelu").resolved()


@dataclasses.dataclass(frozen=True)
class CausalBench(TimedBench):
    """Throughput of the untied models of causal_untying.py, compared with the transformers library's GPT-2 in torch.

    Args:
        layers: number of layers
        width: width of tables and states
        heads: number of attention heads
        context: tokens of a block
        batch_size: blocks per step
        vocab_size: number of tokens
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    batch_size: int = 8
    vocab_size: int = 4096
    seconds: float = 4.0
    out: str = "runs/bench/causal"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        super().check()
        _ = self.study_settings

    @property
    def largest_studies(self) -> list[Any]:
        return [self.study_settings]

    @property
    def study_settings(self) -> causal_settings.Settings:
        """Resolved settings of the study, without records and validation. Raises BadInput."""
        rare = ENDLESS // 6  # so that the forks, at sixths of the steps, are at steps of records
        return causal_settings.Settings(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            context=self.context,
            batch_size=self.batch_size,
            vocab_size=self.vocab_size,
            steps=6 * rare,
            record_every=rare,
            validate_every=rare,
            validation_blocks=1,
        ).resolved()


@dataclasses.dataclass(frozen=True)
class EncoderBench(TimedBench):
    """Throughput of pre-training the coupled base encoder, compared with the transformers Trainer and a plain torch loop.

    Args:
        corpus: text files or folders, as for embedding_coupling.py (default: the documentation that comes with CPython)
        tokenizer: vocab.txt, tokenizer.json or a Hugging Face name (default: WordPiece trained on the corpus)
        vocab_size: tokens in a trained vocabulary
        data_dir: folder for prepared text (default: as for embedding_coupling.py)
        max_length: tokens in a packed row, and the longest sentence
        batch_rows: packed rows per step; a batch of the Trainer has as many sentences as these rows hold on average
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    tokenizer: str | None = None
    vocab_size: int = 3072
    data_dir: str | None = None
    max_length: int = 64
    batch_rows: int = 32
    seconds: float = 4.0
    out: str = "runs/bench/encoder"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        super().check()
        self.study_settings(1)

    @property
    def shape(self) -> Shape:
        """The shape of the trained encoder."""
        return Shape(64, 64, 64, 3, 4, coupled=True)

    @property
    def largest_studies(self) -> list[Any]:
        return [self.study_settings(1)]

    def study_settings(self, seeds: int) -> coupling_settings.Settings:
        """Return resolved settings of the study, without records and validation. Raises BadInput."""
        return coupling_settings.Settings(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            data_dir=self.data_dir,
            max_length=self.max_length,
            batch_rows=self.batch_rows,
            seeds=seeds,
            steps=ENDLESS,
            record_every=ENDLESS,
            validate_every=ENDLESS,
            validation_batches=1,
        ).resolved()


TRANSFER_RATES = [1e-3, 3e-3, 1e-2]  # the number of rates is the number of members; their values do not matter


@dataclasses.dataclass(frozen=True)
class TransferBench(TimedBench):
    """Throughput of fine-tuning at the study's default size: as an ensemble, and one member after the other.

    Args:
        corpus: text files or folders, as for embedding_coupling.py (default: the documentation that comes with CPython)
        data_dir: folder for prepared text (default: as for embedding_coupling.py)
        seeds: pre-training seeds of the ensemble, each with and without pre-training, at each of three learning rates
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    data_dir: str | None = None
    seeds: int = 2
    seconds: float = 4.0
    out: str = "runs/bench/transfer"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        super().check()
        checks.check_counts(self, ("seeds",))

    @property
    def largest_studies(self) -> list[Any]:
        return [self.study_settings()]

    def study_settings(self) -> coupling_settings.Settings:
        """Return resolved settings of the study."""
        return coupling_settings.Settings(
            corpus=self.corpus, data_dir=self.data_dir, seeds=self.seeds, fine_tuning_rates=TRANSFER_RATES
        ).resolved()


@dataclasses.dataclass(frozen=True)
class DeviceBench(TimedBench):
    """Training rates of every study on this machine, and a comparison of its results with those of its CPU.

    Args:
        parts: parts to measure: any of exor, text, layers, encoder, fine_tuning
        seeds: seeds of EXor, each trained tied and untied; the seeds that solve the task are counted
        exor_steps: training steps of EXor (default: the published number)
        first_steps: training steps whose losses are compared with those on the CPU
    """

    parts: list[Part] = dataclasses.field(default_factory=lambda: ["exor", "text", "layers", "encoder", "fine_tuning"])
    seeds: int = 32
    exor_steps: int | None = None
    first_steps: int = 50
    seconds: float = 2.0
    out: str = "runs/bench/device"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        if not self.parts:
            raise BadInput(f"--parts: expected at least one of {', '.join(get_args(Part))}, got []")
        super().check()
        checks.check_counts(self, ("seeds", "first_steps"))
        if self.exor_steps is not None:
            checks.check_counts(self, ("exor_steps",))

    @property
    def largest_studies(self) -> list[Any]:
        return [ExorBench().study_settings("fast", max(self.seeds, 1024), recording=False)]


@dataclasses.dataclass(frozen=True)
class TargetsBench(BenchSettings):
    """Kernels, memory and precision of every study's training step, compiled for GPUs and TPUs that this machine lacks.

    Args:
        target: h100:N for N GPUs, or a TPU topology such as v5e:2x2
        programs: programs to compile (default: all)
        compare: a file such as docs/targets.json; kernels, bytes and precisions are compared with its entries for the target
    """

    target: str = "v5e:2x2"
    programs: list[Program] = dataclasses.field(default_factory=lambda: list(get_args(Program)))
    compare: str | None = None
    out: str = "runs/bench/targets"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be compiled."""
        super().check()
        if not self.programs:
            raise BadInput(f"--programs: expected at least one of {'; '.join(get_args(Program))}; got []")
        if self.compare is not None and not Path(self.compare).is_file():
            raise BadInput(f"--compare: {cut(self.compare)} is not a file; give one such as docs/targets.json")

    @property
    def largest_studies(self) -> list[Any]:
        return []


@dataclasses.dataclass(frozen=True)
class CheckpointsBench(BenchSettings):
    """Time and memory of the commands on checkpoints.

    Args:
        commands: commands to measure: any of check, factorise, tie, diagnose
        folders: number of small checkpoints for check
        factorised: rows and columns of the table for factorise
        rows: rows of each of the two tables for tie and diagnose
        width: columns of each of the two tables
        dtype: data type of the two tables: F32, F16 or BF16
        repeats: runs of each command
    """

    commands: list[CheckpointCommand] = dataclasses.field(default_factory=lambda: list(get_args(CheckpointCommand)))
    folders: int = 1000
    factorised: list[int] = dataclasses.field(default_factory=lambda: [50_000, 1024])
    rows: int = 250_000
    width: int = 4096
    dtype: Literal["F32", "F16", "BF16"] = "BF16"
    repeats: int = 1
    out: str = "runs/bench/checkpoints"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        super().check()
        if not self.commands:
            raise BadInput(f"--commands: expected at least one of {', '.join(get_args(CheckpointCommand))}, got []")
        checks.check_counts(self, ("folders", "rows", "width", "repeats"))
        if len(self.factorised) != 2 or min(self.factorised) < 2:
            raise BadInput(f"--factorised: expected [ROWS, COLUMNS], each at least 2, got {self.factorised}")

    @property
    def largest_studies(self) -> list[Any]:
        return []


@dataclasses.dataclass(frozen=True)
class StatisticsBench(BenchSettings):
    """Time to test a family of claims by sign flips, and to do the same in plain numpy.

    Args:
        claims: claims in the family
        seeds: differences per claim, at least 17 (with fewer seeds every flip is enumerated)
        repeats: measurements, at least 5; both sides take turns
    """

    claims: int = 40
    seeds: int = 1024
    repeats: int = 5
    out: str = "runs/bench/statistics"

    def check(self) -> None:
        """Raise BadInput, naming the option, if the settings cannot be measured."""
        super().check()
        checks.check_counts(self, ("claims",))
        if self.seeds < 17:
            raise BadInput(f"--seeds: expected at least 17, got {self.seeds}")
        if self.repeats < 5:
            raise BadInput(f"--repeats: expected at least 5 measurements, got {self.repeats}")

    @property
    def largest_studies(self) -> list[Any]:
        return []
