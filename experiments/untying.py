"""Tie, then untie: EXor's final loss over the step at which tied models untie, by what the optimizer then remembers."""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

# As a script this file finds its own folder alone, and it builds on a neighbour.
sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments import exor as base
from tiejax import launch
from tiejax.data import exor
from tiejax.reporting import checks, command_line, environment
from tiejax.reporting.command_line import BadInput
from tiejax.reporting.console import Console
from tiejax.reporting.run_directory import plain, stop_flag

if TYPE_CHECKING:
    from tiejax.analysis.untying import Variants
    from tiejax.reporting.exor import Drawn
    from tiejax.training import Ensemble

# jax is imported inside functions: a run's configuration is checked and written before it loads.

Policy = Literal["copy", "zero", "zero-keep-count", "split"]
POLICIES: tuple[Policy, ...] = ("copy", "zero", "zero-keep-count", "split")


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """EXor, tied and then untied.

    Args:
        untie_at: where tied members untie: steps (whole numbers) or fractions of the run (with a point, as .5); default: after
            every whole cycle of the learning rate, so that the curve does not show the rate's phase. Never tied and always tied
            are always among the members
        policies: what the optimizer remembers of the table that leaves: copy (all that the shared one had), zero (nothing, and
            its bias correction restarts), zero-keep-count (no moments, the step count goes on), split (each table the moments
            of its own use's gradients, kept from step 0)
        new: which table leaves, where that makes a difference (zero, zero-keep-count)
        record_every: steps between records
        out: the run directory (default: runs/untying/VARIANT-MODEL-SIZE)
    """

    untie_at: list[int | float] | None = None
    policies: list[Policy] = dataclasses.field(default_factory=lambda: list(POLICIES))
    new: list[Literal["input", "output"]] = dataclasses.field(default_factory=lambda: ["output", "input"])
    record_every: int = 2500

    def resolved(self) -> "Config":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
        if self.doses is not None:
            raise BadInput("--doses: is no setting of this experiment; give one distribution")
        named = self.variant or ("main" if self.zero is None and self.one is None else "custom")
        out = self.out or f"runs/untying/{named}-{self.model}-{self.size}"
        config = super(Config, dataclasses.replace(self, out=out)).resolved()
        assert isinstance(config, Config)
        assert config.steps is not None
        if self.untie_at is not None:
            return config
        whole = range(2 * self.half_period, config.steps, 2 * self.half_period)
        return dataclasses.replace(config, untie_at=list(whole) or [0.25, 0.5, 0.75])

    def check(self) -> None:
        super().check()
        for name in ("policies", "new"):
            values = getattr(self, name)
            if not values:
                raise BadInput(f"--{name}: needs at least one value, got none")
            if len(set(values)) < len(values):
                raise BadInput(f"--{name}: every value once, got {values}")
        checks.check_untie_at(self)

    @property
    def variants(self) -> "Variants":
        """The variants of every seed: three ends, and the curves."""
        from tiejax.analysis.untying import Variants

        assert self.steps is not None
        return Variants.of(self.untie_at or [], self.steps, self.policies, self.new)


COMMAND = command_line.CommandLine(
    description="Train models on EXor that are tied up to some step and untied from then on, for many steps, policies of the "
    "optimizer's state and seeds at once; compare them with always tied and never tied ones.",
    example="Example: python experiments/untying.py --seeds 8 --steps 20000 --untie_at [.25,.5,.75] --policies [copy,zero]. "
    "What was run is in configs/untying/. A run that was interrupted goes on with the same command and --resume.",
    switches=launch.SWITCHES,
)
EXPERIMENT = launch.Experiment(Config, COMMAND, free=("figure_style", "checkpoint_every"))


def build_ensemble(config: Config) -> "Ensemble":
    """Return the members of a resolved configuration: EXor's, with a phase for each variant."""
    from tiejax import training

    assert config.steps is not None
    variants = config.variants
    switches, phases = training.of_variants(
        variants.step.tolist(), config.steps, variants.policy.tolist(), variants.new.tolist()
    )
    optimizer = base.make_optimizer(config, counts="leaf")
    return dataclasses.replace(base.build_ensemble(config), optimizer=optimizer, switches=switches, phases=phases)


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], config: Config) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[variant, seed, record, ...]`, exact ones under `exact_`."""
    return base.named_arrays(records, config) | config.variants.arrays


def conclude(config: Config, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run, and its figures."""
    from tiejax.analysis import exor as findings
    from tiejax.analysis import untying
    from tiejax.reporting import untying as pages

    task, variants = config.tasks[0], config.variants
    bayes = exor.bayes(task, exor.split(task.bits)["train"])
    finite, lasted = findings.who_lasted(metrics)
    found: dict[str, Any] = {**lasted, "bayes": {"accuracy": bayes[0], "cross_entropy": bayes[1]}, "claims": [], "curves": []}
    if not finite.any():
        return found, []
    kept = findings.of_seeds(metrics, finite)
    runs = findings.trajectories(kept, base.task_symbols(task), 2 * config.half_period)
    exact = runs.exact["cross_entropy"][..., 0]
    solved = exact[..., -1] < bayes[1] + findings.SOLVED_WITHIN
    others = {"accuracy": runs.exact["accuracy"][:, :, -1, 0]}
    for table, pairs in runs.relative.items():
        others |= {f"relative distance, {table}, {pair}": values[:, :, -1] for pair, values in pairs.items()}
    found |= untying.analyse(variants, exact[..., -1], solved, others, "exact cross-entropy")
    distances = {
        f"{pair.replace('_', ' ')} pair, {table}": values[:, :, -1]
        for pair in ("zero", "one")
        for table, pairs in runs.relative.items()
        if (values := pairs.get(pair)) is not None
    }
    curves, title = variants.curves(), "exact cross-entropy (nats)"
    return found, [
        pages.curve(found, title, curves, variants.step, bayes[1], solved),
        pages.distances(distances, curves, variants.step, "relative distance"),
        pages.trajectories(runs.exact_steps, exact, curves, variants.step, title, bayes[1]),
    ]


def main(argv: Sequence[str]) -> int:
    """Run the experiment; return its exit status."""
    environment.one_device_a_core()
    started = launch.start(EXPERIMENT, argv)
    config, run = started.config, started.run
    assert config.out is not None
    console = Console(started.switches["quiet"], silent=not started.first)
    if started.finished:
        console.result(f"the run is finished: {Path(config.out) / 'report.html'}")
        return 0
    stop = stop_flag()

    import jax

    # Accelerators multiply float32 in fewer bits unless told otherwise; exact risk would not be exact.
    jax.config.update("jax_default_matmul_precision", "highest")

    from tiejax.reporting import untying as pages

    devices = {"devices": [one.device_kind for one in jax.devices()]}
    facts = run.write_environment(devices, launch.command_of(argv)) if run else {}
    seeds, models = config.seed_list, len(config.variants.step) * len(config.seed_list)
    console.say(
        f"EXor {config.variant_name}, {config.model} {config.size}, tied and untied: {len(seeds)} seeds x "
        f"{len(config.variants.step)} variants, {config.steps:,} steps, {config.engine} engine on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, in {config.out}"
    )
    trained = launch.train(build_ensemble(config), seeds, started, console, stop, models)
    if not trained.finished:
        return 130
    if run is None:
        return 0

    metrics = named_arrays(trained.records, config)
    run.write_metrics(metrics)
    found, drawn = conclude(config, metrics)
    results = plain(
        {
            "experiment": "untying",
            "variant": config.variant_name,
            "engine": config.engine,
            "bits": config.bits,
            "zero": config.tasks[0].zero,
            "one": config.tasks[0].one,
            "model": config.model_settings,
            "steps": config.steps,
            **found,
            "timing": launch.timing(trained, models),
        }
    )
    launch.finish(run, config, results, facts, drawn, pages.page, console)
    return 0


if __name__ == "__main__":
    command_line.run_main(main)
