"""What may be asked of an untying run."""

import dataclasses
from typing import Any, Literal

from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import UntieSettings, with_defaults
from tiejax.lab.settings.sizes import most_of
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, count_contexts
from tiejax.lab.studies.untying import sizes
from tiejax.statistics.untie_arms import Arms
from tiejax.tying.policies import POLICIES, Policy


@with_defaults(record_every=2500)
class Settings(UntieSettings, exor.Settings):
    """EXor, tied and then untied.

    Args:
        untie_at: steps (whole numbers) or fractions of the run (with a point, as .5); default: after every whole cycle of the
            learning rate, so that the curve does not show the rate's phase. Never and always tied ones are always among the
            members
        policies: what the optimizer remembers of the table that leaves: copy (all that the shared one had), zero (nothing, and
            its bias correction restarts), zero-keep-count (no moments, the step count goes on), split (each table the moments
            of its own use's gradients, kept from step 0)
        new: which table leaves, where that makes a difference (zero, zero-keep-count)
        engine: fast computes a sequence as the multiset of its symbols, exact for a transformer without dropout, and sees the
            same batches as plain; auto is fast where that is exact; kernel is refused, since it knows no ties that end
        doses: no setting of this experiment, which has one distribution; refused
        figure_style: without effect here, since there is no three-panel figure
        out: the run directory (default: runs/untying/VARIANT-MODEL-SIZE)
    """

    policies: list[Policy] = dataclasses.field(default_factory=lambda: list(POLICIES))
    new: list[Literal["input", "output"]] = dataclasses.field(default_factory=lambda: ["output", "input"])

    def resolved(self) -> "Settings":
        """Return the settings with every default written out; raises BadInput if they make no sense."""
        if self.doses is not None:
            raise BadInput("--doses: is no setting of this experiment; give one distribution")
        if self.engine == "kernel":
            raise BadInput("--engine: kernel knows no ties that end; use fast, plain or auto")
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
                f"--untie_at: must be given, at most {most:,} of them, where --steps {settings.steps} have "
                f"{len(whole_cycles):,} whole cycles of --half_period {self.half_period}"
            )
        # Of a run of a few steps, quarters may fall on one of them.
        quarters = {round(share * settings.steps): share for share in (0.25, 0.5, 0.75)}
        return dataclasses.replace(settings, untie_at=list(whole_cycles) or list(quarters.values()))

    def check(self) -> None:
        super().check()
        for name in ("policies", "new"):
            values = getattr(self, name)
            if not values:
                raise BadInput(f"--{name}: needs at least one value, got none")
            if len(set(values)) < len(values):
                raise BadInput(f"--{name}: every value once, got {values}")
        if count_contexts(self.tasks[0], self.ordered) > MAX_CONTEXTS:
            raise BadInput(
                f"--bits: untying is judged by exact risk, which more than {MAX_CONTEXTS:,} contexts do not have; take fewer "
                f"than {self.bits} bits"
            )

    @property
    def arms(self) -> Arms:
        """The arms of every seed: three baselines, and the curves."""
        assert self.steps is not None
        return Arms.of(self.untie_at or [], self.steps, self.policies, self.new)


def _run(launched: Any, console: Any) -> int:
    from tiejax.lab.studies.untying.study import run

    return run(launched, console)


STUDY = Study(
    "untying",
    Settings,
    CommandLine(
        description="Train models on EXor that are tied up to some step and untied from then on, for many steps, policies of "
        "the optimizer's state and seeds at once; compare them with always tied and never tied ones.",
        example="Example: PROGRAM --seeds 8 --steps 20000 --untie_at [.25,.5,.75] --policies "
        "[copy,zero]. What was run comes by name, as --config untying/main. A run that was interrupted goes on with the same "
        "command and --resume.",
        switches=SWITCHES,
        first=("seeds", "variant", "untie_at", "policies", "steps", "resume", "overwrite", "out"),
        configurations="untying",
    ),
    run=_run,
    sizes=sizes,
    may_change=("figure_style", "checkpoint_every", "records_on", "graph_loops"),
)
