"""Settings that several studies share, each declared, documented and checked once.

The settings of a study inherit the groups that it needs, so that its flags and YAML keys are flat; `with_defaults` changes
defaults.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, dataclass_transform

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput
from tiejax.system.visible import cut
from tiejax.training.choices import OptimizerName, Precision, ScheduleName

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def with_defaults(**defaults: Any) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a frozen dataclass and changes the defaults of inherited fields."""

    def make(kind: type[T]) -> type[T]:
        inherited: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            inherited |= getattr(base, "__dataclass_fields__", {})
        for name, value in defaults.items():
            kind.__annotations__[name] = inherited[name].type
            setattr(kind, name, value)
        return dataclasses.dataclass(frozen=True)(kind)

    return make


class Settings:
    """Base class of groups of settings; `check` runs the checks of every group that a class inherits."""

    def check(self) -> None:
        """Raise BadInput, which names the option, if resolved settings are invalid."""

    def filled(self: T, **defaults: Any) -> T:
        """Return the settings with these defaults in place of None, checked."""
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        settings: T = dataclasses.replace(self, **missing)  # type: ignore[type-var]
        settings.check()  # type: ignore[attr-defined]
        return settings


@dataclasses.dataclass(frozen=True)
class RunSettings(Settings):
    """Seeds and run directory.

    Args:
        seeds: number of random seeds (0, 1, ...), a list such as [3,7,11], or a range such as 1000-1255; each seed trains one
            model (a member) in every arm, such as tied and untied
        checkpoint_every: seconds between checkpoints
        out: run directory, which holds the run's settings, checkpoints, results and report
        tracker: show the numbers of the run while it trains in TensorBoard (event files in events/ of the run directory),
            or Weights & Biases (pip install wandb). Affects no result
    """

    seeds: int | list[int] = 1
    checkpoint_every: float = 30.0
    out: str | None = None
    tracker: Literal["none", "tensorboard", "wandb"] = "none"

    def check(self) -> None:
        super().check()
        checks.check_seeds(self.seeds)
        checks.check_positive(self, ("checkpoint_every",))
        if not self.out:
            raise BadInput("--out: expected a directory, got ''")
        checks.check_utf8(self, ("out",))

    @property
    def seed_list(self) -> list[int]:
        """The seeds as a list."""
        return checks.seed_list(self.seeds)

    @property
    def number_of_seeds(self) -> int:
        """The number of seeds."""
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)


@dataclasses.dataclass(frozen=True)
class LookSettings(RunSettings):
    """Seeds that may be appended to a run, or are added until the claims are decided.

    Args:
        seeds: number of random seeds (0, 1, ...), a list such as [3,7,11], or a range such as 1000-1255; each seed trains one
            model (a member) in every arm, such as tied and untied (default: 32). With --resume, a longer list that begins with
            the seeds of the run, or a larger number, trains only the seeds that are appended: the records are those of a run of
            all seeds, bit for bit if old and new seeds fill blocks of the same size on the devices, else to rounding
            (docs/run_directory.md)
        until: decided adds seeds until every registered claim is decided: the seeds of the first look are trained, the claims
            tested, then the seeds of the next look trained, at most up to --max_seeds. Looks are at 64, 128, 256, 512 and 1024
            seeds and at --max_seeds, each with an equal share of .05. Seeds are 0, 1, ..., or the first of the list --seeds
        max_seeds: largest number of seeds with --until decided (default: the number of seeds in the list --seeds)
    """

    # Not annotated: they are no settings.
    SEEDS = 32
    LOOKS = (64, 128, 256, 512, 1024)

    # None: 32, or those of the looks.
    seeds: int | list[int] | None = None  # type: ignore[assignment]
    until: Literal["decided"] | None = None
    max_seeds: int | None = None

    @property
    def looks(self) -> list[int]:
        """The numbers of seeds at which the claims of resolved settings are planned to be tested; none without `until`."""
        return [] if self.until is None else checks.looks_up_to(self.LOOKS, self.number_of_seeds)

    def of_seeds(self: T, seeds: list[int]) -> T:
        """Return resolved settings for these seeds only."""
        return dataclasses.replace(self, seeds=seeds, until=None, max_seeds=None)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class TextSettings(Settings):
    """Training text and tokenizer.

    Args:
        corpus: text files or folders of text files (also .gz), or tfds:NAME for a TFDS data set with a text feature (default:
            the English text in Python itself: its documentation topics and the docstrings of its standard library)
        text_feature: name of the text feature, for a TFDS data set with several
        tfds_dir: folder of TFDS data sets (default: the default folder of TFDS)
        data_dir: folder for prepared text and trained vocabularies (default: tiejax in the user's cache folder)
        tokenizer: your tokenizer (default: a tokenizer trained on the corpus)
        vocab_size: number of tokens in a trained vocabulary
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    text_feature: str | None = None
    tfds_dir: str | None = None
    data_dir: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 8192

    def filled(self: T, **defaults: Any) -> T:
        if self.data_dir is None:  # type: ignore[attr-defined]
            defaults |= {"data_dir": checks.default_data_dir()}
        return super().filled(**defaults)

    def check(self) -> None:
        super().check()
        checks.check_counts(self, ("vocab_size",))
        checks.check_utf8(self, ("data_dir", "tfds_dir"))


@dataclasses.dataclass(frozen=True)
class EncoderSettings(Settings):
    """Shape of the encoder.

    Args:
        layers: number of layers
        width: width of embeddings and hidden states
        heads: number of attention heads
        feed_forward: width of the feed-forward layer
        activation: activation function of the feed-forward layer
        dropout: dropout rate of hidden values in training
    """

    layers: int = 3
    width: int = 128
    heads: int = 4
    feed_forward: int | None = None
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"
    dropout: float = 0.0

    def check(self) -> None:
        super().check()
        checks.check_counts(self, ("layers", "width", "heads", "feed_forward"))
        checks.check_shares(self, ("dropout",))
        checks.check_heads(self)


@dataclasses.dataclass(frozen=True)
class PrecisionSettings(Settings):
    """Precision of training.

    Args:
        matmul_precision: precision of float32 matrix products in training on accelerators: highest (float32), high
            (tensorfloat32, or three bfloat16 products), default (the fastest that the device offers), or bfloat16 (inputs
            rounded to bfloat16, sums in float32). Weights, moments and measurements are always float32
    """

    matmul_precision: Precision = "highest"


@dataclasses.dataclass(frozen=True)
class TieSettings(Settings):
    """Gradients of the tied table.

    Args:
        gradient_weights: weights of the two gradients of the tied table, from its use as input embedding and from its use as
            output embedding, such as [1,.5] (default: both 1). With adamw and without --max_norm only their ratio matters:
            [4,1], [1,.25] and [1.6,.4] train equal models, since Adam's steps do not depend on the scale of a gradient
    """

    gradient_weights: list[float] | None = None

    def check(self) -> None:
        super().check()
        weights = self.gradient_weights
        if weights is not None and not (len(weights) == 2 and all(math.isfinite(weight) and weight >= 0 for weight in weights)):
            raise BadInput(f"--gradient_weights: expected two finite numbers >= 0, such as [1,.5], got {cut(weights)}")

    @property
    def tie_gradient(self) -> Literal["all"] | tuple[float, float]:
        """The weights as the argument `gradient` of `Tie`."""
        return "all" if self.gradient_weights is None else (self.gradient_weights[0], self.gradient_weights[1])


@dataclasses.dataclass(frozen=True)
class AttentionSettings(Settings):
    """Dropout of attention weights, for studies with a setting `dropout`.

    Args:
        attention_dropout: dropout rate of attention weights in training (default: that of --dropout). 0 allows fused attention,
            on NVIDIA GPUs in bfloat16, and does not change other dropout
    """

    attention_dropout: float | None = None

    def check(self) -> None:
        super().check()
        checks.check_shares(self, ("attention_dropout",))


@dataclasses.dataclass(frozen=True)
class AdamSettings(Settings):
    """Optimizer.

    Args:
        learning_rate: maximum learning rate
        weight_decay: weight decay, applied to all parameters
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01

    def check(self) -> None:
        super().check()
        checks.check_not_negative(self, ("learning_rate", "weight_decay"))


@dataclasses.dataclass(frozen=True)
class ScheduleSettings(AdamSettings):
    """Optimizer and learning-rate schedule.

    Args:
        optimizer: adamw (decoupled weight decay) or adam (weight decay added to the gradient)
        schedule: cosine (down to the minimum and up again, periodically) or constant
        minimum_learning_rate: minimum learning rate of the cosine schedule
        half_period: steps from the maximum to the minimum of the cosine schedule
        eps: epsilon of the optimizer
    """

    optimizer: OptimizerName = "adamw"
    schedule: ScheduleName = "cosine"
    minimum_learning_rate: float = 1e-5
    half_period: int | None = None
    eps: float = 1e-12

    def check(self) -> None:
        super().check()
        checks.check_not_negative(self, ("minimum_learning_rate", "eps"))
        checks.check_counts(self, ("half_period",))
        if self.schedule == "cosine" and self.minimum_learning_rate > self.learning_rate:
            above = f"{self.minimum_learning_rate} is above --learning_rate {self.learning_rate}"
            raise BadInput(f"--minimum_learning_rate: {above}")


@dataclasses.dataclass(frozen=True)
class UntieSettings(Settings):
    """The points at which tied members are untied, for studies with a setting `steps`.

    Args:
        untie_at: steps (integers) or fractions of the run (with a decimal point, such as .5) at which tied members are untied.
            Members that are never tied and members that are always tied are trained as well
    """

    untie_at: list[int | float] | None = None

    def check(self) -> None:
        super().check()
        checks.check_untie_at(self)
