"""The comparison of tied, untied, and tied-then-untied training of one's own model."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from tiejax import tying
from tiejax.lab.comparison import checks, data, page, script
from tiejax.lab.comparison.arms import Arm, tied, untie_at, untied
from tiejax.lab.comparison.claims import OwnClaims, compared
from tiejax.lab.comparison.optimizer import Schedule, warm_up_constant_decay
from tiejax.lab.comparison.recipe import Recipe
from tiejax.lab.comparison.settings import Settings, settings_of
from tiejax.lab.comparison.step_count import block_size, check_hours
from tiejax.lab.comparison.study import Subject, check_forks, costs_of_parts
from tiejax.lab.runs import entry
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.gate import Gate
from tiejax.lab.runs.run_directory import METRICS, REPORT, RESULTS
from tiejax.lab.runs.stop import handlers_restored
from tiejax.lab.settings.command_line import BadInput, CommandLine, report
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.system.processors import cores

PyTree = Any
LATE = untie_at(2 / 3)
NAME = "comparison"  # of the study, in run directories


class Outcome(NamedTuple):
    """The result of a comparison.

    Attributes:
        sentence: the answer, in fixed words; before it, whether the gate was missed, so that nothing is tested, and whether a
            better learning rate may be beyond those tried.
        claims: a row for each claim, as `tiejax.statistics.claims.assess` returns it.
        arms: the names of the arms.
        final: final held-out losses, `[arm, seed]`.
        losses: held-out losses during training, on some of the examples, `[arm, seed, record]`.
        steps: the step of each record, of those that all arms have.
        rates: class of arms -> learning rates.
        report: the HTML report.
    """

    sentence: str
    claims: list[dict[str, Any]]
    arms: list[str]
    final: np.ndarray
    losses: np.ndarray
    steps: np.ndarray
    rates: dict[str, list[float]]
    report: Path

    def __repr__(self) -> str:
        return f"Outcome({self.sentence} {self.report})"

    @classmethod
    def of(cls, out: Path) -> "Outcome":
        """Return the result of the finished run in a directory."""
        results = json.loads((out / RESULTS).read_bytes())
        arms = list(results["arms"])
        with np.load(out / METRICS) as arrays:
            records, steps = (
                [arrays[f"{arm.replace('/', '.')}.validation_{field}"] for arm in arms] for field in ("loss", "step")
            )
        final = np.array([results["arms"][arm]["loss"] for arm in arms], float)
        shared = functools.reduce(np.intersect1d, steps)  # an arm that changes, or ends earlier, has other steps
        losses = np.stack([record[:, np.searchsorted(of_arm, shared)] for record, of_arm in zip(records, steps, strict=True)])
        return cls(page.answer(results), results["claims"], arms, final, losses, shared, results["rates"], out / REPORT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of ways to tie a model, over seeds: with learning rates of each, paired tests and a report.

    `main()` runs it as a command, with flags such as `--seeds 8 --resume`; `run(out, seeds=8)` returns its `Outcome`.

    Every seed trains one model in each arm, on the same batches. An arm that unties continues the tied model of its seed, bit
    for bit. Learning rates are chosen for tied and for untied models, on other seeds.

    Attributes:
        name: what the report calls the model.
        init: key -> parameters of the untied model: a tree of floating-point arrays with both leaves of every tie.
        loss: (parameters, batch, key) -> mean loss of the batch, or (loss, metrics); metrics are not stored, use `recorders`.
            The key is for dropout, new at every step.
        training: arrays `[examples, ...]`, or a tree of them, of which each seed draws batches without replacement, epoch by
            epoch; or a function (seed, step) -> batch.
        held_out: examples of the same form, on which the final loss is the mean over batches, each weighted with its examples:
            the mean over all examples if that of a batch is one. A ratio, such as a sum over unmasked tokens divided by their
            number, is averaged over batches as well, so that the final loss then depends on `batch_size`.
        batch_size: examples of a step.
        ties: a tie or several between parameters; not with `Functions`, which checkpoints cannot store.
        optimizer: learning rate -> optax optimizer; or (rate, table rate) -> optimizer, if tables have a separate rate. The
            rates are traced. It must be element-wise: use `max_norm` to clip gradients.
        rates: learning rates to choose from, ascending; a single one is used as it is. While the best is the first or the last,
            half or twice of it is tried as well, at most three times.
        table_factors: factors of the rate that give the table rate, to choose from likewise (default: 1). More than four pairs
            of a rate and a factor are trained with the first of the seeds that choose, and the best four with the others.
        steps: training steps of every model; None if `--hours` is given.
        arms: the arms, of `tied`, `untied`, `untie_at(fraction)`, `tie_at(fraction)`, or `Arm`.
        schedule: (step, steps) -> factor of the learning rates; the step is traced, so that no Python branch may depend on it
            (`jax.numpy.where`). By default they rise in the first 2 % of the steps, and fall linearly to 0 in the last 20 %.
        evaluate: (parameters, batch) -> mean loss, without dropout, or another measure, of held-out examples; by default `loss`
            with the key None. The records of training are those of `loss` with the key None or, if it needs one, of `evaluate`.
        max_norm: limit of the global norm of gradients, in which tied leaves count once.
        margin: smallest difference of final losses that matters; claims that arms differ by less are then tested as well.
        gate: final loss that models must end below, such as that of a bigram model (`tiejax.text.ngram.bigram_loss`), since
            models that a trivial one beats say little about ties. The run ends before its first reported seed unless those of
            every class that choose learning rates do; if the reported ones do not, no claim is tested.
        unit: unit of the loss.
        claims: final losses by arm `[seed]` -> further claims (`tiejax.statistics.claims.Claim`), a separate family.
        recorders: name -> (parameters, batch) -> dictionary of numbers or arrays, recorded during training with the training
            batch of the step, as `ARM.own_NAME_FIELD` `[seed, record, ...]` in metrics.npz.
        sections: functions results -> {heading: (columns, rows)}, tables for the report.
        seeds: number of seeds by default.
        out: run directory by default: runs/ and the name.
    """

    name: str
    init: Callable[[jax.Array], PyTree]
    loss: Callable[..., Any]
    training: Any
    held_out: PyTree
    batch_size: int
    ties: tying.TiesLike
    optimizer: Callable[..., Any]
    rates: Sequence[float]
    steps: int | None = None
    table_factors: Sequence[float] | None = None
    arms: Sequence[Arm] = (tied, untied, LATE)
    schedule: Schedule = warm_up_constant_decay
    evaluate: Callable[[PyTree, PyTree], Any] | None = None
    max_norm: float | None = None
    margin: float | None = None
    gate: float | None = None
    unit: str = "nats"
    claims: OwnClaims | None = None
    recorders: Mapping[str, Callable[[PyTree, PyTree], Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    sections: Sequence[page.Section] = ()
    seeds: int = Settings.SEEDS
    out: str | None = None

    def main(self) -> NoReturn:
        """Run the comparison as a command: parse the command line, train, write the report, and exit."""
        try:
            study = self.study
        except BadInput as error:
            raise SystemExit(report(error)) from None
        entry.open_study(study)

    def run(self, out: str | Path | None = None, resume: bool = False, overwrite: bool = False, **settings: Any) -> Outcome:
        """Run the comparison; return its outcome.

        Args:
            out: run directory.
            resume: continue the run in it.
            overwrite: delete the run in it first.
            **settings: further flags of the command line, such as `seeds=8` or `rates=[1e-3, 2e-3]`.

        Raises:
            ValueError: a setting or a function is wrong; the message is that of the command line.
            KeyboardInterrupt: the run was interrupted; `resume=True` continues it.
        """
        switched = {name: settings.pop(name) for name in SWITCHES if isinstance(settings.get(name), bool)}
        given = {"out": str(out or self.directory), **settings}
        flags = [f"--{name}={json.dumps(value) if isinstance(value, list | tuple) else value}" for name, value in given.items()]
        switches = [f"--{name}" for name, on in (("resume", resume), ("overwrite", overwrite), *switched.items()) if on]
        try:
            with handlers_restored():
                status = entry.main(self.study, [*flags, *switches])
        except BadInput as error:
            behind = error.__context__  # with its traceback, if a function of the user failed
            raise ValueError(str(error)) from (behind if behind and data.place_of(behind) else None)
        if status:
            raise KeyboardInterrupt(f"the run in {given['out']} was interrupted; resume=True continues it")
        return Outcome.of(Path(given["out"]))

    @property
    def directory(self) -> str:
        """The default run directory."""
        return self.out or f"runs/{re.sub(r'[^a-z0-9]+', '_', str(self.name).lower()).strip('_') or 'comparison'}"

    @functools.cached_property
    def study(self) -> Study:
        """The comparison as a study with a command line."""
        given, arms = self._given, self._arms()
        settings = settings_of(given, self.directory, (len(compared(arms)), len(checks.own_claims(self.claims, arms))))
        return simple_study(NAME, settings, lambda settings: self, f"training of {self.name}")

    @property
    def _given(self) -> dict[str, Any]:
        """The values of the settings that the script gives."""
        factors = None if self.table_factors is None else checks.checked_numbers("table_factors", self.table_factors)
        return {
            "rates": checks.checked_numbers("rates", self.rates),
            "table_factors": factors,
            "steps": None if self.steps is None else checks.checked_number("steps", self.steps, int),
            "margin": None if self.margin is None else checks.checked_number("margin", self.margin, float),
            "seeds": checks.checked_number("seeds", self.seeds, int),
        }

    def _prepare(self, settings: Settings, console: Console, study: str, resume: bool = False) -> Subject:
        """Check every argument; return what is compared, for a study of this name. Raises BadInput."""
        arms = self._arms()
        if settings.steps == 1 and (changing := [arm.name for arm in arms if arm.fork is not None]):
            raise BadInput(f"--steps: {changing[0]} needs at least 2 steps, one before its change and one after it")
        checks.check_values(self.name, self.max_norm, self.gate)
        found = data.checked(self.training, self.held_out, self.batch_size)
        shapes = checks.shapes_of(self.init, self.ties)
        plain = lambda params, batch: first_of(self.loss(params, batch, None))  # noqa: E731
        evaluate = self.evaluate or plain
        checks.check_losses(self.loss, evaluate, found, shapes)
        checks.check_schedule(self.schedule)
        checks.own_claims(self.claims, arms, settings.number_of_seeds)
        opt_state = checks.check_optimizer(self.optimizer, settings.table_factors, shapes)
        checks.check_changes(arms, self.optimizer, shapes)
        checks.check_recorders(self.recorders, found, shapes)
        checks.check_sections(self.sections)
        checks.check_size(shapes.params, opt_state, block_size(settings.seed_list, settings.mesh))
        checks.check_mesh(settings.mesh, self.batch_size, shapes.ties)
        checks.check_mean(settings.mesh, self.init, evaluate, found)
        recipe = Recipe(
            init=self.init,
            loss=self.loss,
            evaluate=evaluate,
            record_loss=plain if evaluate is plain or checks.is_differentiable(plain, found, shapes) else evaluate,
            data=found,
            ties=shapes.ties,
            optimizer=self.optimizer,
            schedule=self.schedule,
            recorders=self.recorders,
            every=settings.every(settings.steps or 1),
            max_norm=self.max_norm,
            precision=settings.matmul_precision,
            devices=settings.mesh,
        )
        if jax.default_backend() == "cpu" and jax.device_count() == 1 and (number := cores()) > 1:
            console.warn(
                f"one model trains at a time, on one of {number} cores, since jax had started before; create arrays with "
                "numpy, or in init"
            )
        gate = None if self.gate is None else Gate(self.gate, 0.0, "the gate of the script", self.unit, "gate")
        if settings.steps is not None:
            check_forks(arms, settings.steps, settings.every(settings.steps))
        claims = checks.own_claims(self.claims, arms)
        described = script.described(recipe, arms, gate, claims, type(settings).GIVEN, shapes.params)
        if resume:
            script.check(Path(str(settings.out)), described)
        subject = Subject(
            study, self.name, recipe, arms, self.unit, self.claims, self.sections, found.fingerprint, described, gate
        )
        if not resume:  # a run that continues has fixed its steps
            first = settings.seed_list[: settings.looks[0]] if settings.looks else settings.seed_list
            check_hours(settings.hours, costs_of_parts(settings, subject, [first]))
        return subject

    def _arms(self) -> list[Arm]:
        """Return the arms; raises BadInput."""
        if not isinstance(self.arms, Sequence):
            raise BadInput(f"arms: expected a list of arms, got {self.arms!r:.60}")
        if others := [arm for arm in self.arms if not isinstance(arm, Arm)]:
            raise BadInput(f"arms: expected tied, untied, untie_at(fraction) or tie_at(fraction), got {others[0]!r:.60}")
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names) or len(names) < 2:
            raise BadInput(f"arms: expected at least two different ones, got {', '.join(names)}")
        for arm in self.arms:
            if arm.parent is not None and arm.parent not in names:
                raise BadInput(f"arms: {arm.name} continues the models of {arm.parent}, which is missing")
            if (arm.parent is None) != (arm.fork is None):
                raise BadInput(f"arms: {arm.name} needs both a parent and the fork at which it leaves that, or neither")
            if arm.change.rate != 1:
                raise BadInput(f"arms: {arm.name}: expected a change with rate 1, the only one here, got {arm.change.rate}")
        if self.claims is None and not compared(self.arms):
            raise BadInput("arms: no two of them are compared; name one of them tied or untied, or give claims")
        by_use = {arm.parent for arm in self.arms if arm.change.policy == "split"}
        arms = [dataclasses.replace(arm, by_use=arm.by_use or arm.name in by_use) for arm in self.arms]
        return sorted(arms, key=lambda arm: arm.parent is not None)


def simple_study(name: str, settings: type[Settings], build: Callable[[Any], Comparison], subject: str) -> Study:
    """Return a study in one file: a comparison with settings of its own.

    Args:
        name: its name in run directories.
        settings: a subclass of `tiejax.lab.comparison.settings.Settings` with further fields, which become flags. `GIVEN` holds
            the defaults of `steps`, `rates`, `table_factors`, `margin` and `seeds`, and `CLAIMS` the numbers of claims, for the
            looks of `--until decided`: (pairs of arms that are compared, claims of its own).
        build: resolved settings -> the comparison, whose own rates, steps, margin, seeds and factors are not used.
        subject: what is compared, as in "training of my GPT", for `--help`.
    """

    def prepare(settings: Any, console: Console, resume: bool) -> Subject:
        return build(settings)._prepare(settings, console, name, resume)

    shared = {field.name for field in dataclasses.fields(Settings)}
    own = [field.name for field in dataclasses.fields(settings) if field.name not in shared]
    return Study(
        name,
        settings,
        CommandLine(
            description=f"Compare tied, untied, and tied-then-untied {subject} over seeds, and write figures and a report into "
            "a run directory.",
            example="Example: PROGRAM --seeds 8 --hours 1. An interrupted run continues with the same command and --resume.",
            switches=SWITCHES,
            first=(*own, "seeds", "steps", "hours", "rates", "margin", "resume", "overwrite", "out"),
        ),
        run="tiejax.lab.comparison.study:run",
        prepare=prepare,
        may_change=("checkpoint_every", "tracker"),
        appends=True,
        checks_finished=True,
    )


def first_of(found: Any) -> Any:
    """Return the loss of a pair of a loss and metrics."""
    return found[0] if isinstance(found, tuple) else found
