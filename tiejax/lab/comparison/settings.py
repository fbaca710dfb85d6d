"""The settings of a comparison of one's own model; their defaults are those of the `Comparison`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.shared import LookSettings, PrecisionSettings, with_defaults
from tiejax.lab.settings.sizes import check_steps

SCRIPT = "script.json"  # in the run directory: what the results depend on beside settings and data (`script.described`)
FIRST_TUNING_SEED = 1000
RECORDS = 40  # of a run, by default


@with_defaults(out="runs/comparison")
class Settings(LookSettings, PrecisionSettings):
    """All settings of a run.

    Args:
        seeds: number of seeds (0, 1, ...), a list or a range; each seed trains one model in every arm, and all arms of a seed
            see the same batches. With --resume, more seeds are appended (default: 8)
        until: decided adds seeds until every registered claim is decided: at 8, 12, 16, 24, 32, ... seeds and at --max_seeds,
            from the first of these looks that can decide a claim, each with an equal share of .05
        steps: training steps of every model (default: that of the script, or as many as --hours allows)
        hours: the number of steps is chosen, from a measured rate and before the first seed, so that the run takes about this
            long on this machine; only without --steps
        rates: learning rates to choose from, for tied and for untied models, in ascending order. While the best is the first
            or the last, half or twice of it is tried as well, at most three times. A single one is used as it is (default:
            those of the script)
        table_factors: factors of the second learning rate of the optimizer, to choose from likewise. More than four pairs of a
            rate and a factor are trained with the first of --rate_seeds, and the best four with the others (default: those of
            the script, or 1)
        rate_seeds: number of seeds that choose the learning rates, 1000, 1001, ...; they are not among the reported ones
        margin: smallest difference of final losses that matters. Claims that arms differ by less are tested as well (default:
            that of the script)
        mesh: number of devices that train each model together, each on its part of a batch (default: 1)
        record_every: steps between records of the losses, of the gradients of the two uses, and of the distance of the leaves
            (default: a fortieth of the steps)
    """

    SEEDS = 8
    LOOKS = (8, 12, 16, 24, 32, 64, 128)  # type: ignore[assignment]
    GIVEN: ClassVar[Mapping[str, Any]] = {}  # the values of the script
    CLAIMS: ClassVar[tuple[int, int]] = (1, 1)  # the numbers of its claims: differences of losses, and those of its own

    steps: int | None = None
    hours: float | None = None
    rates: list[float] | None = None
    table_factors: list[float] | None = None
    rate_seeds: int = 2
    margin: float | None = None
    mesh: int = 1
    record_every: int | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        if self.steps is not None and self.hours is not None:
            raise BadInput("--steps and --hours: give one of them")
        given = {name: value for name, value in self.GIVEN.items() if name != "steps" or self.hours is None}
        fields = {name: value for name, value in given.items() if getattr(self, name) is None}
        fields |= checks.seeds_of_looks(self, given.get("seeds", self.SEEDS))
        settings = dataclasses.replace(self, **fields)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        super().check()
        checks.check_counts(self, ("steps", "rate_seeds", "mesh", "record_every"))
        checks.check_positive(self, ("hours", "margin"))
        if self.steps is None and self.hours is None:
            raise BadInput("--steps: give a number of steps, or --hours")
        if self.steps is not None:
            check_steps("steps", self.steps, self.steps)
        for name, values in (("rates", self.rates), ("table_factors", self.table_factors)):
            if values is not None:
                checks.check_ascending(name, values)
        if self.tuned:
            checks.check_tuning_seeds(self.seed_list, self.tuning_seeds)

    @property
    def tuned(self) -> bool:
        """Whether the run chooses learning rates."""
        return len(self.rates or ()) > 1 or len(self.table_factors or ()) > 1

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds that choose the learning rates."""
        return list(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.rate_seeds))

    @property
    def looks(self) -> list[int]:
        """The numbers of seeds at which claims are planned to be tested, without the first ones that can decide none."""
        looks = super().looks
        while len(looks) > 1 and looks[0] < self.fewest(len(looks)):
            looks = looks[1:]
        return looks

    def fewest(self, looks: int = 1, claims: tuple[int, int] | None = None) -> int:
        """Return the fewest seeds with which a claim can be decided at one of several looks; claims: as `CLAIMS`.

        One seed less if a test may be one-sided: that of a margin, or any claim of the script's own.
        """
        from tiejax.statistics.power import fewest_seeds  # imports jax, which `tiejax runs` does without

        one_sided = self.margin is not None, True
        numbers = [
            fewest_seeds(number * looks) - one for number, one in zip(claims or self.CLAIMS, one_sided, strict=True) if number
        ]
        return min(numbers, default=1)

    def every(self, steps: int) -> int:
        """Return the steps between records of a run of `steps` steps."""
        return self.record_every or max(1, round(steps / RECORDS))


def settings_of(given: Mapping[str, Any], out: str, claims: tuple[int, int] = Settings.CLAIMS) -> type[Settings]:
    """Return the class of settings whose defaults are those of a script, with these numbers of claims."""

    @with_defaults(out=out)
    class Own(Settings):
        GIVEN = given
        CLAIMS = claims

    Own.__doc__ = Settings.__doc__
    return Own
