"""What may be asked of the benchmarks, and the settings of the studies that they measure."""

import abc
import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.shared import Settings, with_defaults
from tiejax.lab.studies.embedding_coupling import settings as coupling_settings
from tiejax.lab.studies.exor import settings as exor_settings
from tiejax.lab.studies.layer_tying import settings as layer_settings
from tiejax.lab.studies.text_mlm import settings as text_settings
from tiejax.models.shapes import Shape

ENDLESS = 100_000_000  # more steps than any measurement takes
RECORD_EVERY = 500  # EXor's default
EXACT_EVERY = 10_000  # about its default on the plain engine
WIDTH_OF_HEAD = 32

Engine = Literal["fast", "plain", "kernel"]
Form = Literal["published", "masked", "packed"]
Storage = Literal["compact", "full"]
Program = Literal[
    "exor, fast",
    "exor, kernel",
    "exor, plain",
    "exor, mixer",
    "exor, lstm",
    "text",
    "text, bfloat16",
    "layers, 12",
    "layers, 12, bfloat16",
    "encoder",
    "rembert",
]
Part = Literal["exor", "text", "layers", "encoder", "fine_tuning"]
OnCheckpoints = Literal["check", "factorise", "tie", "diagnose"]


@dataclasses.dataclass(frozen=True)
class BenchSettings(Settings, abc.ABC):
    """What every benchmark may be asked.

    Args:
        out: where results.json goes
    """

    out: str = "runs/bench"

    @property
    @abc.abstractmethod
    def largest(self) -> list[Any]:
        """Resolved settings of the study, those among all that are measured that need most memory; raises BadInput."""


@dataclasses.dataclass(frozen=True)
class TimedBench(BenchSettings):
    """How often and how long is measured.

    Args:
        repeats: measurements of each form, at least 5
        seconds: length of one measurement, at least one step
    """

    repeats: int = 5
    seconds: float = 1.5

    def check(self) -> None:
        super().check()
        if self.repeats < 5:
            raise BadInput(f"--repeats: a median needs at least 5, got {self.repeats}")
        checks.check_counts(self, ("repeats",))
        checks.check_positive(self, ("seconds",))


@dataclasses.dataclass(frozen=True)
class ExorBench(TimedBench):
    """Throughput of EXor's training, recording included.

    Args:
        seeds: numbers of seeds, each trained tied and untied, so twice as many models
        engines: engines to be measured (default: fast and plain of the transformer, plain of others, which see order)
        model: architecture; only the transformer is compared with torch and with the limit of the arithmetic
        size: its published size; medium is measured without recording
        repeats: measurements of each setting, at least 5
        seconds: length of one measurement
        torch_seconds: length of one measurement of the torch loop
        out: where results.json and the figure go
    """

    seeds: list[int] = dataclasses.field(default_factory=lambda: [1, 8, 32, 128])
    engines: list[Engine] | None = None
    model: Literal["transformer", "lstm", "mixer"] = "transformer"
    size: Literal["small", "medium"] = "small"
    torch_seconds: float = 3.0
    out: str = "runs/bench/exor"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.seeds or min(self.seeds) < 1:
            raise BadInput(f"--seeds: needs numbers of at least 1, got {self.seeds}")
        if self.engines == []:
            raise BadInput("--engines: some of fast, plain, kernel, got none")
        if self.model != "transformer" and self.measured != ["plain"]:
            raise BadInput(f"--engines: plain alone, since the {self.model} sees the order of its symbols; got {self.measured}")
        super().check()
        checks.check_positive(self, ("torch_seconds",))

    @property
    def largest(self) -> list[Any]:
        return [self.of_study(engine, max(self.seeds), recording=False) for engine in self.measured]

    @property
    def measured(self) -> list[Engine]:
        """The engines that are measured."""
        if self.engines is not None:
            return self.engines
        return ["fast", "plain"] if self.model == "transformer" else ["plain"]

    def of_study(self, engine: Engine, seeds: int, recording: bool = True) -> exor_settings.Settings:
        """Return the resolved settings of the study that is measured, with its default schedule of records or none."""
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
        corpus: text files or folders, as for text_mlm.py (default: the prose that CPython carries)
        tokenizer: vocab.txt, tokenizer.json or a name on the hub (default: WordPiece trained on the corpus)
        vocab_size: tokens of a trained vocabulary
        data_dir: where prepared text is kept (default: as for text_mlm.py)
        seeds: seeds, each trained tied and untied
        batch_size: sentences a step
        forms: published predicts everywhere and pads; masked predicts at the masked tokens; packed also fills its rows
        huge_pages: let glibc ask for huge pages, as the study does, beside torch on all sides; false: as the environment says
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    tokenizer: str | None = None
    vocab_size: int = 30_522
    data_dir: str | None = None
    seeds: int = 2
    batch_size: int = 128
    forms: list[Form] = dataclasses.field(default_factory=lambda: ["published", "masked", "packed"])
    huge_pages: bool = True
    seconds: float = 4.0
    out: str = "runs/bench/text"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.forms:
            raise BadInput("--forms: published, masked, packed or some of them, got none")
        super().check()
        self.of_study(self.forms[0])

    @property
    def largest(self) -> list[Any]:
        return [self.of_study(form) for form in self.forms]

    def of_study(self, form: Form) -> text_settings.Settings:
        """Return the resolved settings of the study that is measured, which records and validates nothing; raises BadInput."""
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
    """Time of a training step with tied layers against untied ones, and of a change of ties.

    Args:
        layers: numbers of layers, each of a model
        share: of so many layers one is distinct in the tied models (sequence)
        width: width of embeddings and hidden states; one head for each 32 of it
        vocab_size: number of tokens
        context: tokens of a block
        batch_size: blocks a step
        repeats: measurements of each form, at least 5; one after the other, form after form
    """

    layers: list[int] = dataclasses.field(default_factory=lambda: [12, 48])
    share: int = 6
    width: int = 128
    vocab_size: int = 4096
    context: int = 128
    batch_size: int = 8
    repeats: int = 7
    seconds: float = 2.0
    out: str = "runs/bench/layers"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.layers or min(self.layers) < 2:
            raise BadInput(f"--layers: needs numbers of at least 2, got {self.layers}")
        if self.width % WIDTH_OF_HEAD:
            raise BadInput(f"--width: must be a multiple of {WIDTH_OF_HEAD}, got {self.width}")
        checks.check_counts(self, ("share", "width", "vocab_size", "batch_size"))
        super().check()
        self.of_study(self.layers[0], "compact")

    @property
    def largest(self) -> list[Any]:
        return [self.of_study(max(self.layers), "full")]

    def of_study(self, layers: int, storage: Storage) -> layer_settings.Settings:
        """Return the resolved settings of the study that is measured; raises BadInput."""
        return layer_settings.Settings(
            layers=layers,
            storage=storage,
            vocab_size=self.vocab_size,
            width=self.width,
            heads=self.width // WIDTH_OF_HEAD,
            context=self.context,
            batch_size=self.batch_size,
        ).resolved()


@with_defaults(seconds=4.0, repeats=5, out="runs/bench/decoder")
class DecoderBench(LayersBench):
    """Throughput of a causal language model, untied and with tied layers, beside the transformers library's in torch.

    Args:
        architecture: gpt2, or bert with a causal mask
        repeats: measurements of each side, at least 5, in turns
        huge_pages: let glibc ask for huge pages, on both sides (default: the allocator is as the environment says)
    """

    architecture: Literal["gpt2", "bert"] = "gpt2"
    huge_pages: bool = False

    def of_study(self, layers: int, storage: Storage) -> layer_settings.Settings:
        """Return the resolved settings of the study that is measured; raises BadInput."""
        study = super().of_study(layers, storage)
        return dataclasses.replace(study, architecture=self.architecture, activation="gelu").resolved()


@dataclasses.dataclass(frozen=True)
class EncoderBench(TimedBench):
    """Throughput of pre-training the coupled base encoder, beside the transformers library's trainer and a plain torch loop.

    Args:
        corpus: text files or folders, as for embedding_coupling.py (default: the prose that CPython carries)
        tokenizer: vocab.txt, tokenizer.json or a name on the hub (default: trained on the corpus, as the study's)
        vocab_size: tokens of a trained vocabulary
        data_dir: where prepared text is kept (default: as for embedding_coupling.py)
        max_length: tokens of a packed row, and of the longest sentence
        batch_rows: packed rows of a step; the trainer's batches have as many sentences as these hold on average
        huge_pages: let glibc ask for huge pages, on all sides (default: the allocator is as the environment says)
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    tokenizer: str | None = None
    vocab_size: int = 3072
    data_dir: str | None = None
    max_length: int = 64
    batch_rows: int = 32
    huge_pages: bool = False
    seconds: float = 4.0
    out: str = "runs/bench/encoder"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        super().check()
        self.of_study(1)

    @property
    def shape(self) -> Shape:
        """The shape that is trained."""
        return Shape(64, 64, 64, 3, 4, coupled=True)

    @property
    def largest(self) -> list[Any]:
        return [self.of_study(1)]

    def of_study(self, seeds: int) -> coupling_settings.Settings:
        """Return the resolved settings of the study that is measured, which records and validates nothing; raises BadInput."""
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


@dataclasses.dataclass(frozen=True)
class TransferBench(TimedBench):
    """Throughput of fine-tuning at the study's default size: an ensemble, beside one member after the other.

    Args:
        corpus: text files or folders, as for embedding_coupling.py (default: the prose that CPython carries)
        data_dir: where prepared text is kept (default: as for embedding_coupling.py)
        seeds: pre-training seeds of the ensemble, each with and without pre-training at each of the default's rates
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    data_dir: str | None = None
    seeds: int = 2
    seconds: float = 4.0
    out: str = "runs/bench/transfer"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        super().check()
        checks.check_counts(self, ("seeds",))

    @property
    def largest(self) -> list[Any]:
        return [self.of_study()]

    def of_study(self) -> coupling_settings.Settings:
        """Return the resolved settings of the study that is measured."""
        return coupling_settings.Settings(corpus=self.corpus, data_dir=self.data_dir, seeds=self.seeds).resolved()


@dataclasses.dataclass(frozen=True)
class DeviceBench(TimedBench):
    """Everything worth knowing of one machine: rates of every study, and whether its results are those of its CPU.

    Args:
        parts: what is measured, any of exor, text, layers, encoder, fine_tuning
        seeds: of EXor, each tied and untied, of which those that solve the task are counted
        exor_steps: of these trainings (default: as published)
        first_steps: steps whose losses are compared with those of the CPU
    """

    parts: list[Part] = dataclasses.field(default_factory=lambda: ["exor", "text", "layers", "encoder", "fine_tuning"])
    seeds: int = 32
    exor_steps: int | None = None
    first_steps: int = 50
    seconds: float = 2.0
    out: str = "runs/bench/device"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.parts:
            raise BadInput("--parts: exor, text, layers, encoder, fine_tuning or some of them, got none")
        super().check()
        checks.check_counts(self, ("seeds", "first_steps"))
        if self.exor_steps is not None:
            checks.check_counts(self, ("exor_steps",))

    @property
    def largest(self) -> list[Any]:
        return [ExorBench().of_study("fast", max(self.seeds, 1024), recording=False)]


@dataclasses.dataclass(frozen=True)
class TargetsBench(BenchSettings):
    """What a training step of every study compiles to for GPUs and TPUs that are not here.

    Args:
        target: h100:N for so many GPUs, or a topology of TPUs, as v5e:2x2
        programs: what is compiled (default: all)
        compare: a file as docs/targets.json, with whose kernels, bytes and precisions of the target they are compared
    """

    target: str = "v5e:2x2"
    programs: list[Program] = dataclasses.field(default_factory=lambda: list(get_args(Program)))
    compare: str | None = None
    out: str = "runs/bench/targets"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be compiled."""
        super().check()
        if not self.programs:
            raise BadInput(f"--programs: some of {', '.join(get_args(Program))}, got none")
        if self.compare is not None and not Path(self.compare).is_file():
            raise BadInput(f"--compare: {self.compare} is no file; give one as docs/targets.json")

    @property
    def largest(self) -> list[Any]:
        return []


@dataclasses.dataclass(frozen=True)
class CheckpointsBench(BenchSettings):
    """Seconds and memory of the commands on checkpoints.

    Args:
        commands: what is measured, any of check, factorise, tie, diagnose
        folders: how many small checkpoints are checked
        factorised: rows and columns of the table whose curve is computed
        rows: of the two tables that are compared and diagnosed
        width: of these
        dtype: of these, F32, F16 or BF16
        repeats: how often each command is started
    """

    commands: list[OnCheckpoints] = dataclasses.field(default_factory=lambda: list(get_args(OnCheckpoints)))
    folders: int = 1000
    factorised: list[int] = dataclasses.field(default_factory=lambda: [50_000, 1024])
    rows: int = 250_000
    width: int = 4096
    dtype: Literal["F32", "F16", "BF16"] = "BF16"
    repeats: int = 1
    out: str = "runs/bench/checkpoints"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        super().check()
        if not self.commands:
            raise BadInput(f"--commands: some of {', '.join(get_args(OnCheckpoints))}, got none")
        checks.check_counts(self, ("folders", "rows", "width", "repeats"))
        if len(self.factorised) != 2 or min(self.factorised) < 2:
            raise BadInput(f"--factorised: two numbers, rows and columns, each at least 2; got {self.factorised}")

    @property
    def largest(self) -> list[Any]:
        return []
