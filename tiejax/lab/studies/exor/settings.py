"""Settings of an EXor run."""

import collections
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tiejax.lab.settings import checks, shared
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.exor import sizes
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, MAX_OUTCOMES, count_contexts, most_outcomes
from tiejax.lab.studies.exor.task import VARIANTS, EXor, train_size
from tiejax.models.presets import ARCHITECTURE_SETTINGS, PUBLISHED_MODELS, STEPS
from tiejax.system.visible import cut

TUNING_SEED = 2000  # the first seed that chooses learning rates
# Arm -> the settings in which it differs from the published ones, to find what the price of tying is made of.
ARM_SETTINGS: dict[str, dict[str, Any]] = {
    "published": {},
    "bias": {"output_bias": True},
    "asked": {"softmax": "asked"},
    "std": {"table_std": 0.5},
    "table-decay": {"table_decay": 0.0},
    "decay": {"weight_decay": 0.0},
    "fast-tables": {"table_rate": 2.0},
    "slow-tables": {"table_rate": 0.5},
    "shared": {"shared_second_moment": True},
    "equal": {"equal_tables": True},
    # AdamW depends on the ratio of the weights only, so that their scale needs no correction: these are all ratios but 1 of
    # weights among 1/4, 1 and 4.
    "input-4": {"gradient_weights": [4.0, 1.0]},
    "input-16": {"gradient_weights": [16.0, 1.0]},
    "output-4": {"gradient_weights": [1.0, 4.0]},
    "output-16": {"gradient_weights": [1.0, 16.0]},
}

# Setting -> its published value, and what another value means on a page.
CHANGES: dict[str, tuple[Any, str]] = {
    "output_bias": (False, "a trained bias of the logits"),
    "softmax": ("all", "logits normalised over the symbols that are ever asked for"),
    "table_std": (1.0, "initial tables with standard deviation {:g}"),
    "table_decay": (None, "weight decay {:g} of the tables"),
    "table_rate": (1.0, "learning rate of the tables multiplied by {:g}"),
    "shared_second_moment": (False, "Adam's second moment averaged over the rows of each table"),
    "equal_tables": (False, "untied models that start with two equal tables"),
}


@shared.with_defaults(checkpoint_every=20.0, weight_decay=0.1)
class Settings(
    shared.TieSettings, shared.ScheduleSettings, shared.PrecisionSettings, shared.EncoderSettings, shared.LookSettings
):
    """EXor, tied against untied.

    Args:
        variant: distribution over the spellings (symbols) of each bit. Published: main (bit 0: .1/.9, bit 1: .5/.5), dh (1/0
            and .5/.5; the distributional hypothesis holds) and no-dh (1/0 and .1/.9; it fails). Not published: half (.5/.5 and
            .5/.5; no pair of spellings is in conflict). Default: main, unless explicit distributions are given
        variants: several variants, such as main,dh,no-dh, trained one after the other with the same other settings, each in the
            folder of its name in the run directory; the report tests claims across variants: the price of tying in each, and
            its differences between variants, paired by seed. With --resume --out, variants and arms can be added to a run of
            several, by a list that also names those of the run
        zero: probabilities of the spellings of bit 0, such as [.1,.9]; any number of spellings
        one: probabilities of the spellings of bit 1
        doses: for each p in this list, train models with bit 0 spelled with probabilities p and 1 - p, all in one ensemble, to
            measure how tied and untied models respond to the strength of the conflict (transformer only; bit 1 as in --one, or
            .5/.5)
        bits: bits per string, 2 to 16
        arms: with --variants, arms that change one setting, trained in every variant: published (none), bias (--output_bias
            true), asked (--softmax asked), std (--table_std .5), table-decay (--table_decay 0), decay (--weight_decay 0),
            fast-tables and slow-tables (--table_rate 2 and .5), shared (--shared_second_moment true), equal (--equal_tables
            true), input-4, input-16, output-4 and output-16 (--gradient_weights [4,1], [16,1], [1,4] and [1,16]). The report
            tests how they change the price of tying
        rates: with --variants, learning rates to choose from, in ascending order, for the tied and the untied models of every
            variant and arm apart: the one with the lowest mean exact cross-entropy on --rate_seeds seeds of their own; while it
            is the lowest or the highest, half or twice of it is tried as well, at most three times. The price of tying is then
            that of models at their best rates
        rate_seeds: number of seeds that choose among --rates, 2000, 2001, ...; they are not among the reported ones
        model: architecture of the encoder
        size: published size, which sets the defaults of layers, width, heads, feed_forward, hidden, token_hidden,
            channel_hidden, learning_rate and steps
        heads: number of attention heads (transformer)
        feed_forward: width of the feed-forward layer (transformer)
        hidden: width of the hidden state (lstm)
        token_hidden: width of the token-mixing layers (mixer)
        channel_hidden: width of the channel-mixing layers (mixer)
        activation: activation of the feed-forward layer (default: gelu for the transformer, relu for the mixer)
        bidirectional: read sequences in both directions (lstm)
        output_bias: add a trained bias to the logits, one number per symbol, which starts at 0
        softmax: symbols that the logits are normalised over: all, as published, or asked, the symbols that are ever asked for,
            which excludes even, odd, the mask and unused spellings
        table_std: standard deviation of the initial tables
        table_decay: weight decay of the tables (default: --weight_decay)
        table_rate: factor of the learning rate of the tables
        shared_second_moment: average Adam's second moment over the rows of a table (Coupled Adam, arXiv:2502.08441)
        equal_tables: untied models start with two equal tables, as tied models do
        identical_layers: initialise all layers as copies of one layer, as PyTorch does (transformer)
        steps: training steps (default: 150000 small, 500000 medium)
        batch_size: strings per step, at most the size of the training split (default: the whole split)
        max_norm: clip gradients to this global norm, in which a tied pair of tables counts once (default: no clipping)
        record_every: steps between records, the measurements during training: embedding distances and sampled accuracy
        exact_every: steps between computations of the exact risk (the expected loss over all contexts, not a sample), a
            multiple of record_every (default: record_every on the fast engine; on the plain one a 15th of the steps, or
            half a cycle of the learning rate if that is less)
        engine: fast computes on multisets of symbols, which is exact for a transformer without dropout, and trains on the same
            batches as plain; auto is fast where that is exact, otherwise plain
        records_on: where records are stored: memory; disk (files in the run directory, without a copy in memory); or auto,
            which is disk if the records would take more than a tenth of this machine's memory
        out: run directory, which holds the run's settings, checkpoints, results and report (default:
            runs/exor/VARIANT-MODEL-SIZE)
    """

    variant: Literal["main", "dh", "no-dh", "half"] | None = None
    variants: list[str] = dataclasses.field(default_factory=list)
    arms: list[str] = dataclasses.field(default_factory=list)
    rates: list[float] | None = None
    rate_seeds: int = 32
    zero: list[float] | None = None
    one: list[float] | None = None
    doses: list[float] | None = None
    bits: int = 7
    model: Literal["transformer", "lstm", "mixer"] = "transformer"
    size: Literal["small", "medium"] = "small"
    # None: the default of the published size.
    layers: int | None = None  # type: ignore[assignment]
    width: int | None = None  # type: ignore[assignment]
    heads: int | None = None  # type: ignore[assignment]
    half_period: int = 10_000
    learning_rate: float | None = None  # type: ignore[assignment]
    hidden: int | None = None
    token_hidden: int | None = None
    channel_hidden: int | None = None
    activation: Literal["gelu", "relu", "silu", "tanh"] | None = None  # type: ignore[assignment]
    bidirectional: bool | None = None
    output_bias: bool = False
    softmax: Literal["all", "asked"] = "all"
    table_std: float = 1.0
    table_decay: float | None = None
    table_rate: float = 1.0
    shared_second_moment: bool = False
    equal_tables: bool = False
    identical_layers: bool | None = None
    steps: int | None = None
    batch_size: int | None = None
    max_norm: float | None = None
    record_every: int = 500
    exact_every: int | None = None
    engine: Literal["auto", "fast", "plain"] = "auto"
    records_on: Literal["auto", "memory", "disk"] = "auto"

    def resolved(self) -> "Settings":
        """Return the settings with all defaults filled in; raises BadInput if they are inconsistent."""
        self._check_combinations()
        variants, arms = _distinct("variants", self.variants, VARIANTS), _distinct("arms", self.arms, ARM_SETTINGS)
        values = dataclasses.asdict(self) | self._distributions() | checks.seeds_of_looks(self, self.SEEDS)
        values |= {"variants": variants, "arms": arms or (["published"] if variants else [])}
        defaults = ARCHITECTURE_SETTINGS[self.model] | PUBLISHED_MODELS[self.model, self.size] | {"steps": STEPS[self.size]}
        for name in sorted({name for fields in ARCHITECTURE_SETTINGS.values() for name in fields} - set(defaults)):
            if values[name] is not None:
                has = ", ".join(ARCHITECTURE_SETTINGS[self.model])
                raise BadInput(f"--{name}: the {self.model} has no such setting; it has {has}")
        values |= {name: value for name, value in defaults.items() if values[name] is None}
        if values["engine"] == "auto":
            values["engine"] = "plain" if _why_not_fast(self.model, self.dropout) else "fast"
        if values["exact_every"] is None:
            every = max(1, values["record_every"])
            # At least two in each cycle of the learning rate, if records are as frequent.
            records = max(1, min(round(values["steps"] / 15 / every), self.half_period // every))
            values["exact_every"] = values["record_every"] * (records if values["engine"] == "plain" else 1)
        settings = type(self)(**values)
        if settings.out is None:
            settings = dataclasses.replace(settings, out=f"runs/exor/{settings.variant_name}-{self.model}-{self.size}")
        settings.check()
        return settings

    def _check_combinations(self) -> None:
        """Raise BadInput for settings that exclude each other."""
        explicit, doses = self.zero is not None or self.one is not None, self.doses is not None
        if self.variants and (self.variant or explicit or doses):
            raise BadInput("--variants: cannot be combined with --variant, --zero, --one or --doses")
        if self.variants and self.until is not None:
            raise BadInput("--variants: cannot be combined with --until, which looks at the claims of a single variant")
        if self.rates is not None and not self.variants:
            raise BadInput("--rates: needs --variants; a single run takes a --learning_rate")
        if self.arms and not self.variants:
            raise BadInput("--arms: needs --variants; a single run takes the settings themselves, such as --output_bias true")
        if self.variant and explicit:
            raise BadInput("--variant: give a variant or explicit distributions (--zero, --one), not both")
        if doses and (self.variant or self.zero is not None):
            raise BadInput("--doses: sets the probabilities of bit 0 and cannot be combined with --variant or --zero")

    def _distributions(self) -> dict[str, Any]:
        """Return variant, zero and one with their defaults: the variant main, or its distribution for the bit not given."""
        if self.variants:
            return {}
        main_zero, main_one = map(list, VARIANTS["main"])
        if self.variant or (self.zero is None and self.one is None and self.doses is None):
            return {"variant": self.variant or "main"}
        one = main_one if self.one is None else list(self.one)
        if self.doses is not None:
            return {"one": one}
        return {"zero": main_zero if self.zero is None else self.zero, "one": one}

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds that choose the learning rates."""
        return list(range(TUNING_SEED, TUNING_SEED + self.rate_seeds))

    def check(self) -> None:
        """Raise BadInput, naming the option, if the resolved settings cannot be run."""
        if self.variants:
            for variant in self.by_variant.values():
                variant.check()
            return
        if self.doses is not None:
            self._check_doses(self.doses)
        try:
            task = self.tasks[0]
        except ValueError as error:
            raise BadInput(f"--{error}") from None
        if self.doses is not None:
            self._check_contexts(task)
        super().check()
        sizes = ("hidden", "token_hidden", "channel_hidden")
        checks.check_counts(self, (*sizes, "steps", "record_every", "exact_every", "batch_size", "rate_seeds"))
        if self.rates is not None:
            checks.check_rates(self.rates, least=2)
            checks.check_tuning_seeds(self.seed_list, self.tuning_seeds)
        if self.max_norm is not None and not self.max_norm > 0:
            raise BadInput(f"--max_norm: expected a number > 0, got {self.max_norm}")
        checks.check_positive(self, ("table_std", "table_rate"))
        checks.check_not_negative(self, ("table_decay",))
        if self.engine == "fast" and (reason := _why_not_fast(self.model, self.dropout)):
            raise BadInput(f"--engine: fast would not be exact, since {reason}; use plain or auto")
        assert self.exact_every is not None
        if self.exact_every % self.record_every:
            raise BadInput(f"--exact_every: must be a multiple of --record_every {self.record_every}, got {self.exact_every}")
        strings = train_size(task.bits)
        if self.batch_size is not None and self.batch_size > strings:
            raise BadInput(f"--batch_size: must be at most {strings}, the size of the training split, got {self.batch_size}")

    def _check_contexts(self, task: EXor) -> None:
        """Check that there are few enough outcomes for alias tables and few enough contexts for the exact risk."""
        if len(self.tasks) > 1 and most_outcomes(task) > MAX_OUTCOMES:
            raise BadInput(
                f"--doses: strings of {self.bits} bits with these spellings have {most_outcomes(task)} outcomes; several doses "
                f"support at most {MAX_OUTCOMES}; use fewer --bits"
            )
        if count_contexts(task, ordered=False) > MAX_CONTEXTS:
            raise BadInput(f"--doses: needs the exact risk, which supports at most {MAX_CONTEXTS:,} contexts; use fewer --bits")

    def _check_doses(self, doses: list[float]) -> None:
        if self.ordered:
            raise BadInput(f"--doses: only supported for the transformer, not for the {self.model}")
        if not doses:
            raise BadInput("--doses: needs at least one probability, got none")
        if outside := [dose for dose in doses if not 0 < dose < 1]:
            raise BadInput(f"--doses: must lie between 0 and 1, got {outside[0]}")
        if repeated := [dose for dose, count in collections.Counter(doses).items() if count > 1]:
            raise BadInput(f"--doses: values must be distinct, {repeated[0]} is repeated")

    @property
    def ordered(self) -> bool:
        """Whether the model sees the order of symbols."""
        return self.model != "transformer"

    @property
    def tasks(self) -> list[EXor]:
        """The task of each condition: a single one, or one per dose. Settings of several variants have no tasks."""
        zero, one = VARIANTS[self.variant] if self.variant else (self.zero or (), self.one or ())
        zeros = [zero] if self.doses is None else [(dose, 1 - dose) for dose in self.doses]
        return [EXor(self.bits, tuple(zero), tuple(one)) for zero in zeros]

    @property
    def by_variant(self) -> dict[str, "Settings"]:
        """The settings of the run of each variant and arm, in a folder of the run directory; empty without `variants`."""
        runs = {}
        for variant, arm in itertools.product(self.variants, self.arms):
            name = run_name(variant, arm)
            one = {"variants": [], "arms": [], "variant": variant, "out": str(Path(self.out or "", name))}
            runs[name] = dataclasses.replace(self, **one, **ARM_SETTINGS[arm])  # type: ignore[arg-type]
        return runs

    @property
    def seeds_by_condition(self) -> list[tuple[int, int]]:
        """Condition and seed of every pair of arms: all seeds of the first condition, then of the second, and so on."""
        return [(condition, seed) for condition in range(len(self.tasks)) for seed in self.seed_list]

    @property
    def arm_policies(self) -> Sequence[str]:
        """The policy by which each arm of a seed unties; "" for untied and for tied models, which never do."""
        return ["", ""]

    @property
    def variant_name(self) -> str:
        """Name of the distributions: a variant, several of them, `doses` or `custom`."""
        return self.variant or "-".join(self.variants) or ("doses" if self.doses is not None else "custom")

    @property
    def model_settings(self) -> dict[str, Any]:
        """Settings of the model, for results and report."""
        names = ["layers", "width", *ARCHITECTURE_SETTINGS[self.model], "dropout"]
        return {"architecture": self.model, "size": self.size} | {name: getattr(self, name) for name in names}


def changes(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of a page's setting on model and optimizer that names what differs from the published one, if any.

    A setting that is missing, as in older runs, has its published value. Gradient weights and the decay of all parameters are
    named with the training.
    """
    values = {name: settings.get(name, published) for name, (published, _) in CHANGES.items()}
    words = [text.format(values[name]) for name, (published, text) in CHANGES.items() if values[name] != published]
    return {"not as published": "; ".join(words)} if words else {}


def run_name(variant: str, arm: str) -> str:
    """Return the name of the run of an arm of a variant, which is that of its folder."""
    return variant if arm == "published" else f"{variant}-{arm}"


def _distinct(option: str, words: list[str], known: Collection[str]) -> list[str]:
    """Return the names in a list of words, separated by commas; raises BadInput for unknown and repeated ones."""
    names = [name for word in words for name in word.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"--{option}: expected some of {', '.join(known)}, got '{cut(unknown[0])}'")
    if repeated := [name for name, count in collections.Counter(names).items() if count > 1]:
        raise BadInput(f"--{option}: expected distinct {option}, but {repeated[0]} is repeated")
    return names


def _why_not_fast(model: str, dropout: float) -> str | None:
    """Return the reason why a model cannot be computed on multisets of symbols, or None if it can."""
    if model != "transformer":
        return f"the {model} sees the order of its symbols"
    return "dropout treats equal symbols differently" if dropout > 0 else None


STUDY = Study(
    "exor",
    Settings,
    CommandLine(
        description="Train tied and untied masked language models on EXor, many seeds at once; compare them with paired "
        "statistics; write figures and a report into a run directory. EXor is a synthetic task: a string of bits is followed "
        "by its parity, each bit can be spelled by several symbols, and the model predicts a masked symbol.",
        example="Example: PROGRAM --seeds 8 --steps 30000 --variant dh. The published settings are available by name, such as "
        "--config exor/lstm_small. An interrupted run continues with the same command and --resume.",
        switches=SWITCHES,
        first=("seeds", "until", "variant", "model", "size", "steps", "resume", "overwrite", "out"),
        configurations="exor",
    ),
    run="tiejax.lab.studies.exor.variants_run:start",
    sizes=sizes,
    may_change=("checkpoint_every", "records_on", "tracker"),
    extends=("variants", "arms"),
    appends=True,
)
