"""What may be asked of a run on text."""

import dataclasses
from typing import Literal

from tiejax.lab.runs.environment import cores
from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import (
    AttentionSettings,
    EncoderSettings,
    PrecisionSettings,
    RunSettings,
    ScheduleSettings,
    TextSettings,
    TieSettings,
    UntieSettings,
    with_defaults,
)
from tiejax.lab.settings.sizes import check_most
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.text import twins as planting
from tiejax.tying.policies import Policy


def default_twins() -> dict[str, list[str]]:
    """Return the common words in two sets of equal frequency: every other one a conflict twin."""
    words = [word.lower() for word in planting.COMMON_WORDS]
    return {"0.5": words[0::2], "0.1": words[1::2]}


@with_defaults(seeds=2, out="runs/text_mlm")
class Settings(
    UntieSettings,
    TieSettings,
    ScheduleSettings,
    PrecisionSettings,
    AttentionSettings,
    EncoderSettings,
    TextSettings,
    RunSettings,
):
    """Masked-LM pre-training on text, tied against untied.

    Args:
        tokenizer: vocab.txt of a BERT WordPiece, a tokenizer.json, or a name on the hub (default: WordPiece trained on the
            corpus)
        max_length: tokens to which a sentence is cut, [CLS] and [SEP] included; also the length of a packed row
        min_length: sentences of fewer tokens are left out; where rows are sentences, 2 leaves out none
        rows_are_sentences: take every row of a data set, or line of a file, as one sentence, as published, instead of splitting
            the text into sentences
        twins: sets of twins, probability of the twin -> words; at .5 the distributional hypothesis holds, at any other it fails
            (default: every other of the 100 common words at .5, the others at .1); YAML wants quotes around "on" and "no"
        missing_words: what becomes of a twin whose word is not in the vocabulary: leave_out, or as_unknown, a twin of [UNK]
        identical_layers: start all layers as copies of one, as torch does
        embedding_std: standard deviation of the embeddings at the start
        positions: none as published, or learned positional embeddings
        layer_norm: after each sublayer (post) or before it (pre)
        untie_at: instead of tied against untied, train members that are tied and untie at each of these: steps (whole numbers)
            or fractions of the run (with a point, as .5); never and always tied ones are always among them
        untie_policy: what the optimizer remembers of the table that leaves: copy (all), zero (nothing, its bias correction
            restarts), zero-keep-count (no moments, the step count goes on), split (the moments of its own use's gradients)
        untie_new: which table leaves, where that makes a difference (zero, zero-keep-count)
        compute_dtype: of the encoder and the logits' product; parameters and losses stay in float32
        rematerialise: recompute each layer in the backward pass, for deep encoders
        steps: training steps
        epochs: instead of steps, how often every sentence is visited
        epochs_apart: begin every epoch with a step of its own, as published: the last batch of an epoch has the sentences that
            are left, and the steps between records and validations are counted from the start of the epoch. Otherwise a
            batch may hold the end of one epoch and the beginning of the next. Needs --packing padded
        batch_size: sentences a step; packed, on average, since a step takes a fixed number of rows
        packing: packed fills rows with whole sentences that do not see each other; padded, as published, gives each its own row
        half_period: steps from the largest to the smallest rate (default: all steps)
        record_every: steps between records of distances, norms and training loss
        validate_every: steps between validations; or epoch, after every epoch, which needs --epochs_apart true
        validation_batches: batches of one validation, of the same sentences with twins and masks drawn afresh; or all, for the
            whole split
        mesh: devices that train one member together, its rows, parameters and optimizer state split over them (default: as many
            as the seeds leave without work). Changes results by no more than rounding, and which values dropout drops. At the
            start and for checkpoints a member still passes through one device
        tensorboard: also write TensorBoard event files, to events/ in the run directory
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
    mesh: int | None = None
    tensorboard: bool = False

    def resolved(self) -> "Settings":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
        if self.steps is not None and self.epochs is not None:
            raise BadInput("--steps and --epochs: give one of them")
        fields = dataclasses.asdict(self)
        if self.steps is None and self.epochs is None:
            fields["steps"] = 1500
        if self.data_dir is None:
            fields["data_dir"] = checks.default_data_dir()
        if self.twins is None:
            fields["twins"] = default_twins()
        settings = Settings(**fields)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise BadInput, naming the option, if a resolved configuration cannot be run."""
        self._check_twins()
        super().check()
        checks.check_counts(self, ("batch_size", "steps", "record_every", "validate_every", "validation_batches", "mesh"))
        checks.check_not_negative(self, ("embedding_std",))
        checks.check_positive(self, ("epochs",))
        check_most("epochs", self.epochs or 0)
        checks.check_lengths(self, 4096, shortest=2 if self.rows_are_sentences else 3)
        if self.epochs_apart and self.packing != "padded":
            raise BadInput("--epochs_apart: needs --packing padded, since packed epochs differ in their number of rows")
        if self.validate_every == "epoch" and not self.epochs_apart:
            raise BadInput("--validate_every epoch: needs --epochs_apart true, or a step may belong to two epochs")

    def _check_twins(self) -> None:
        spelled: dict[float, str] = {}  # probability -> as it was written
        if not self.twins:
            raise BadInput("--twins: needs at least one set, as {.5: [the, be]}")
        for probability, words in self.twins.items():
            try:
                value = float(probability)
            except ValueError:
                raise BadInput(f"--twins: must be sets as {{.5: [the, be]}}, {probability!r} is no probability") from None
            if not 0 < value < 1:
                raise BadInput(f"--twins: a twin's probability must lie between 0 and 1, got {probability}")
            if value in spelled:
                raise BadInput(f"--twins: one set for each probability, {spelled[value]} and {probability} are one")
            spelled[value] = probability
            if not words:
                raise BadInput(f"--twins: the set at {probability} has no word")

    @property
    def sets(self) -> dict[float, list[str]]:
        """The sets of twins, by probability."""
        return {float(probability): words for probability, words in (self.twins or {}).items()}


STUDY = Study(
    "text_mlm",
    Settings,
    CommandLine(
        description="Train tied and untied masked language models on text in which common words have planted twins, and report "
        "how twins and unrelated words move, with paired statistics, figures and a report in a run directory.",
        example="Example: PROGRAM --corpus novels/ --seeds 4 --steps 3000. Settings, the published ones "
        "among them, come by name, as --config text_mlm/published. Text is prepared once and found again. A run that was "
        "interrupted goes on with the same command and --resume.",
        switches=SWITCHES,
        first=("corpus", "tokenizer", "seeds", "steps", "twins", "resume", "overwrite", "out"),
        configurations="text_mlm",
    ),
    module="tiejax.lab.studies.text_mlm.study",
    sizes="tiejax.lab.studies.text_mlm.sizes",
    preparation="tiejax.lab.studies.text_mlm.text",
    may_change=("checkpoint_every", "data_dir", "mesh"),
    # One device a core is faster where members can be dealt out evenly, one device over all cores where they cannot.
    device_a_core=lambda settings: settings.mesh is not None or len(settings.seed_list) % cores() == 0,
    huge_pages=True,
)
