"""The settings of the study of tying and untying causal language models."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import LookSettings, PrecisionSettings, TextSettings, with_defaults
from tiejax.lab.settings.sizes import check_most, check_places
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.causal_untying import plan, sizes
from tiejax.system.visible import cut

WARM_UP, DECAY = 0.02, 0.2  # shares of the run in which the learning rate rises and falls
# What is not given depends on whether a corpus is given: a study, or a demonstration on the text in Python itself.
STUDY_DEFAULTS: dict[str, Any] = {
    "seeds": 10, "hours": 3.6, "layers": 4, "width": 128, "context": 128, "vocab_size": 4096, "rate_seeds": 3,
    "control_seeds": 10, "gate": 1.0, "explore": True, "wide": True,
    "natural_pairs": 300,
    "record_every": 50, "validate_every": 50,
}  # fmt: skip
DEMONSTRATION: dict[str, Any] = {
    "seeds": 8, "steps": 300, "layers": 2, "width": 64, "context": 64, "vocab_size": 2048, "rate_seeds": 2, "control_seeds": 0,
    "gate": 0.5, "explore": False, "wide": True, "natural_pairs": 0, "record_every": 25, "validate_every": 25,
}  # fmt: skip
PLANTED: dict[str, Any] = {"control_seeds": 0, "explore": False, "wide": False, "natural_pairs": 0}
NATURAL_SEEDS, NATURAL_CONTEXT = (1000, 1001), 24  # of the models that measure natural pairs


@with_defaults(out="runs/causal_untying")
class Settings(LookSettings, TextSettings, PrecisionSettings):
    """All settings of a run.

    Args:
        seeds: number of seeds (0, 1, ...), a list or a range; each seed trains one model in every arm. With --resume, more
            seeds are appended (default: 10; without --corpus 8)
        until: decided adds seeds until every registered claim is decided: at 10, 16, 24, ... seeds, each look with an equal
            share of .05
        validation: validation text, as for --corpus; --corpus is then all training text (default: --corpus is split 80/10/10)
        test: test text, as for --corpus; it is not used by this study
        vocab_size: number of tokens in a trained vocabulary (default: 4096; without --corpus 2048)
        layers: number of layers (default: 4; without --corpus 2)
        width: width of tables and states (default: 128; without --corpus 64)
        heads: number of attention heads
        context: tokens of a block, all of which but the first are predicted (default: 128; without --corpus 64)
        batch_size: blocks per step
        steps: training steps of every model, a multiple of 300 with the other defaults (default: as many as --hours allows, at
            most 2,800; without --corpus 300)
        hours: the number of steps is chosen, from a measured rate and before the first seed, so that the run takes about this
            long on this machine; only without --steps (default: 3.6)
        untie_at: fractions of the run at which tied models are untied, such as [1/6,1/3,2/3]; all at the constant learning rate
        rates: learning rates that are tried first, for tied and for untied models, in ascending order. If the best is the first
            or the last of them, half or twice of it is tried as well
        rate_seeds: number of seeds that choose the learning rates, 1000, 1001, ...; they are not among the reported ones
            (default: 3; without --corpus 2)
        tied_rate: learning rate of tied models, instead of a choice among --rates
        untied_rate: likewise of models that are never tied
        control_seeds: number of seeds, the first of --seeds, that also train with a cosine schedule; with --resume, this
            number may change (default: 10; without --corpus or with --planted: 0)
        wide: also train wider tied models with the parameters of the untied ones (default: true; with --planted: false)
        explore: also train exploratory arms for the first block of seeds, without tests: other changes of the optimizer's state
            at untying, other rates of the new table, a bias of the logits, a table that only its output use trains, a tie
            that begins again, an input table of half the width, longer runs, and untying at a step that follows from gradients
            (see --trigger) (default: true; without --corpus or with --planted: false)
        trigger: threshold of the exploratory arm that unties when the cosine of the gradients of the two uses of the table,
            over the 100 most frequent tokens and as a mean over three records, stays below it for 100 steps (default: the
            median over the models that choose the learning rate; with --tied_rate no such arm unless a threshold is given)
        natural_pairs: number of pairs of frequent words whose equivalence is measured in two models that are never tied and are
            not reported, and whose distances are recorded in all arms; 0 for none (default: 300; without --corpus, with
            --planted or with a --context below 24: none)
        planted: write the text with planted symbols, of which it is known whether they are equally likely and whether they have
            equal effects: twins of 60 words, 20 pairs of markers before sentences, and ciphers of 64 words. The arms are
            tied, untied at --untie_at, and never tied from independent tables
        gate: the run ends before its first seed unless the tied models that choose the learning rate end this many nats below
            the entropy of the token frequencies (default: 1; without --corpus .5)
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
    layers: int | None = None
    width: int | None = None
    heads: int = 4
    context: int | None = None
    batch_size: int = 8
    steps: int | None = None
    hours: float | None = None
    untie_at: list[str] = dataclasses.field(default_factory=lambda: ["1/6", "1/3", "2/3"])
    rates: list[float] = dataclasses.field(default_factory=lambda: [1e-3, 2e-3, 4e-3, 8e-3])
    rate_seeds: int | None = None
    tied_rate: float | None = None
    untied_rate: float | None = None
    control_seeds: int | None = None
    wide: bool | None = None
    explore: bool | None = None
    trigger: float | None = None
    natural_pairs: int | None = None
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
        fields = dataclasses.asdict(self)
        fields |= checks.seeds_of_looks(self, defaults["seeds"])
        one_of_both = {"steps", "hours"} if self.steps is not None or self.hours is not None else set()
        fields |= {name: value for name, value in defaults.items() if fields[name] is None and name not in one_of_both}
        if self.natural_pairs is None and fields["context"] < NATURAL_CONTEXT:
            fields["natural_pairs"] = 0
        if fields["data_dir"] is None:
            fields["data_dir"] = checks.default_data_dir()
        settings = Settings(**fields)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        super().check()
        counts = ("layers", "width", "heads", "batch_size", "steps", "rate_seeds", "record_every", "validate_every")
        checks.check_counts(self, (*counts, "validation_blocks", "final_blocks"))
        check_most("control_seeds", self.control_seeds or 0, "seeds")
        checks.check_positive(self, ("hours", "tied_rate", "untied_rate", "clip"))
        checks.check_not_negative(self, ("weight_decay", "gate", "control_seeds", "natural_pairs"))
        checks.check_heads(self)
        checks.check_context(self)
        checks.check_held_out(self)
        assert self.context is not None
        check_places("batch_size", self.batch_size, self.context)
        self._check_rates()
        if self.trigger is not None and not (self.explore and -1 <= self.trigger <= 1):
            raise BadInput(f"--trigger: expected a cosine, between -1 and 1, with --explore true, got {self.trigger:g}")
        self._check_natural()
        if self.planted and (others := [name for name in PLANTED if getattr(self, name)]):
            raise BadInput(f"--{others[0]}: not available with --planted; leave it out")
        if self.steps is not None and self.steps < 60:
            raise BadInput(f"--steps: expected at least 60, got {self.steps}")
        if self.tuned:
            checks.check_tuning_seeds(self.seed_list, self.tuning_seeds)
        latest = self.forks[-1]
        if latest > 1 - Fraction(str(DECAY)):
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

    def _check_natural(self) -> None:
        assert self.natural_pairs is not None
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
        found = []
        for written in self.untie_at:
            try:
                fork = Fraction(str(written)).limit_denominator(1000)
            except (ValueError, ZeroDivisionError):
                fork = Fraction(0)
            if not 0 < fork < 1:
                raise BadInput(f"--untie_at: expected fractions between 0 and 1, such as [1/6,1/3,2/3], got {cut(written)}")
            found.append(fork)
        if len(set(found)) < len(found) or not found:
            raise BadInput(f"--untie_at: expected at least one fraction, and distinct ones, got {cut(self.untie_at)}")
        return sorted(found)

    @property
    def step_unit(self) -> int:
        """The number of which the steps are a multiple, so that every fork is at a step of records and of validations."""
        forks = {*self.forks, *([plan.LATE] if self.explore or self.control_seeds else [])}
        if self.planted:
            forks.add(plan.EARLY)
        return math.lcm(
            *(fork.denominator * every // math.gcd(fork.numerator, every)
              for fork in forks for every in (self.record_every, self.validate_every) if every is not None)
        )  # fmt: skip

    @property
    def arms(self) -> list[plan.Arm]:
        """The arms of resolved settings."""
        if self.planted:
            return plan.planted_arms(self.forks)
        return plan.arms_of(self.forks, bool(self.wide), bool(self.control_seeds))

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
    adds=("control_seeds",),
    appends=True,
    single_process=True,
)
