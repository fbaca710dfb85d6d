"""The settings of the study of embedding shapes."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import AdamSettings, PrecisionSettings, RunSettings, TextSettings, with_defaults
from tiejax.lab.settings.sizes import check_most, check_places, most_of
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.embedding_coupling import sizes
from tiejax.models.shapes import POSITIONS, STD, Shape
from tiejax.system.processors import cores
from tiejax.system.visible import cut
from tiejax.transfer.read import has_columns

# Small enough for two cores. A small E_in saves about as many parameters as all layers have, as in the paper.
DEFAULT_SHAPES = {
    "coupled": Shape(64, 64, 64, 3, 4, coupled=True),
    "decoupled": Shape(64, 64, 64, 3, 4),
    "big-in": Shape(64, 16, 64, 3, 4),
    "out-16": Shape(16, 16, 64, 3, 4),
    "out-64": Shape(16, 64, 64, 3, 4),
    "out-256": Shape(16, 256, 64, 3, 4),
    "dropped-3": Shape(16, 16, 64, 6, 4, drop=3),
    "wide-88": Shape(16, 64, 88, 3, 4),
    "deep-6": Shape(16, 64, 64, 6, 4),
}
SHAPE_FIELDS = tuple(field.name for field in dataclasses.fields(Shape))
TASK_FIELDS = ("train", "development", "test", "text", "label", "examples")
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)  # of fine-tuning; the best one should lie inside
FIRST_TUNING_SEED = 1000


@with_defaults(seeds=2, vocab_size=3072, learning_rate=3e-3, out="runs/embedding_coupling")
class Settings(AdamSettings, PrecisionSettings, TextSettings, RunSettings):
    """Pre-train, fine-tune and probe encoders with input and output embeddings of different shapes.

    Args:
        tokenizer: vocab.txt of a BERT WordPiece, a tokenizer.json, or a name on the Hugging Face Hub (default: a unigram
            vocabulary trained on the corpus)
        languages: a corpus for each language, instead of --corpus, such as {en: [novels/], de: [romane/]}; languages are
            sampled according to --language_exponent, and share one vocabulary
        language_exponent: a language with n sentences is sampled in proportion to n to this power
        cipher: add an artificial second language: every ordinary token has a twin, and half of the sentences are written in
            twins
        shapes: encoder shapes to compare, as a mapping from names to {embed_in, embed_out, width, layers, heads, coupled,
            drop}; feed-forward layers are four times as wide as the encoder, and the top `drop` layers are dropped after
            pre-training (default: nine small shapes)
        baseline: shape whose score on development must be above that of its control (default: the first)
        max_length: number of tokens in a row; longer sentences are cut
        min_length: minimum number of tokens in a sentence; shorter ones are dropped
        batch_rows: number of rows per pre-training step, filled with whole sentences
        steps: pre-training steps
        warm_up: number of steps over which the learning rate rises; afterwards it decays to 0
        eps: epsilon of AdamW
        clip: maximum global norm of the gradient
        kernel_std: standard deviation of the initial kernels. The default is BERT's, for a width of 768; at a width of H,
            sqrt(768 / H) times as much keeps the variance of their outputs
        compute_dtype: dtype of the encoder and of the matrix product of the logits; parameters and losses stay in float32
        rematerialise: recompute each layer in the backward pass, for deep encoders
        record_every: steps between records of the training loss
        validate_every: steps between validations
        validation_batches: batches per validation
        gate: the run ends before its first fine-tuning unless the tuning seeds of every shape end, on average, this many nats
            below the best of three bigram models of the sentences that pre-training reads, of the token on the left, on the
            right, and both; claims are tested only if the reported seeds do so too. A negative number allows losses above it.
            With --resume, it may change (default: .1; without --corpus and --languages there is no such condition)
        tasks: tasks for fine-tuning and probes, as a mapping from names to {train, development, test, text, label, examples}.
            CoNLL-U files are for tagging (UPOS); CSV, TSV and JSON lines with columns text and label, several files of one
            class each, and tfds:NAME are for classification. Without development and test, train is split by hashes (default:
            predict which part of Python's documentation a sentence is from)
        examples: number of training sentences for tasks without `examples`
        fine_tuning_epochs: passes over the training sentences of a task
        fine_tuning_batch: sentences per fine-tuning step
        fine_tuning_rates: learning rates to try in fine-tuning; for each shape and task the best one on the development set is
            used. While it is the smallest or the largest, half or twice of it is tried as well, at most three times; a single
            rate is used as it is. Claims about scores at the smallest or largest rate that was tried stay undecided
        rate_seeds: number of additional seeds, from 1000 on, that are pre-trained to select learning rates and are not reported
        fine_tuning_seeds: number of reported fine-tuning runs per pre-trained encoder
        fine_tuning_dropout: dropout rate before the classifier; there is no dropout elsewhere
        pooling: classify a sentence by the mean of its hidden states (mean) or by that of [CLS] (first), as BERT does, although
            no pre-training objective here trains the [CLS] state
        drop_task: task on which encoders without their top layers are fine-tuned (default: the first task), or none
        layer_mix: train a linear probe on a learned mix of the frozen layers, on --drop_task
        parallel: two files with equally many sentences, for sentence retrieval by layer; with --cipher one file, paired with
            its cipher
        similarity: file of word pairs with human similarity judgements, in the format of the MEN data set
        start: fine-tune and probe a checkpoint folder of BERT, RemBERT, ALBERT or GPT-2, instead of pre-training shapes
        mesh: number of devices that train one member together (default: as many as the seeds leave idle; on CPUs 1, since
            collectives between CPU devices can deadlock). Affects results only through rounding and through the values that
            dropout drops
    """

    languages: dict[str, list[str]] | None = None
    language_exponent: float = 0.5
    cipher: bool = False
    shapes: dict[str, dict[str, Any]] | None = None
    baseline: str | None = None
    max_length: int = 64
    min_length: int = 4
    batch_rows: int = 32
    steps: int = 300
    warm_up: int = 50
    eps: float = 1e-6
    clip: float = 1.0
    kernel_std: float = STD
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    rematerialise: bool = False
    record_every: int = 25
    validate_every: int = 100
    validation_batches: int = 8
    gate: float | None = None
    tasks: dict[str, dict[str, Any]] | None = None
    examples: int = 1000
    fine_tuning_epochs: float = 5
    fine_tuning_batch: int = 32
    fine_tuning_rates: list[float] = dataclasses.field(default_factory=lambda: list(RATES))
    rate_seeds: int = 2
    fine_tuning_seeds: int = 1
    fine_tuning_dropout: float = 0.1
    pooling: Literal["mean", "first"] = "mean"
    drop_task: str | None = None
    layer_mix: bool = True
    parallel: list[str] = dataclasses.field(default_factory=list)
    similarity: str | None = None
    start: str | None = None
    mesh: int | None = None

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds that only select learning rates: the first ones from 1000 on that are not reported."""
        reported = set(self.seed_list)
        unused = (seed for seed in itertools.count(FIRST_TUNING_SEED) if seed not in reported)
        return list(itertools.islice(unused, self.rate_seeds))

    @property
    def trained_seeds(self) -> list[int]:
        """All seeds that are pre-trained: the reported ones, then those for tuning."""
        return self.seed_list + self.tuning_seeds

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        shapes, tasks = self.shapes, {"library": {}} if self.tasks is None else self.tasks
        if self.start is not None:
            for name in ("shapes", "languages", "corpus", "cipher"):  # a checkpoint already determines these
                if getattr(self, name):
                    raise BadInput(f"--start and --{name}: give one of them")
            shapes = {}
        elif shapes is None:
            shapes = {name: dataclasses.asdict(shape) for name, shape in DEFAULT_SHAPES.items()}
        return self.filled(
            shapes=shapes,
            tasks=tasks,
            baseline=next(iter(shapes), None),
            gate=0.1 if self.corpus or self.languages else None,
            drop_task=next(iter(tasks), None),
        )

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        super().check()
        checks.check_counts(
            self,
            ("batch_rows", "steps", "record_every", "validate_every", "validation_batches", "examples", "fine_tuning_batch",
             "rate_seeds", "fine_tuning_seeds", "mesh"),
        )  # fmt: skip
        checks.check_positive(self, ("fine_tuning_epochs", "clip", "eps", "kernel_std"))
        check_most("fine_tuning_epochs", self.fine_tuning_epochs)
        checks.check_lengths(self, POSITIONS)
        for name in ("batch_rows", "fine_tuning_batch"):
            check_places(name, getattr(self, name), self.max_length)
        if not 0 <= self.warm_up < self.steps:
            raise BadInput(f"--warm_up: expected an integer >= 0 and below --steps {self.steps}, got {self.warm_up}")
        if not 0 <= self.language_exponent <= 1:
            raise BadInput(f"--language_exponent: expected a number between 0 and 1, got {self.language_exponent}")
        checks.check_shares(self, ("fine_tuning_dropout",))
        if not self.fine_tuning_rates or not all(0 < rate < math.inf for rate in self.fine_tuning_rates):
            raise BadInput(f"--fine_tuning_rates: expected rates above 0, got {cut(self.fine_tuning_rates)}")
        if self.gate is not None and self.start is not None:
            raise BadInput("--gate: a checkpoint given with --start is not pre-trained here; leave --gate out")
        self._check_corpus()
        self._check_shapes_and_tasks()

    def _check_corpus(self) -> None:
        if self.languages is not None and self.corpus:
            raise BadInput("--corpus and --languages: give one of them")
        if self.languages is not None and (not self.languages or not all(self.languages.values())):
            raise BadInput("--languages: expected a corpus for each language, as {en: [novels/], de: [romane/]}")
        if len(self.parallel) not in ((0, 1) if self.cipher else (0, 2)):
            wanted = "one file, to be paired with its cipher" if self.cipher else "two files"
            raise BadInput(f"--parallel: expected {wanted}, got {len(self.parallel)}")

    def _check_shapes_and_tasks(self) -> None:
        if not self.shapes and self.start is None:
            raise BadInput("--shapes: expected at least one shape")
        _check_each("shapes", self.shapes or {}, _problem_of_shape)
        if self.shapes and self.baseline not in self.shapes:
            raise BadInput(f"--baseline: expected one of {cut(', '.join(self.shapes))}, got {cut(self.baseline)}")
        _check_each("tasks", self.tasks or {}, _problem_of_task)
        if not self.tasks:
            raise BadInput("--tasks: expected at least one task")
        if self.drop_task not in (*self.tasks, "none"):
            raise BadInput(f"--drop_task: expected one of {cut(', '.join(self.tasks))}, or none, got {cut(self.drop_task)}")

    @property
    def every_shape(self) -> dict[str, Shape]:
        """The shapes, by name."""
        return {name: Shape(**fields) for name, fields in (self.shapes or {}).items()}


def _check_each(option: str, entries: Mapping[str, dict[str, Any]], problem_of: Callable[[dict[str, Any]], str | None]) -> None:
    """Raise BadInput if a shape or a task has a problem, or a name that cannot be part of a file name."""
    for name, fields in entries.items():
        if problem := problem_of(fields):
            raise BadInput(f"--{option}: {cut(name)}: {problem}")
        if not name.replace("-", "").replace("_", "").isalnum():
            raise BadInput(f"--{option}: names may contain only letters, digits, - and _, got {cut(name)!r}")


def _problem_of_shape(fields: dict[str, Any]) -> str | None:
    """Return the first reason why the fields of a shape are invalid."""
    known = f"the fields of a shape are {', '.join(SHAPE_FIELDS)}"
    if unknown := [field for field in fields if field not in SHAPE_FIELDS]:
        return f"unknown field {cut(unknown[0])!r}; {known}"
    if missing := [field for field in SHAPE_FIELDS[:5] if field not in fields]:
        return f"{missing[0]} is missing; {known}"
    if wrong := [field for field, value in fields.items() if type(value) is not (bool if field == "coupled" else int)]:
        kind = "true or false" if wrong[0] == "coupled" else "a whole number"
        return f"{wrong[0]} must be {kind}, got {cut(fields[wrong[0]])}"
    if huge := [field for field in SHAPE_FIELDS[:5] if fields[field] > most_of(field)]:
        return f"{huge[0]} must be at most {most_of(huge[0]):,}, got {fields[huge[0]]}"
    return Shape(**fields).problem()


def _problem_of_task(fields: dict[str, Any]) -> str | None:
    """Return the first reason why the fields of a task are invalid."""
    if unknown := [field for field in fields if field not in TASK_FIELDS]:
        return f"unknown field {cut(unknown[0])!r}; the fields of a task are {', '.join(TASK_FIELDS)}"
    if type(fields.get("examples", 1)) is not int or fields.get("examples", 1) < 1:
        return f"examples must be an integer >= 1, got {cut(fields['examples'])}"
    if wrong := [split for split in TASK_FIELDS[:3] if split in fields and not _names_files(fields[split])]:
        return f"{wrong[0]} must be a file or a list of files, got {cut(fields[wrong[0]])}"
    if "train" not in fields and set(fields) - {"examples"}:
        return "train is missing: a file, several files of one class each, or tfds:NAME"
    files = [fields["train"]] if isinstance(fields.get("train"), str) else fields.get("train", [])
    if files and not has_columns(files[0]) and (named := [name for name in ("text", "label") if name in fields]):
        return (
            f"{named[0]} names a column of a table, JSON lines or tfds:NAME; leave it out: CoNLL-U is labelled by UPOS, text "
            "files by their names"
        )
    return None


def _names_files(value: Any) -> bool:
    """Return whether a field of a task is a file name or a list of file names."""
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) and name for name in names)


STUDY = Study(
    "embedding_coupling",
    Settings,
    CommandLine(
        description="Pre-train encoders whose input and output embeddings have different shapes, drop the output embeddings, "
        "fine-tune and probe the encoders, and compare the shapes; write paired statistics, figures and a report into a run "
        "directory (Chung et al., ICLR 2021).",
        example="Example: PROGRAM --corpus novels/ --seeds 10. The published settings and others are available by name, such "
        "as --config embedding_coupling/novels. An interrupted run continues with the same command and --resume.",
        switches=SWITCHES
        | {"count": "print the parameter counts of the paper's models next to the published numbers, and exit"},
        first=("corpus", "shapes", "tasks", "seeds", "steps", "start", "resume", "overwrite", "out"),
        configurations="embedding_coupling",
    ),
    run="tiejax.lab.studies.embedding_coupling.study:run",
    sizes=sizes,
    prepare="tiejax.lab.studies.embedding_coupling.preparation:prepare",
    may_change=("checkpoint_every", "data_dir", "gate", "mesh", "tracker"),
    adds=("gate",),
    single_process=True,
    # As for text_mlm: CPU devices share a member only if --mesh says so.
    device_a_core=lambda settings: settings.mesh is not None or len(settings.trained_seeds) % cores() == 0,
    answers={"count": "tiejax.lab.studies.embedding_coupling.sizes:answer"},
)
