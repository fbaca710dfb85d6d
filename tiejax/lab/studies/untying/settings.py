"""Settings of an untying run."""

import dataclasses
from typing import Literal

from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import UntieSettings, with_defaults
from tiejax.lab.settings.sizes import most_of
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.exor import sizes
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, count_contexts
from tiejax.statistics.untie_arms import Arms
from tiejax.system.visible import cut
from tiejax.tying.policies import POLICIES, Policy

# Setting of EXor without a meaning here -> what to do instead.
INSTEAD = {
    "variants": "give one distribution, with --variant",
    "rates": "give one rate, with --learning_rate",
    "doses": "give one distribution, with --zero and --one",
    "equal_tables": "leave it out: never-tied models from equal tables are an arm",
}


@with_defaults(record_every=2500)
class Settings(UntieSettings, exor.Settings):
    """EXor with models that are first tied and then untied.

    Args:
        untie_at: steps (integers) or fractions of the run (with a decimal point, such as .5) at which to untie (default: at the
            end of every learning-rate cycle, so that the phase of the learning rate does not affect the curve). Members that
            are never tied and members that are always tied are always included
        policies: optimizer state of the table that is split off: copy (the state of the shared table), zero (zero moments and
            step count, so that bias correction restarts), zero-keep-count (zero moments, the step count continues), split (the
            moments of the gradients from the table's own use, tracked from step 0)
        new: which table is split off, and so gets the new optimizer state; only matters for zero and zero-keep-count
        equal_tables: not supported, since never-tied models from equal tables are an arm of this study
        variants: not supported by this study, which has a single distribution
        rates: not supported by this study, which has a single learning rate
        rate_seeds: no effect, since this study has a single learning rate
        doses: not supported by this study, which has a single distribution
        out: run directory, which holds the run's settings, checkpoints, results and report (default:
            runs/untying/VARIANT-MODEL-SIZE)
    """

    policies: list[Policy] = dataclasses.field(default_factory=lambda: list(POLICIES))
    new: list[Literal["input", "output"]] = dataclasses.field(default_factory=lambda: ["output", "input"])

    def resolved(self) -> "Settings":
        """Return the settings with all defaults filled in; raises BadInput if they are inconsistent."""
        for name, instead in INSTEAD.items():
            if getattr(self, name) not in ([], None, False):
                raise BadInput(f"--{name}: not supported by this experiment; {instead}")
        variant = self.variant or ("main" if self.zero is None and self.one is None else "custom")
        out = f"runs/untying/{variant}-{self.model}-{self.size}" if self.out is None else self.out
        settings = super(Settings, dataclasses.replace(self, out=out)).resolved()
        assert isinstance(settings, Settings)
        assert settings.steps is not None
        if self.untie_at is not None:
            return settings
        whole_cycles = range(2 * self.half_period, settings.steps, 2 * self.half_period)
        if len(whole_cycles) > (most := most_of("untie_at")):
            raise BadInput(
                f"--untie_at: give at most {most:,} steps; the default, every whole learning-rate cycle, would be "
                f"{len(whole_cycles):,} with --steps {settings.steps} and --half_period {self.half_period}"
            )
        # In a run of a few steps, several quarters may round to the same step.
        quarters = {round(share * settings.steps): share for share in (0.25, 0.5, 0.75)}
        return dataclasses.replace(settings, untie_at=list(whole_cycles) or list(quarters.values()))

    def check(self) -> None:
        super().check()
        for name in ("policies", "new"):
            values = getattr(self, name)
            if not values:
                raise BadInput(f"--{name}: needs at least one value, got none")
            if len(set(values)) < len(values):
                raise BadInput(f"--{name}: values must be distinct, got {cut(values)}")
        if count_contexts(self.tasks[0], self.ordered) > MAX_CONTEXTS:
            raise BadInput(
                f"--bits: untying needs the exact risk, which supports at most {MAX_CONTEXTS:,} contexts; use fewer than "
                f"{self.bits} bits"
            )

    @property
    def untie_arms(self) -> Arms:
        """The arms of every seed: three baselines and the points of the untie curves."""
        assert self.steps is not None
        return Arms.of(self.untie_at or [], self.steps, self.policies, self.new)

    @property
    def arm_policies(self) -> list[str]:
        """The policy by which each arm of a seed unties; "" for the baselines."""
        return self.untie_arms.policy.tolist()


STUDY = Study(
    "untying",
    Settings,
    CommandLine(
        description="Train models that are first tied and then untied on EXor (a synthetic task, see exor --help), for many "
        "untying steps, optimizer-state policies and seeds at once; compare them with models that are always or never tied.",
        example="Example: PROGRAM --seeds 8 --steps 20000 --untie_at [.25,.5,.75] --policies [copy,zero]. The settings of "
        "docs/results/untying.md are available by name, such as --config untying/main. "
        "An interrupted run continues with the same command and --resume.",
        switches=SWITCHES,
        first=("seeds", "until", "variant", "untie_at", "policies", "steps", "resume", "overwrite", "out"),
        configurations="untying",
    ),
    run="tiejax.lab.studies.untying.study:run",
    sizes=sizes,
    may_change=("checkpoint_every", "records_on", "tracker"),
    appends=True,
)
