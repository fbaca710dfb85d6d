"""Settings that studies share: declared, documented and checked here once, and flat in every study's flags and YAML files.

A study's settings inherit the parts that it needs. Where it starts from another default it says so by `with_defaults`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar, dataclass_transform

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def with_defaults(**defaults: Any) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a frozen dataclass, with other defaults for fields that it inherits."""

    def make(kind: type[T]) -> type[T]:
        inherited = {name: field.type for base in reversed(kind.__mro__) for name, field in _fields(base).items()}
        for name, value in defaults.items():
            kind.__annotations__[name] = inherited[name]
            setattr(kind, name, value)
        return dataclasses.dataclass(frozen=True)(kind)

    return make


def _fields(kind: type) -> dict[str, Any]:
    return getattr(kind, "__dataclass_fields__", {})


class Settings:
    """What every part can be asked: to check itself, after the parts that it is made of."""

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""


@dataclasses.dataclass(frozen=True)
class RunSettings(Settings):
    """Which seeds are trained, and where the run is kept.

    Args:
        seeds: how many (0, 1, ...), or a list of them, as [3,7,11]
        checkpoint_every: seconds between checkpoints
        out: the run directory
    """

    seeds: int | list[int] = 1
    checkpoint_every: float = 30.0
    out: str | None = None

    def check(self) -> None:
        super().check()
        checks.check_seeds(self.seeds)
        checks.check_positive(self, ("checkpoint_every",))
        if not self.out:
            raise BadInput("--out: must name a directory, got nothing")

    @property
    def seed_list(self) -> list[int]:
        """The seeds, one by one."""
        return checks.seed_list(self.seeds)

    @property
    def number_of_seeds(self) -> int:
        """How many there are."""
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)


@dataclasses.dataclass(frozen=True)
class TextSettings(Settings):
    """What text is trained on, and in which tokens.

    Args:
        corpus: text files, folders of them, .gz, or tfds:NAME for a TFDS data set with a text feature (default: the prose that
            CPython carries: its documentation topics and the docstrings of its standard library)
        text_feature: which text feature of a TFDS data set, where it has several
        tfds_dir: where TFDS keeps its data sets (default: its own)
        data_dir: where prepared text and trained vocabularies are kept (default: tiejax in the user's cache)
        tokenizer: a tokenizer of your own (default: one trained on the corpus)
        vocab_size: tokens of the trained vocabulary
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    text_feature: str | None = None
    tfds_dir: str | None = None
    data_dir: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 8192

    def check(self) -> None:
        super().check()
        checks.check_counts(self, ("vocab_size",))


@dataclasses.dataclass(frozen=True)
class EncoderSettings(Settings):
    """The shape of the encoder.

    Args:
        layers: number of layers
        width: width of embeddings and hidden states
        heads: attention heads
        feed_forward: width of the feed-forward layer
        activation: of the feed-forward layer
        dropout: probability of dropping a hidden value in training
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
        checks.check_model(self)


@dataclasses.dataclass(frozen=True)
class PrecisionSettings(Settings):
    """In how many bits models are trained.

    Args:
        matmul_precision: of the products of float32 in training, on accelerators: highest (float32), high (tensorfloat32, or
            three products of bfloat16), default (the fewest that the device has), or bfloat16 (factors rounded to it, sums in
            float32); weights and moments stay in float32, and whatever is measured is computed in float32
    """

    matmul_precision: Literal["highest", "high", "default", "bfloat16"] = "highest"


@dataclasses.dataclass(frozen=True)
class TieSettings(Settings):
    """What trains the tied table.

    Args:
        gradient_weights: how much of the gradient of its input use and of its output use the tied table takes, as [1,.5]
            (default: all of both)
    """

    gradient_weights: list[float] | None = None

    def check(self) -> None:
        super().check()
        weights = self.gradient_weights
        if weights is not None and not (len(weights) == 2 and all(math.isfinite(weight) and weight >= 0 for weight in weights)):
            raise BadInput(f"--gradient_weights: must be two finite numbers, not negative, as [1,.5], got {weights}")

    @property
    def tie_gradient(self) -> Literal["all"] | tuple[float, float]:
        """The weights as a `Tie` takes them."""
        return "all" if self.gradient_weights is None else (self.gradient_weights[0], self.gradient_weights[1])


@dataclasses.dataclass(frozen=True)
class AttentionSettings(Settings):
    """What is dropped of attention; for studies that have a field `dropout`.

    Args:
        attention_dropout: probability of dropping an attention weight (default: as --dropout). Fused attention, on NVIDIA GPUs
            in bfloat16, drops none: with 0 it is used, and all other dropout stays
    """

    attention_dropout: float | None = None

    def check(self) -> None:
        super().check()
        if self.attention_dropout is not None:
            checks.check_shares(self, ("attention_dropout",))


@dataclasses.dataclass(frozen=True)
class AdamSettings(Settings):
    """How parameters are updated.

    Args:
        learning_rate: the largest learning rate
        weight_decay: of every parameter
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.01

    def check(self) -> None:
        super().check()
        checks.check_not_negative(self, ("learning_rate", "weight_decay"))


@dataclasses.dataclass(frozen=True)
class ScheduleSettings(AdamSettings):
    """How parameters are updated, and at which rate over training.

    Args:
        optimizer: adamw (decoupled weight decay) or adam (decay added to the gradient)
        schedule: cosine (down to the minimum and up again, never clamped) or constant
        minimum_learning_rate: the smallest learning rate of the cosine
        half_period: steps from the largest to the smallest rate
        eps: of the optimizer
    """

    optimizer: Literal["adamw", "adam"] = "adamw"
    schedule: Literal["cosine", "constant"] = "cosine"
    minimum_learning_rate: float = 1e-5
    half_period: int | None = None
    eps: float = 1e-12

    def check(self) -> None:
        super().check()
        checks.check_not_negative(self, ("minimum_learning_rate", "eps"))
        checks.check_counts(self, ("half_period",))
        checks.check_schedule(self)


@dataclasses.dataclass(frozen=True)
class UntieSettings(Settings):
    """Where tied members untie; for studies that have a field `steps`.

    Args:
        untie_at: where tied members untie: steps (whole numbers) or fractions of the run (with a point, as .5). Never and
            always tied ones are always among the members
    """

    untie_at: list[int | float] | None = None

    def check(self) -> None:
        super().check()
        checks.check_untie_at(self)
