"""EXor: tied against untied masked language models, many seeds at once (Bertolotti and Cazzola, ICML 2024)."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tiejax import launch
from tiejax.data import exor
from tiejax.reporting import checks, command_line, environment
from tiejax.reporting.command_line import BadInput
from tiejax.reporting.console import Console
from tiejax.reporting.run_directory import plain, stop_flag

if TYPE_CHECKING:
    from tiejax.analysis.exor import Symbols, Trajectories
    from tiejax.reporting import exor as pages
    from tiejax.training import Ensemble

# jax is imported inside functions: a run's configuration is checked and written before it loads.

# Published settings, by model and size (specification: PMLR 235:3584-3610 and its package).
PUBLISHED: dict[tuple[str, str], dict[str, Any]] = {
    ("transformer", "small"): {"layers": 1, "width": 4, "heads": 1, "feed_forward": 4, "learning_rate": 5e-4},
    ("transformer", "medium"): {"layers": 2, "width": 32, "heads": 1, "feed_forward": 32, "learning_rate": 1e-4},
    ("lstm", "small"): {"layers": 2, "width": 4, "hidden": 8, "learning_rate": 5e-4},
    ("lstm", "medium"): {"layers": 4, "width": 32, "hidden": 32, "learning_rate": 5e-4},
    ("mixer", "small"): {"layers": 1, "width": 4, "token_hidden": 4, "channel_hidden": 8, "learning_rate": 5e-4},
    ("mixer", "medium"): {"layers": 2, "width": 32, "token_hidden": 32, "channel_hidden": 32, "learning_rate": 5e-4},
}
STEPS = {"small": 150_000, "medium": 500_000}
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "transformer": {"heads": None, "feed_forward": None, "activation": "gelu", "identical_layers": True},
    "lstm": {"hidden": None, "bidirectional": True},
    "mixer": {"token_hidden": None, "channel_hidden": None, "activation": "relu"},
}
TIED = ("embed/embedding", "head/embedding")


@dataclasses.dataclass(frozen=True)
class Config:
    """EXor, tied against untied.

    Args:
        variant: published distributions of the spellings: main (0 as .1/.9, 1 as .5/.5), dh (1/0, .5/.5), no-dh (1/0, .1/.9);
            main if neither this nor explicit distributions are given
        zero: probabilities of the spellings of the bit 0, as [.1,.9]; any number of them
        one: probabilities of the spellings of the bit 1
        doses: for each p in this list, members for whom the bit 0 is spelled with probabilities p and 1 - p: the response of
            tied and untied models to the strength of the conflict, all in one ensemble (transformer; 1 as --one or .5/.5)
        bits: bits per string, 2 to 16
        model: the encoder
        size: published size, which sets the defaults of layers, width, heads, feed_forward, hidden, token_hidden,
            channel_hidden, learning_rate and steps
        layers: number of layers
        width: width of embeddings and hidden states
        heads: attention heads (transformer)
        feed_forward: width of the feed-forward layer (transformer)
        hidden: width of the state (lstm)
        token_hidden: width of token mixing (mixer)
        channel_hidden: width of channel mixing (mixer)
        activation: of the feed-forward layer; gelu for the transformer, relu for the mixer
        bidirectional: read sequences in both directions (lstm)
        identical_layers: start all layers as copies of one, as torch does (transformer)
        dropout: probability of dropping a hidden value in training
        seeds: how many (0, 1, ...), or a list of them, as [3,7,11]
        steps: training steps (default: 150000 small, 500000 medium)
        batch_size: strings per step, at most the training split (default: all of it)
        optimizer: adamw (decoupled weight decay) or adam (decay added to the gradient)
        learning_rate: the largest learning rate
        schedule: cosine (down to the minimum and up again, never clamped) or constant
        minimum_learning_rate: the smallest learning rate of the cosine
        half_period: steps from the largest to the smallest rate
        weight_decay: of every parameter
        eps: of the optimizer
        max_norm: clip gradients to this global norm, a tied pair counted once (default: no clipping)
        record_every: steps between records of distances and sampled accuracy
        exact_every: steps between exact risks, a multiple of record_every (default: record_every on the fast engine, a 15th
            of the steps on the plain one)
        checkpoint_every: seconds between checkpoints
        engine: fast computes a sequence as the multiset of its symbols, exact for a transformer without dropout, and sees the
            same batches as plain; auto is fast where that is exact
        figure_style: three-panel figure with every seed (seeds) or as the paper prints it (published); both are written, this
            one stands first in the report
        out: the run directory (default: runs/exor/VARIANT-MODEL-SIZE)
    """

    variant: Literal["main", "dh", "no-dh"] | None = None
    zero: list[float] | None = None
    one: list[float] | None = None
    doses: list[float] | None = None
    bits: int = 7
    model: Literal["transformer", "lstm", "mixer"] = "transformer"
    size: Literal["small", "medium"] = "small"
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    feed_forward: int | None = None
    hidden: int | None = None
    token_hidden: int | None = None
    channel_hidden: int | None = None
    activation: Literal["gelu", "relu", "silu", "tanh"] | None = None
    bidirectional: bool | None = None
    identical_layers: bool | None = None
    dropout: float = 0.0
    seeds: int | list[int] = 32
    steps: int | None = None
    batch_size: int | None = None
    optimizer: Literal["adamw", "adam"] = "adamw"
    learning_rate: float | None = None
    schedule: Literal["cosine", "constant"] = "cosine"
    minimum_learning_rate: float = 1e-5
    half_period: int = 10_000
    weight_decay: float = 0.1
    eps: float = 1e-12
    max_norm: float | None = None
    record_every: int = 500
    exact_every: int | None = None
    checkpoint_every: float = 20.0
    engine: Literal["auto", "fast", "plain"] = "auto"
    figure_style: Literal["seeds", "published"] = "seeds"
    out: str | None = None

    def resolved(self) -> "Config":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
        if self.variant and (self.zero is not None or self.one is not None):
            raise BadInput("--variant: give a variant or explicit distributions (--zero, --one), not both")
        if self.doses is not None and (self.variant or self.zero is not None):
            raise BadInput("--doses: sets the probabilities of the bit 0; leave --variant and --zero out")
        explicit = self.zero is not None or self.one is not None or self.doses is not None
        variant = self.variant or (None if explicit else "main")
        given = dataclasses.asdict(self) | {"variant": variant}
        if self.doses is not None:
            given["one"] = exor.VARIANTS["main"][1] if self.one is None else self.one
            given["one"] = list(given["one"])
        elif variant is None:
            for name, probabilities in zip(("zero", "one"), exor.VARIANTS["main"], strict=True):
                given[name] = list(probabilities) if given[name] is None else given[name]
        own = OWN_SETTINGS[self.model]
        for name in {name for settings in OWN_SETTINGS.values() for name in settings} - set(own):
            if given[name] is not None:
                raise BadInput(f"--{name}: the {self.model} has no such setting; it has {', '.join(own)}")
        defaults = {**own, **PUBLISHED[self.model, self.size], "steps": STEPS[self.size]}
        given |= {name: value for name, value in defaults.items() if given[name] is None}
        if given["engine"] == "auto":
            given["engine"] = "plain" if _why_not_fast(self.model, self.dropout) else "fast"
        if given["exact_every"] is None:
            records = max(1, round(given["steps"] / 15 / max(1, given["record_every"])))
            given["exact_every"] = given["record_every"] * (1 if given["engine"] == "fast" else records)
        if given["out"] is None:
            named = variant or ("doses" if self.doses is not None else "custom")
            given["out"] = f"runs/exor/{named}-{self.model}-{self.size}"
        config = type(self)(**given)
        config.check()
        return config

    def check(self) -> None:
        """Raise BadInput, naming the option, if a resolved configuration cannot be run."""
        if self.doses is not None:
            self._check_doses(self.doses)
        try:
            task = self.tasks[0]
        except ValueError as error:
            raise BadInput(f"--{error}") from None
        if len(self.tasks) > 1 and exor.most_outcomes(task) > exor.MAX_OUTCOMES:
            raise BadInput(
                f"--doses: strings of {self.bits} bits with these spellings have {exor.most_outcomes(task)} outcomes, at most "
                f"{exor.MAX_OUTCOMES} are drawn for several doses at once; take fewer --bits"
            )
        if self.doses is not None and exor.count_contexts(task, ordered=False) > exor.MAX_CONTEXTS:
            raise BadInput(
                f"--doses: more than {exor.MAX_CONTEXTS} contexts have no exact risk to respond with; take fewer --bits"
            )
        checks.check_seeds(self.seeds)
        sizes = ("layers", "width", "heads", "feed_forward", "hidden", "token_hidden", "channel_hidden")
        checks.check_counts(self, (*sizes, "steps", "half_period", "record_every", "exact_every", "batch_size"))
        checks.check_not_negative(self, ("learning_rate", "minimum_learning_rate", "weight_decay", "eps"))
        if self.max_norm is not None and not self.max_norm > 0:
            raise BadInput(f"--max_norm: must be above 0, got {self.max_norm}")
        if not self.out:
            raise BadInput("--out: must name a directory, got nothing")
        if not self.checkpoint_every > 0:
            raise BadInput(f"--checkpoint_every: must be above 0, got {self.checkpoint_every}")
        checks.check_model(self)
        if self.engine == "fast" and (reason := _why_not_fast(self.model, self.dropout)):
            raise BadInput(f"--engine: fast would not be exact, since {reason}; use plain, or auto")
        assert self.exact_every is not None
        checks.check_schedule(self)
        if self.exact_every % self.record_every:
            raise BadInput(f"--exact_every: must be a multiple of --record_every {self.record_every}, got {self.exact_every}")
        train = exor.train_size(task.bits)
        if self.batch_size is not None and self.batch_size > train:
            raise BadInput(f"--batch_size: at most the {train} strings of the training split, got {self.batch_size}")

    def _check_doses(self, doses: list[float]) -> None:
        if self.ordered:
            raise BadInput(f"--doses: are for the transformer; visits of the {self.model} are drawn for one distribution")
        if not doses:
            raise BadInput("--doses: needs at least one probability, got none")
        if outside := [dose for dose in doses if not 0 < dose < 1]:
            raise BadInput(f"--doses: must lie between 0 and 1, got {outside[0]}")
        if repeated := [dose for dose, count in collections.Counter(doses).items() if count > 1]:
            raise BadInput(f"--doses: every probability once, {repeated[0]} is repeated")

    @property
    def seed_list(self) -> list[int]:
        return checks.seed_list(self.seeds)

    @property
    def ordered(self) -> bool:
        """Whether the model tells sequences apart by the order of their symbols."""
        return self.model != "transformer"

    @property
    def tasks(self) -> list[exor.EXor]:
        """The distributions of the spellings, by condition: one, or one a dose."""
        zero, one = exor.VARIANTS[self.variant] if self.variant else (self.zero or (), self.one or ())
        zeros = [zero] if self.doses is None else [(dose, 1 - dose) for dose in self.doses]
        return [exor.EXor(self.bits, tuple(each), tuple(one)) for each in zeros]

    @property
    def members(self) -> list[tuple[int, int]]:
        """Condition and seed of every member of a variant: all seeds of the first condition, then of the next."""
        return [(condition, seed) for condition in range(len(self.tasks)) for seed in self.seed_list]

    @property
    def variant_name(self) -> str:
        return self.variant or ("doses" if self.doses is not None else "custom")

    @property
    def model_settings(self) -> dict[str, Any]:
        """What the model is built from, for results and report."""
        names = ["layers", "width", *OWN_SETTINGS[self.model], "dropout"]
        return {"architecture": self.model, "size": self.size} | {name: getattr(self, name) for name in names}


def _why_not_fast(model: str, dropout: float) -> str | None:
    """Say why a model cannot be computed on multisets of symbols, or None if it can."""
    if model != "transformer":
        return f"the {model} sees the order of its symbols"
    return "dropout treats equal symbols differently" if dropout > 0 else None


COMMAND = command_line.CommandLine(
    description="Train tied and untied masked language models on EXor for many seeds at once, compare them with paired "
    "statistics, and leave figures and a report in a run directory.",
    example="Example: python experiments/exor.py --seeds 8 --steps 30000 --variant dh. Settings that were published are in "
    "configs/exor/, as --config configs/exor/lstm_small.yaml. A run that was interrupted goes on with the same command and "
    "--resume.",
    switches=launch.SWITCHES,
)
EXPERIMENT = launch.Experiment(Config, COMMAND, free=("figure_style", "checkpoint_every"))


def build_model(config: Config) -> Any:
    """Return the masked LM of a resolved configuration."""
    from tiejax import models

    assert config.width is not None
    settings = {name: value for name, value in config.model_settings.items() if name not in ("architecture", "size")}
    if config.model == "mixer":
        del settings["width"]  # the mixer takes it from its input
    encoder = {"transformer": models.Transformer, "lstm": models.BidirectionalLSTM, "mixer": models.Mixer}[config.model]
    return models.LanguageModel(config.tasks[0].vocabulary, config.width, encoder(**settings))


def make_optimizer(config: Config, counts: Literal["all", "leaf"] = "all") -> Any:
    """Return the optimizer of a resolved configuration; counts: as `training.make_optimizer` says."""
    from tiejax import training

    assert config.learning_rate is not None
    rates = config.learning_rate, config.minimum_learning_rate
    schedule = training.make_schedule(config.schedule, *rates, config.half_period)
    return training.make_optimizer(config.optimizer, schedule, config.weight_decay, eps=config.eps, counts=counts)


def build_ensemble(config: Config) -> "Ensemble":
    """Return tied and untied members of a resolved configuration, with what is recorded of them.

    Both engines of a model without positions see the same batches: `plain` as sequences, `fast` as multisets.
    """
    import jax
    import jax.numpy as jnp

    from tiejax import training, tying
    from tiejax.analysis import pairwise_distances, use_gradients
    from tiejax.data import exor_batches, exor_multisets
    from tiejax.models import multiset

    assert config.steps is not None
    assert config.exact_every is not None
    tasks, model = config.tasks, build_model(config)
    task, splits = tasks[0], exor.split(tasks[0].bits)
    fast = config.engine == "fast"

    def init(key: jax.Array) -> Any:
        return model.init(key, jnp.zeros((1, task.length), jnp.int32), jnp.zeros(1, jnp.int32))["params"]

    def of_condition(by_condition: Sequence[Any], subject: Any) -> Any:
        if len(by_condition) == 1:  # not one copy a seed
            return by_condition[0]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[subject.condition], *by_condition)

    def visits(batch_size: int | None) -> Any:
        """Return (data key, order key, step, condition) -> batch, in the form that the engine takes."""
        if config.ordered:
            sampler = exor_batches.Sampler(task, splits["train"], batch_size)
            return lambda data_key, order_key, step, condition: sampler.batch(data_key, order_key, step)
        multisets = exor_multisets.MultisetSampler(tasks, splits["train"], batch_size)
        return multisets.multisets if fast else multisets.batch

    draw_train, draw_redrawn = visits(config.batch_size), visits(None)

    def draw(subject: Any, step: jax.Array, fed: None) -> Any:
        keys = training.stream(subject.key, "data"), training.stream(subject.key, "order")
        return draw_train(*keys, step, subject.condition)

    def logits(params: Any, batch: Any, key: jax.Array | None) -> jax.Array:
        drops = key is not None and config.dropout > 0
        rngs = {"dropout": key} if drops else None
        return model.apply({"params": params}, batch.tokens, batch.position, deterministic=not drops, rngs=rngs)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        if fast:
            return training.asked_loss(multiset.logits(model, params, batch.counts, task.mask), batch.asked)
        return training.masked_lm_loss(logits, params, batch, key)

    def measure(params: Any, batch: Any, subject: Any, step: jax.Array) -> dict[str, jax.Array]:
        data_key = training.stream(subject.key, "validation")
        validation = {"redrawn": draw_redrawn(data_key, subject.key, step, subject.condition)}
        if len(splits["validation"]):
            frozen = of_condition([exor_batches.frozen(each, splits["validation"]) for each in tasks], subject)
            validation["frozen"] = exor_multisets.count(frozen, task.vocabulary) if fast else frozen
        sampled = {f"validation_{name}": loss(params, visit, None)[1] for name, visit in validation.items()}
        sampled["train"] = loss(params, batch, jax.random.fold_in(training.stream(subject.key, "dropout"), step))[1]
        found = {
            "distance_input": pairwise_distances(params["embed"]["embedding"]),
            "distance_output": pairwise_distances(params["head"]["embedding"]),
            **{f"{name}_{metric}": value for name, metrics in sampled.items() for metric, value in metrics.items()},
        }
        finite = {"finite": training.all_finite((params, found))}
        # Of the tied loss these sum to the table's gradient; each symbol is a bucket.
        own = jax.grad(lambda params: loss(params, batch, None)[0])(params)
        symbols = jnp.arange(task.vocabulary)
        uses = use_gradients(own["embed"]["embedding"], own["head"]["embedding"], symbols, task.vocabulary)
        return found | finite | {f"use_{name}": values for name, values in uses.items()}

    recorders = {"record": training.Recorder(config.record_every, measure)}
    if exor.count_contexts(task, config.ordered) <= exor.MAX_CONTEXTS:
        known = [exor.contexts(each, config.ordered) for each in tasks]
        asking = [exor.asking_pairs(each, contexts) for each, contexts in zip(tasks, known, strict=True)]
        expected = [
            training.Expectations.of(contexts.target, contexts.weight, {name: share for name, (_, share) in own.items()})
            for contexts, own in zip(known, asking, strict=True)
        ]
        pairs = {name: symbols for name, (symbols, _) in asking[0].items()}
        # Pairs are measured in the first task's order, and their log ratios told from the likelier symbol to the other.
        turned = [{name: 1.0 if own[name][0] == pairs[name] else -1.0 for name in pairs} for own in asking]
        counts = exor_multisets.occurrences(known[0].tokens, task.vocabulary).T
        risk = training.exact_risk(
            encode=(
                (lambda params, rows: multiset.encode(model, params, rows.T, task.mask).T)
                if fast
                else (lambda params, rows: model.apply({"params": params}, *rows, method="encode"))
            ),
            output_table=lambda params: params["head"]["embedding"],
            inputs=counts if fast else (known[0].tokens, known[0].position),
            pairs=pairs,
            block=1024 if fast else 256,
        )

        def measure_risk(params: Any, batch: Any, subject: Any, step: jax.Array) -> dict[str, jax.Array]:
            found = risk(params, of_condition(expected, subject))
            sign = of_condition(turned, subject)
            return found | {f"log_ratio_{name}": sign[name] * found[f"log_ratio_{name}"] for name in pairs}

        recorders["exact"] = training.Recorder(config.exact_every, measure_risk)

    return training.Ensemble(
        init=init,
        draw=draw,
        loss=loss,
        optimizer=make_optimizer(config),
        ties=[tying.Tie(*TIED)],
        switches=np.array([[False], [True]]),
        steps=config.steps,
        recorders=recorders,
        max_norm=config.max_norm,
    )


def named_arrays(records: Mapping[str, Mapping[str, np.ndarray]], config: Config) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[variant, seed, record, ...]`, exact ones under `exact_`."""
    from tiejax import training
    from tiejax.analysis import symbol_pairs
    from tiejax.analysis.exor import VARIANTS

    arrays = {
        "variants": np.array(VARIANTS),
        "seeds": np.array([seed for _, seed in config.members]),
        "splits": np.array(exor.SPLITS),
        "pairs": np.array(symbol_pairs(config.tasks[0].vocabulary)),
    }
    if config.doses is not None:
        arrays["dose"] = np.array([config.doses[condition] for condition, _ in config.members])
    return arrays | training.by_variant(records, {"record": "", "exact": "exact_"})


def task_symbols(task: exor.EXor) -> "Symbols":
    """Return what the analysis needs to know of a task."""
    from tiejax.analysis.exor import Symbols

    return Symbols(task.vocabulary, task.even, task.odd, task.used, task.probability)


def draw(
    config: Config,
    metrics: Mapping[str, np.ndarray],
    runs: "Trajectories",
    found: Mapping[str, Any],
    bayes: Mapping[str, Mapping[str, float]],
) -> "list[pages.Drawn]":
    """Return the figures of a run in the order of its report."""
    from tiejax.analysis import exor as findings
    from tiejax.reporting import exor as pages

    task, finite = config.tasks[0], np.asarray(metrics["finite"].all(axis=(0, 2)))
    symbols, names = task_symbols(task), pages.symbol_names(len(task.zero), len(task.one))
    labels = {bit: pages.pair_label(bit, symbols.imbalance(bit)) for bit in ("zero", "one") if bit in runs.distance["input"]}
    exact = {name: runs.exact[name] for name in ("cross_entropy", "accuracy") if name in runs.exact}
    sampled = {
        "cross_entropy": metrics["validation_redrawn_loss"][:, finite],
        "accuracy": metrics["validation_redrawn_accuracy"][:, finite],
    }
    relative = {table: {pair: runs.final(values) for pair, values in pairs.items()} for table, pairs in runs.relative.items()}
    tables = {table: metrics[f"distance_{table}"][:, finite] for table in ("input", "output")}
    drawn = pages.distances(runs.steps, runs.distance, labels, config.figure_style == "published") if labels else []
    return [
        *drawn,
        pages.relative_distances(runs.steps, runs.relative, labels),
        pages.learning(runs.exact_steps, exact, runs.steps, sampled, bayes),
        pages.final_values({name: runs.final(v, exact=True)[..., 0] for name, v in exact.items()}, relative, labels),
        pages.all_distances(runs.steps, tables, metrics["pairs"], names),
        pages.uses(findings.of_seeds(metrics, finite), names, found["uses"]),
    ]


def conclude(config: Config, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[pages.Drawn]]":
    """Return what results.json says of a run of one task, and its figures."""
    from tiejax.analysis import exor as findings

    task = config.tasks[0]
    bayes = {name: exor.bayes(task, rows) for name, rows in {"all": exor.strings(task.bits), **exor.split(task.bits)}.items()}
    found, runs = findings.analyse(metrics, task_symbols(task), bayes["train"][1], 2 * config.half_period)
    named = {name: {"accuracy": accuracy, "cross_entropy": nats} for name, (accuracy, nats) in bayes.items()}
    drawn = draw(config, metrics, runs, found, named) if found["seeds"] else []
    return {"zero": task.zero, "bayes": {**named.pop("all"), "splits": named}, **found}, drawn


def conclude_doses(config: Config, metrics: Mapping[str, np.ndarray]) -> "tuple[dict[str, Any], list[pages.Drawn]]":
    """Return what results.json says of a dose-and-response run, and its figures."""
    from tiejax.analysis.dose_response import analyse_doses
    from tiejax.reporting import dose_response

    assert config.doses is not None
    train = exor.split(config.bits)["train"]
    body, found = analyse_doses(
        metrics,
        np.array([condition for condition, _ in config.members]),
        config.doses,
        [task_symbols(task) for task in config.tasks],
        [exor.bayes(task, train)[1] for task in config.tasks],
        2 * config.half_period,
    )
    responses = found.doses, found.bound, found.gap, found.excess, found.solved
    return body, dose_response.drawn(*responses) if body["seeds"] else []


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

    from tiejax.reporting import dose_response
    from tiejax.reporting import exor as pages

    devices = {"devices": [one.device_kind for one in jax.devices()]}
    facts = run.write_environment(devices, launch.command_of(argv)) if run else {}
    conditions, seeds = zip(*config.members, strict=True)
    models, doses = 2 * len(seeds), f" x {len(config.tasks)} doses" if config.doses is not None else ""
    console.say(
        f"EXor {config.variant_name}, {config.model} {config.size}: {len(config.seed_list)} seeds{doses}, tied and untied, "
        f"{config.steps:,} steps, {config.engine} engine on {jax.device_count()} x {jax.devices()[0].device_kind}, "
        f"in {config.out}"
    )
    ensemble = build_ensemble(config)
    if "exact" not in ensemble.recorders:
        number = exor.count_contexts(config.tasks[0], config.ordered)
        console.warn(f"exact risk is left out: {number:,} contexts are more than {exor.MAX_CONTEXTS:,}")
    trained = launch.train(ensemble, seeds, started, console, stop, models, conditions)
    if not trained.finished:
        return 130
    if run is None:
        return 0

    metrics = named_arrays(trained.records, config)
    run.write_metrics(metrics)
    found, drawn = (conclude if config.doses is None else conclude_doses)(config, metrics)
    results = plain(
        {
            "experiment": "exor",
            "variant": config.variant_name,
            "engine": config.engine,
            "bits": config.bits,
            "one": config.tasks[0].one,
            "model": config.model_settings,
            "steps": config.steps,
            **found,
            "timing": launch.timing(trained, models),
        }
    )
    write_page = pages.page if config.doses is None else dose_response.page
    launch.finish(run, config, results, facts, drawn, write_page, console)
    return 0


if __name__ == "__main__":
    command_line.run_main(main)
