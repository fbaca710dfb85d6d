"""The settings of the study of tying and untying causal language models."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import LookSettings, PrecisionSettings, TextSettings, with_defaults
from tiejax.lab.settings.sizes import check_most, check_places
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.causal_untying import plan, sizes
from tiejax.system.visible import cut

WARM_UP, DECAY = 0.02, float(plan.DECAY)  # shares of the run in which the learning rate rises and falls
# What is not given depends on whether a corpus is given: a study, or a demonstration on the text in Python itself.
STUDY_DEFAULTS: dict[str, Any] = {
    "seeds": 10, "hours": 3.6, "context": 128, "vocab_size": 1024, "rate_seeds": 3, "table_factors": [1.0, 2.0, 4.0, 8.0],
    "lengths": ["1/8", "1/4", "1/2"], "gate": 0.1, "wide": True, "deep": True, "factorised": True, "record_every": 50,
    "validate_every": 50,
}  # fmt: skip
DEMONSTRATION: dict[str, Any] = {
    "seeds": 8, "steps": 300, "context": 64, "vocab_size": 2048, "rate_seeds": 2, "table_factors": [1.0], "lengths": [],
    "wide": True, "deep": False, "factorised": False, "record_every": 25, "validate_every": 25,
}  # fmt: skip
PLANTED: dict[str, Any] = {"table_factors": [1.0], "lengths": [], "wide": False, "deep": False, "factorised": False}
NOT_PLANTED = ("lengths", "control_seeds", "explore", "wide", "deep", "factorised", "natural_pairs")
NATURAL_SEEDS, NATURAL_CONTEXT = (1000, 1001), 24  # of the models that measure natural pairs


@with_defaults(out="runs/causal_untying")
class Settings(LookSettings, TextSettings, PrecisionSettings):
    """All settings of a run.

    Args:
        seeds: number of seeds (0, 1, ...), a list or a range; each seed trains one model in every arm. With --resume, more
            seeds are appended (default: 10; without --corpus 8)
        until: decided adds seeds until every registered claim is decided: at 10, 16, 24, ... seeds, each look with an equal
            share of .05
        validation: validation text, as for --corpus; --corpus is then all training text (default: the files of a folder called
            train, valid and test, or wiki.train.tokens and so on; any other text is cut 80/10/10)
        test: test text, as for --corpus; it is not used by this study
        vocab_size: number of tokens in a trained vocabulary (default: 1024; without --corpus 2048)
        layers: number of layers
        width: width of tables and states
        heads: number of attention heads
        context: tokens of a block, all of which but the first are predicted (default: 128; without --corpus 64)
        batch_size: blocks per step
        steps: training steps of every model, a multiple of 3,000 with the other defaults (default: as many as --hours allows,
            at most 15,000 and at most four epochs; without --corpus 300)
        hours: the number of steps is chosen, from a measured rate and before the first seed, so that the run takes about this
            long on this machine; only without --steps (default: 3.6)
        untie_at: fractions of the run at which tied models are untied, such as [1/6,1/3,2/3]; all at the constant learning
            rate. With [] models are always or never tied, the latter from independent tables only
        lengths: fractions of the run at which branches of the tied models, of those untied at 2/3 and of the never tied ones
            end with a learning rate that falls to 0, so that the run also has the results of shorter ones (default:
            [1/8,1/4,1/2]; without --corpus or with --planted: none)
        rates: learning rates that are tried first, for tied and for untied models, in ascending order. While the best is the
            first or the last, half or twice of it is tried as well, at most three times
        table_factors: factors of the learning rate for the tables, likewise. More than four pairs of a rate and a factor are
            trained with the first of --rate_seeds, and the best four with the others (default: [1,2,4,8]; without --corpus or
            with --planted: [1])
        rate_seeds: number of seeds that choose the learning rates, 1000, 1001, ...; they are not among the reported ones
            (default: 3; without --corpus 2)
        tied_rate: learning rate of tied models, instead of a choice among --rates
        untied_rate: likewise of models that are never tied
        tied_factor: factor of the tables' learning rate, with --tied_rate
        untied_factor: likewise, with --untied_rate
        control_seeds: number of seeds, the first of --seeds, that also train with a cosine schedule; with --resume, this
            number may change
        wide: also train wider tied models with the parameters of the untied ones (default: true; with --planted: false)
        deep: likewise deeper tied models (default: true; without --corpus or with --planted: false)
        factorised: also train never tied models with an input table of half the width (default: as for --deep)
        explore: also train exploratory arms for the first block of seeds, without tests: other changes of the optimizer's state
            at untying, other rates of the new table, a bias of the logits, a table that only its output use trains, a tie
            that begins again, longer runs, and untying at a step that follows from gradients (see --trigger)
        trigger: threshold of the exploratory arm that unties when the cosine of the gradients of the two uses of the table,
            over the 100 most frequent tokens and as a mean over three records, stays below it for 100 steps (default: the
            median over the models that choose the learning rate; with --tied_rate no such arm unless a threshold is given)
        natural_pairs: number of pairs of frequent words whose two distances are measured in two models that are never tied and
            are not reported, and whose distances are recorded in all arms; 0 for none
        planted: write the text with planted symbols, of which it is known whether they are equally likely and whether they have
            equal effects: twins of 60 words, 20 pairs of markers before sentences, and ciphers of 64 words. The arms are
            tied, untied at --untie_at, and never tied from independent tables
        gate: the run ends before its first seed unless the models of each class that choose its learning rate end this many
            nats below a bigram model of the tokens that a seed sees; a negative number allows losses above it (default: .1;
            without --corpus there is no such condition)
        weight_decay: weight decay of matrices other than tables; tables, biases and LayerNorms have none
        clip: maximum global norm of the gradient, in which tied tables count once
        record_every: steps between records of the training loss and of the gradients of the two tables (default: 50; without
            --corpus 25)
        validate_every: steps between validations (default: 50; without --corpus 25)
        validation_blocks: number of blocks of a validation, spread evenly over the split
        final_blocks: likewise of the validation at the end, which gives the final losses
    """

    SEEDS = 10
    LOOKS = (10, 16, 24)  # type: ignore[assignment]

    validation: list[str] = dataclasses.field(default_factory=list)
    test: list[str] = dataclasses.field(default_factory=list)
    vocab_size: int | None = None  # type: ignore[assignment]
    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int | None = None
    batch_size: int = 8
    steps: int | None = None
    hours: float | None = None
    untie_at: list[str] = dataclasses.field(default_factory=lambda: ["1/6", "1/3", "2/3"])
    lengths: list[str] | None = None
    rates: list[float] = dataclasses.field(default_factory=lambda: [1e-3, 2e-3, 4e-3, 8e-3])
    table_factors: list[float] | None = None
    rate_seeds: int | None = None
    tied_rate: float | None = None
    untied_rate: float | None = None
    tied_factor: float = 1.0
    untied_factor: float = 1.0
    control_seeds: int = 0
    wide: bool | None = None
    deep: bool | None = None
    factorised: bool | None = None
    explore: bool = False
    trigger: float | None = None
    natural_pairs: int = 0
    planted: bool = False
    gate: float | None = None
    weight_decay: float = 0.1
    clip: float = 1.0
    record_every: int | None = None
    validate_every: int | None = None
    validation_blocks: int = 32
    final_blocks: int = 1024

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        if self.steps is not None and self.hours is not None:
            raise BadInput("--steps and --hours: give one of them")
        defaults = (STUDY_DEFAULTS if self.corpus else DEMONSTRATION) | (PLANTED if self.planted else {})
        if self.steps is not None or self.hours is not None:
            defaults = defaults | {"steps": None, "hours": None}
        looks = checks.seeds_of_looks(self, defaults["seeds"])
        return dataclasses.replace(self, **looks).filled(**defaults)

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        super().check()
        counts = ("layers", "width", "heads", "batch_size", "steps", "rate_seeds", "record_every", "validate_every")
        checks.check_counts(self, (*counts, "validation_blocks", "final_blocks"))
        check_most("control_seeds", self.control_seeds, "seeds")
        checks.check_positive(self, ("hours", "tied_rate", "untied_rate", "tied_factor", "untied_factor", "clip"))
        checks.check_not_negative(self, ("weight_decay", "control_seeds", "natural_pairs"))
        checks.check_heads(self)
        checks.check_context(self)
        checks.check_held_out(self)
        assert self.context is not None
        check_places("batch_size", self.batch_size, self.context)
        self._check_rates()
        if self.trigger is not None and not (self.explore and -1 <= self.trigger <= 1):
            raise BadInput(f"--trigger: expected a cosine, between -1 and 1, with --explore true, got {self.trigger:g}")
        self._check_natural()
        if self.planted and (others := [name for name in NOT_PLANTED if getattr(self, name)]):
            raise BadInput(f"--{others[0]}: not available with --planted; leave it out")
        if self.planted and not self.forks:
            raise BadInput("--untie_at: with --planted, expected at least one fraction, got []")
        if self.steps is not None and self.steps < 60:
            raise BadInput(f"--steps: expected at least 60, got {self.steps}")
        if self.tuned:
            checks.check_tuning_seeds(self.seed_list, self.tuning_seeds)
        latest = max(self.forks, default=Fraction(0))
        if latest > 1 - plan.DECAY:
            raise BadInput(
                f"--untie_at: expected fractions up to {1 - DECAY:g}, after which the learning rate falls, got {latest}"
            )
        if self.steps is not None and self.steps % self.step_unit:
            raise BadInput(
                f"--steps: expected a multiple of {self.step_unit}, so that models untie at steps of --record_every and "
                f"--validate_every, got {self.steps}"
            )

    def _check_rates(self) -> None:
        checks.check_rates(self.rates, least=3)
        if (self.tied_rate is None) != (self.untied_rate is None):
            raise BadInput("--tied_rate and --untied_rate: give both or neither")
        checks.check_ascending("table_factors", self.table_factors or [])
        if self.tuned and (given := [name for name in ("tied_factor", "untied_factor") if getattr(self, name) != 1]):
            raise BadInput(f"--{given[0]}: needs --tied_rate and --untied_rate; otherwise it is chosen among --table_factors")

    def _check_natural(self) -> None:
        assert self.context is not None
        if not self.natural_pairs:
            return
        check_most("natural_pairs", self.natural_pairs, "pairs")
        if self.context < NATURAL_CONTEXT:
            raise BadInput(f"--natural_pairs: needs a --context of at least {NATURAL_CONTEXT}, got {self.context}")
        if both := set(self.seed_list) & set(NATURAL_SEEDS):
            raise BadInput(f"--seeds: {min(both)} is one of the seeds that measure --natural_pairs; use others")

    @property
    def forks(self) -> list[Fraction]:
        """The fractions of `untie_at`, ascending; raises BadInput if one is not between 0 and 1."""
        return fractions_of("untie_at", self.untie_at)

    @property
    def ends(self) -> list[Fraction]:
        """The fractions of `lengths`, ascending; raises BadInput if one is not between 0 and 1."""
        return fractions_of("lengths", self.lengths or [])

    @property
    def step_unit(self) -> int:
        """The number of which the steps are a multiple, so that every fork is at a step of records and of validations."""
        forks = {*self.forks, *([plan.LATE] if self.explore or self.control_seeds else [])}
        if self.planted:
            forks.add(plan.EARLY)
        forks |= {point for end in self.ends for point in (plan.LATE * end, (1 - plan.DECAY) * end)}
        return math.lcm(
            *(fork.denominator * every // math.gcd(fork.numerator, every)
              for fork in forks for every in (self.record_every, self.validate_every) if every is not None)
        )  # fmt: skip

    @property
    def arms(self) -> list[plan.Arm]:
        """The arms of resolved settings."""
        if self.planted:
            return [arm for arm in plan.arms_of(self.forks) if arm.name != plan.NEVER_EQUAL]
        equal = [name for name in plan.EQUAL if getattr(self, name)]
        return plan.arms_of(self.forks, equal, bool(self.control_seeds), self.ends)

    @property
    def explored(self) -> list[plan.Arm]:
        """The exploratory arms of resolved settings."""
        return plan.exploratory(self.forks) if self.explore else []

    @property
    def tuned(self) -> bool:
        """Whether the run chooses its learning rates."""
        return self.tied_rate is None

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds that choose the learning rates."""
        assert self.rate_seeds is not None
        return list(range(1000, 1000 + self.rate_seeds))


def fractions_of(name: str, values: Sequence[object]) -> list[Fraction]:
    """Return the fractions of a setting, ascending; raises BadInput if one is not between 0 and 1, or repeated."""
    found = []
    for written in values:
        try:
            fraction = Fraction(str(written)).limit_denominator(1000)
        except (ValueError, ZeroDivisionError):
            fraction = Fraction(0)
        if not 0 < fraction < 1:
            raise BadInput(f"--{name}: expected fractions between 0 and 1, such as [1/6,1/3,2/3], got {cut(written)}")
        found.append(fraction)
    if len(set(found)) < len(found):
        raise BadInput(f"--{name}: expected distinct fractions, got {cut(values)}")
    return sorted(found)


STUDY = Study(
    "causal_untying",
    Settings,
    CommandLine(
        description="Train causal language models that are always tied, never tied, or tied first and untied later, on the "
        "same batches; compare their validation losses over seeds, and write figures and a report into a run directory.",
        example="Example: PROGRAM --corpus wikitext-2/ takes under four hours on two cores; without --corpus, a small "
        "demonstration on the English text in Python itself takes minutes. An interrupted run continues with the same command "
        "and --resume.",
        switches={name: text for name, text in SWITCHES.items() if name != "distributed"},
        first=("corpus", "seeds", "untie_at", "steps", "hours", "resume", "overwrite", "out"),
        configurations="causal_untying",
    ),
    run="tiejax.lab.studies.causal_untying.study:run",
    sizes=sizes,
    prepare="tiejax.lab.studies.causal_untying.text:prepare",
    may_change=("checkpoint_every", "data_dir", "gate", "control_seeds", "tracker"),
    adds=("control_seeds", "gate"),
    appends=True,
    single_process=True,
)
