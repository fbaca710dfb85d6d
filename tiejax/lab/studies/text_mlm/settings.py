"""The settings of the text study: masked-LM pre-training, tied and untied."""

from typing import Literal

from tiejax.lab.settings import checks, shared
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.sizes import check_most
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.text_mlm import sizes
from tiejax.statistics.arms import ARMS
from tiejax.system.processors import cores
from tiejax.text import twins as planting
from tiejax.tying.policies import Policy

EQUAL = "untied-equal"  # the arm of untied models that start from equal tables


def default_twins() -> dict[str, list[str]]:
    """Split the common words into two sets of about equal frequency: alternate words get ordinary and conflict twins."""
    words = [word.lower() for word in planting.COMMON_WORDS]
    return {"0.5": words[0::2], "0.1": words[1::2]}


@shared.with_defaults(seeds=2, out="runs/text_mlm")
class Settings(
    shared.UntieSettings,
    shared.TieSettings,
    shared.ScheduleSettings,
    shared.PrecisionSettings,
    shared.AttentionSettings,
    shared.EncoderSettings,
    shared.TextSettings,
    shared.RunSettings,
):
    """Masked-LM pre-training on text, tied against untied.

    Args:
        tokenizer: vocab.txt of a BERT WordPiece, a tokenizer.json, or a name on the Hugging Face Hub (default: WordPiece
            trained on the corpus)
        max_length: maximum number of tokens in a sentence, [CLS] and [SEP] included; longer ones are cut. Also the length of a
            packed row
        min_length: minimum number of tokens in a sentence; shorter ones are dropped. With --rows_are_sentences, 2 drops none
        rows_are_sentences: treat every row of a data set, or line of a file, as one sentence, as published, instead of
            splitting the text into sentences
        twins: words that get a twin, a new token of the same meaning: mapping from the probability with which the twin replaces
            the word to a list of words. At .5 the distributional hypothesis holds, otherwise it fails (default: 100 common
            words, alternately at .5 and .1). In YAML, quote "on" and "no"
        missing_words: for a word of --twins that is not in the vocabulary, plant no twin (leave_out) or a twin of [UNK]
            (as_unknown)
        identical_layers: initialise all layers as copies of one layer, as PyTorch does
        embedding_std: standard deviation of the initial embeddings
        positions: positional embeddings: none, as published, or learned
        layer_norm: layer normalisation after each sublayer (post) or before it (pre)
        head_bias: add a bias to the logits, in all arms; it starts at 0
        table_rate: factor of the learning rate of the tables
        equal_tables_arm: also train untied models whose two tables start equal to the tied one, so that the effect of the tie
            is told apart from that of its starting point
        untie_at: instead of comparing tied with untied models, train tied models that are untied at each of these points: steps
            (integers) or fractions of the run (with a decimal point, such as .5). Models that are never tied and models that
            are always tied are added
        untie_policy: optimizer state of the table that is split off: copy (the state of the shared table), zero (zero moments
            and step count, so that bias correction restarts), zero-keep-count (zero moments, the step count continues) or split
            (the moments of the gradients from the table's own use)
        untie_new: which table is split off, and so gets the new optimizer state; only matters for zero and zero-keep-count
        compute_dtype: dtype of the encoder and of the matrix product of the logits; parameters and losses stay in float32
        rematerialise: recompute each layer in the backward pass, for deep encoders
        steps: training steps (default: 1,500 unless --epochs is given)
        epochs: passes over the training sentences, instead of --steps
        epochs_apart: start every epoch with a new batch, as published: the last batch of an epoch holds the remaining
            sentences, and steps between records and validations count from the start of the epoch. Otherwise a batch may hold
            the end of one epoch and the beginning of the next. Needs --packing padded
        batch_size: sentences per step; when packed, on average, since a step takes a fixed number of rows
        packing: packed fills rows with whole sentences that do not attend to each other; padded, as published, gives each
            sentence a row
        half_period: steps from the maximum to the minimum of the cosine schedule (default: all steps)
        record_every: steps between records, the measurements during training: distances and training loss
        validate_every: steps between validations, or epoch: after every epoch, which needs --epochs_apart true
        validation_batches: batches per validation, with the same sentences every time but newly drawn twins and masks; or all,
            for the whole split
        gate: claims are tested only if the tied and the untied models both end, on average over seeds, this many nats below the
            best of three bigram models of the sentences that a seed reads, of the token on the left, on the right, and both; a
            negative number allows losses above it. With --resume, it may change (default: .1; without --corpus there is no such
            condition)
        mesh: number of devices that train one member together; its rows, parameters and optimizer state are sharded over them
            (default: as many as the seeds leave idle; on CPUs 1, since collectives between CPU devices can deadlock). Affects
            results only through rounding and through the values that dropout drops. For initialisation and checkpoints a
            member must still fit on one device
    """

    max_length: int = 128
    min_length: int = 4
    rows_are_sentences: bool = False
    twins: dict[str, list[str]] | None = None
    missing_words: Literal["leave_out", "as_unknown"] = "leave_out"
    feed_forward: int = 512
    identical_layers: bool = True
    embedding_std: float = 0.3
    positions: Literal["none", "learned"] = "none"
    layer_norm: Literal["post", "pre"] = "post"
    head_bias: bool = False
    table_rate: float = 1.0
    equal_tables_arm: bool = False
    untie_policy: Policy = "copy"
    untie_new: Literal["input", "output"] = "output"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    rematerialise: bool = False
    steps: int | None = None
    epochs: float | None = None
    epochs_apart: bool = False
    batch_size: int = 32
    packing: Literal["packed", "padded"] = "packed"
    record_every: int = 25
    validate_every: int | Literal["epoch"] = 250
    validation_batches: int | Literal["all"] = 16
    gate: float | None = None
    mesh: int | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        if self.steps is not None and self.epochs is not None:
            raise BadInput("--steps and --epochs: give one of them")
        steps = 1500 if self.epochs is None else None
        return self.filled(steps=steps, twins=default_twins(), gate=0.1 if self.corpus else None)

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        self._check_twins()
        super().check()
        checks.check_counts(self, ("batch_size", "steps", "record_every", "validate_every", "validation_batches", "mesh"))
        checks.check_not_negative(self, ("embedding_std",))
        checks.check_positive(self, ("epochs", "table_rate"))
        check_most("epochs", self.epochs or 0)
        checks.check_lengths(self, 4096, shortest=2 if self.rows_are_sentences else 3)
        if self.equal_tables_arm and self.untie_at is not None:
            raise BadInput(
                "--equal_tables_arm: expected false with --untie_at, which trains models from equal tables anyway; got true"
            )
        if self.epochs_apart and self.packing != "padded":
            raise BadInput("--epochs_apart: needs --packing padded, since packed epochs differ in their number of rows")
        if self.validate_every == "epoch" and not self.epochs_apart:
            raise BadInput("--validate_every epoch: needs --epochs_apart true; otherwise a step may belong to two epochs")

    def _check_twins(self) -> None:
        spelled: dict[float, str] = {}  # probability -> the user's spelling
        if not self.twins:
            raise BadInput("--twins: expected at least one set, such as {.5: [the, be]}")
        for probability, words in self.twins.items():
            try:
                value = float(probability)
            except ValueError:
                raise BadInput(
                    f"--twins: expected sets such as {{.5: [the, be]}}, got the probability {probability[:80]!r}"
                ) from None
            if not 0 < value < 1:
                raise BadInput(f"--twins: expected probabilities between 0 and 1, got {probability[:80]}")
            if value in spelled:
                raise BadInput(f"--twins: expected one set per probability; {spelled[value]} and {probability} are equal")
            spelled[value] = probability
            if not words:
                raise BadInput(f"--twins: the set at {probability} has no words")

    @property
    def compared(self) -> tuple[str, ...]:
        """The names of the arms of a run without `untie_at`."""
        return (*ARMS, EQUAL) if self.equal_tables_arm else ARMS

    @property
    def sets(self) -> dict[float, list[str]]:
        """The words of each set of twins, by the probability of the twin."""
        return {float(probability): words for probability, words in (self.twins or {}).items()}


STUDY = Study(
    "text_mlm",
    Settings,
    CommandLine(
        description="Train tied and untied masked language models on text in which common words have planted twins (new tokens "
        "of the same meaning); measure how the embeddings of twins and of unrelated words move; write paired statistics, "
        "figures and a report into a run directory.",
        example="Example: PROGRAM --corpus novels/ --seeds 4 --steps 3000. The published settings and others are available by "
        "name, such as --config text_mlm/published. Prepared text is cached. An interrupted run continues with the same "
        "command and --resume.",
        switches=SWITCHES,
        first=("corpus", "tokenizer", "seeds", "steps", "twins", "resume", "overwrite", "out"),
        configurations="text_mlm",
    ),
    run="tiejax.lab.studies.text_mlm.study:run",
    sizes=sizes,
    prepare="tiejax.lab.studies.text_mlm.text:prepare",
    may_change=("checkpoint_every", "data_dir", "gate", "mesh", "tracker"),
    adds=("gate",),
    # One device per core is faster if the members divide evenly among the cores, otherwise one device that uses all cores.
    device_a_core=lambda settings: settings.mesh is not None or len(settings.seed_list) % cores() == 0,
)
