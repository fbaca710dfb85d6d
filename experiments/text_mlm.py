"""Masked-LM pre-training on text with planted twins, tied against untied (Bertolotti and Cazzola, ICML 2024)."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tiejax import launch
from tiejax.data import twins as planting
from tiejax.reporting import checks, command_line, environment
from tiejax.reporting.command_line import BadInput
from tiejax.reporting.console import Console
from tiejax.reporting.run_directory import plain, stop_flag

if TYPE_CHECKING:
    from tiejax.analysis.untying import Variants
    from tiejax.data.prepared import Prepared, Sentences
    from tiejax.data.tokenizer import Vocabulary
    from tiejax.reporting.exor import Drawn
    from tiejax.training import Ensemble

# jax is imported inside functions: a run's configuration is checked before it loads.

TIED = ("embed/embedding", "head/embedding")
UNRELATED_PAIRS = 100  # as published


def default_twins() -> dict[str, list[str]]:
    """Return the common words in two sets of equal frequency: every other one a conflict twin."""
    words = [word.lower() for word in planting.COMMON_WORDS]
    return {"0.5": words[0::2], "0.1": words[1::2]}


@dataclasses.dataclass(frozen=True)
class Config:
    """Masked-LM pre-training on text, tied against untied.

    Args:
        corpus: text files, folders of them, .gz, or tfds:NAME for a TFDS data set with a text feature (default: the prose that
            CPython carries: its documentation topics and the docstrings of its standard library)
        text_feature: which text feature of a TFDS data set, where it has several
        tfds_dir: where TFDS keeps its data sets (default: its own)
        data_dir: where prepared text and trained vocabularies are kept (default: tiejax in the user's cache)
        tokenizer: vocab.txt of a BERT WordPiece, a tokenizer.json, or a name on the hub (default: WordPiece trained on the
            corpus)
        vocab_size: pieces of the trained vocabulary
        max_length: pieces to which a sentence is cut, [CLS] and [SEP] included; also the length of a packed row
        min_length: sentences of fewer pieces are left out
        twins: sets of twins, probability of the twin -> words; at .5 the distributional hypothesis holds, at any other it fails
            (default: every other of the 100 common words at .5, the others at .1); YAML wants quotes around "on" and "no"
        missing_words: what becomes of a twin whose word is not in the vocabulary: leave_out, or as_unknown, a twin of [UNK]
        layers: number of layers
        width: width of embeddings and hidden states
        heads: attention heads
        feed_forward: width of the feed-forward layer
        activation: of the feed-forward layer
        identical_layers: start all layers as copies of one, as torch does
        embedding_std: standard deviation of the embeddings at the start
        positions: none as published, or learned positional embeddings
        layer_norm: after each sublayer (post) or before it (pre)
        dropout: probability of dropping a hidden value in training
        untie_at: instead of tied against untied, train members that are tied and untie at each of these: steps (whole numbers)
            or fractions of the run (with a point, as .5); never and always tied ones are always among them
        untie_policy: what the optimizer remembers of the table that leaves: copy (all), zero (nothing, its bias correction
            restarts), zero-keep-count (no moments, the step count goes on), split (the moments of its own use's gradients)
        untie_new: which table leaves, where that makes a difference (zero, zero-keep-count)
        compute_dtype: of the encoder and the logits' product; parameters and losses stay in float32
        rematerialise: recompute each layer in the backward pass, for deep encoders
        seeds: how many (0, 1, ...), or a list of them, as [3,7,11]
        steps: training steps
        epochs: instead of steps, how often every sentence is visited
        batch_size: sentences a step; packed, on average, since a step takes a fixed number of rows
        packing: packed fills rows with whole sentences that do not see each other; padded, as published, gives each its own row
        optimizer: adamw (decoupled weight decay) or adam (decay added to the gradient)
        learning_rate: the largest learning rate
        schedule: cosine (down to the minimum and up again, never clamped) or constant
        minimum_learning_rate: the smallest learning rate of the cosine
        half_period: steps from the largest to the smallest rate (default: all steps)
        weight_decay: of every parameter
        eps: of the optimizer
        record_every: steps between records of distances, norms and training loss
        validate_every: steps between validations
        validation_batches: batches of one validation, of the same sentences with twins and masks drawn afresh
        checkpoint_every: seconds between checkpoints
        mesh: devices that train one member together, its rows, parameters and optimizer state split over them (default: as many
            as the seeds leave without work). Changes results by no more than rounding, and which values dropout drops. At the
            start and for checkpoints a member still passes through one device
        tensorboard: also write TensorBoard event files, to events/ in the run directory
        out: the run directory
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    text_feature: str | None = None
    tfds_dir: str | None = None
    data_dir: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 8192
    max_length: int = 128
    min_length: int = 4
    twins: dict[str, list[str]] | None = None
    missing_words: Literal["leave_out", "as_unknown"] = "leave_out"
    layers: int = 3
    width: int = 128
    heads: int = 4
    feed_forward: int = 512
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"
    identical_layers: bool = True
    embedding_std: float = 0.3
    positions: Literal["none", "learned"] = "none"
    layer_norm: Literal["post", "pre"] = "post"
    dropout: float = 0.0
    untie_at: list[int | float] | None = None
    untie_policy: Literal["copy", "zero", "zero-keep-count", "split"] = "copy"
    untie_new: Literal["input", "output"] = "output"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    rematerialise: bool = False
    seeds: int | list[int] = 2
    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 32
    packing: Literal["packed", "padded"] = "packed"
    optimizer: Literal["adamw", "adam"] = "adamw"
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    minimum_learning_rate: float = 1e-5
    half_period: int | None = None
    weight_decay: float = 0.01
    eps: float = 1e-12
    record_every: int = 25
    validate_every: int = 250
    validation_batches: int = 16
    checkpoint_every: float = 30.0
    mesh: int | None = None
    tensorboard: bool = False
    out: str = "runs/text_mlm"

    def resolved(self) -> "Config":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
        if self.steps is not None and self.epochs is not None:
            raise BadInput("--steps and --epochs: give one of them")
        given = dataclasses.asdict(self)
        if self.steps is None and self.epochs is None:
            given["steps"] = 1500
        if self.data_dir is None:
            given["data_dir"] = checks.default_data_dir()
        if self.twins is None:
            given["twins"] = default_twins()
        config = Config(**given)
        config.check()
        return config

    def check(self) -> None:
        """Raise BadInput, naming the option, if a resolved configuration cannot be run."""
        seen: dict[float, str] = {}
        if not self.twins:
            raise BadInput("--twins: needs at least one set, as {.5: [the, be]}")
        for probability, words in self.twins.items():
            try:
                value = float(probability)
            except ValueError:
                raise BadInput(f"--twins: must be sets as {{.5: [the, be]}}, {probability!r} is no probability") from None
            if not 0 < value < 1:
                raise BadInput(f"--twins: a twin's probability must lie between 0 and 1, got {probability}")
            if value in seen:
                raise BadInput(f"--twins: one set for each probability, {seen[value]} and {probability} are one")
            seen[value] = probability
            if not words:
                raise BadInput(f"--twins: the set at {probability} has no word")
        checks.check_seeds(self.seeds)
        sizes = ("layers", "width", "heads", "feed_forward", "batch_size", "steps", "half_period", "record_every")
        checks.check_counts(self, (*sizes, "validate_every", "validation_batches", "mesh", "vocab_size"))
        checks.check_not_negative(self, ("learning_rate", "minimum_learning_rate", "weight_decay", "eps", "embedding_std"))
        checks.check_positive(self, ("epochs", "checkpoint_every"))
        if not 3 <= self.max_length <= 4096:
            raise BadInput(f"--max_length: must lie between 3, for [CLS], a piece and [SEP], and 4096, got {self.max_length}")
        if not 3 <= self.min_length <= self.max_length:
            raise BadInput(f"--min_length: must lie between 3 and --max_length {self.max_length}, got {self.min_length}")
        checks.check_model(self)
        checks.check_schedule(self)
        checks.check_untie_at(self)
        if not self.out:
            raise BadInput("--out: must name a directory, got nothing")

    @property
    def seed_list(self) -> list[int]:
        return checks.seed_list(self.seeds)

    @property
    def sets(self) -> dict[float, list[str]]:
        """The sets of twins, by probability."""
        return {float(probability): words for probability, words in (self.twins or {}).items()}


EXPERIMENT = launch.Experiment(
    Config,
    command_line.CommandLine(
        description="Train tied and untied masked language models on text in which common words have planted twins, and report "
        "how twins and unrelated words move, with paired statistics, figures and a report in a run directory.",
        example="Example: python experiments/text_mlm.py --corpus novels/ --seeds 4 --steps 3000. Settings, the published ones "
        "among them, are in configs/text_mlm/. Text is prepared once and found again. A run that was interrupted goes on with "
        "the same command and --resume.",
        switches=launch.SWITCHES,
    ),
    free=("checkpoint_every", "data_dir", "mesh"),
)


class Text(NamedTuple):
    """What is trained on: sentences, their vocabulary, and its twins."""

    vocabulary: "Vocabulary"
    twins: planting.Twins
    train: "Sentences"
    validation: "Sentences"
    facts: dict[str, Any]
    tokenizer: bytes


class Plan(NamedTuple):
    """What the text decides of a run. rows: of a step. slots: of a device's part of them. mesh: devices a member."""

    steps: int
    half_period: int
    rows: int
    slots: int
    mesh: int
    padding: float  # its share of the rows
    tokens: float  # real pieces of one step


def prepare(config: Config, console: Console, resume: bool = False) -> tuple[Text, Plan]:
    """Return the text of a configuration and the plan that follows from it; raises BadInput.

    resume: with the vocabulary that the run was started with.
    """
    from tiejax.data.corpus import CorpusError
    from tiejax.data.prepared import prepare as prepare_text

    try:
        with console.preparing() as progress:
            assert config.data_dir is not None
            prepared = prepare_text(
                config.corpus,
                launch.tokenizer_of(config, resume),
                config.vocab_size,
                config.max_length,
                config.min_length,
                Path(config.data_dir).expanduser(),
                text_feature=config.text_feature,
                tfds_dir=config.tfds_dir,
                say=console.say,
                progress=progress,
            )
            text = read(config, prepared, console.warn)
    except CorpusError as error:
        raise BadInput(str(error)) from None
    # One device a core is faster where the members can be dealt out evenly, one device over all cores where they cannot.
    if config.mesh is not None or len(config.seed_list) % environment.cores() == 0:
        environment.one_device_a_core()
    import jax

    return text, plan(config, text, jax.device_count(), jax.local_device_count())


def read(config: Config, prepared: "Prepared", warn: Callable[[str], None] = lambda line: None) -> Text:
    """Return the sentences of a prepared text, with the twins of a configuration; raises BadInput."""
    vocabulary = prepared.vocabulary
    unknown = vocabulary.unknown if config.missing_words == "as_unknown" else None
    try:
        twins, missing = planting.plant(config.sets, vocabulary.size, vocabulary.id_of, unknown)
    except ValueError as error:
        raise BadInput(f"--twins: {error}") from None
    if missing:
        become = "a twin of the unknown piece" if unknown is not None else "left out"
        warn(f"not in the vocabulary, so {become}: {', '.join(missing)}")
    train, validation = prepared.split("train"), prepared.split("validation")
    for name, sentences in (("training", train), ("validation", validation)):
        if len(sentences.offsets) < 2:
            raise BadInput(f"--corpus: {prepared.facts['corpus']} leaves no sentence for {name}; give more text")
    facts = prepared.facts | {"fingerprint": prepared.fingerprint}
    return Text(vocabulary, twins, train, validation, facts, prepared.tokenizer_file.read_bytes())


def plan(config: Config, text: Text, devices: int, local: int) -> Plan:
    """Return steps, rows and devices a member for so many devices, so many of them to a process; raises BadInput."""
    from tiejax.data import text_batches, text_rows

    # A process holds whole members, or an equal part of one.
    fitting = [size for size in range(1, devices + 1) if devices % size == 0 and (local % size == 0 or size % local == 0)]
    mesh = config.mesh
    if mesh is None:
        mesh = min(size for size in fitting if len(config.seed_list) % (devices // size) == 0)
    elif mesh not in fitting:
        raise BadInput(f"--mesh: {mesh} devices a member do not fit {devices} devices; give {', '.join(map(str, fitting))}")
    lengths, packed = np.diff(text.train.offsets), config.packing == "packed"
    rows = text_rows.rows_for(lengths, config.batch_size, config.max_length) if packed else config.batch_size
    if rows * config.max_length > 2**24:
        raise BadInput(f"--batch_size: {config.batch_size} sentences make {rows * config.max_length:,} places, too many")
    row = text_rows.filling(lengths, config.max_length, packed)
    visited = config.steps
    if visited is None:
        assert config.epochs is not None
        visited = max(1, round(config.epochs * float(lengths.sum()) / (rows * row.pieces)))
    own = -(-rows // mesh)
    slots = text_batches.slots_for(own * row.maskable, own * row.variance, own * config.max_length)
    padding = 1 - row.pieces / config.max_length
    return Plan(visited, config.half_period or visited, rows, slots, mesh, padding, rows * row.pieces)


def build_model(config: Config, text: Text) -> Any:
    """Return the masked LM of a configuration."""
    import jax.numpy as jnp

    from tiejax import models

    dtype = None if config.compute_dtype == "float32" else jnp.dtype(config.compute_dtype)
    encoder = models.Transformer(
        config.layers,
        config.width,
        config.heads,
        config.feed_forward,
        config.activation,
        config.dropout,
        config.identical_layers,
        rematerialise=config.rematerialise,
        norm_first=config.layer_norm == "pre",
        dtype=dtype,
    )
    return models.LanguageModel(
        text.twins.vocabulary,
        config.width,
        encoder,
        embedding_std=config.embedding_std,
        padding=text.vocabulary.pad,
        max_positions=config.max_length if config.positions == "learned" else None,
        dtype=dtype,
    )


def pairs_of(text: Text) -> tuple[list[tuple[int, int]], dict[str, np.ndarray]]:
    """Return the pairs of ids whose distances are recorded, and what metrics.npz says of them.

    Every word and its twin, set by set, then as many unrelated pairs of words as the paper takes.
    """
    twins, unknown = text.twins, text.vocabulary.unknown
    # The unknown piece is never a target, its twin is: as targets go, the twin is all there is.
    target = [1.0 if own == unknown else p for own, p in zip(twins.ids, twins.probability, strict=True)]
    probabilities = sorted(set(target), key=lambda p: (p != 0.5, -p))
    found: list[tuple[int, int]] = []
    words: list[str] = []
    of_set: list[int] = []
    for number, probability in enumerate(probabilities):
        for place, own in enumerate(target):
            if own == probability:
                found.append((twins.ids[place], twins.size + place))
                words.append(twins.words[place])
                of_set.append(number)
    known = [place for place, own in enumerate(twins.ids) if own != unknown]
    for one, other in planting.unrelated(len(known), UNRELATED_PAIRS):
        first, second = known[one], known[other]
        found.append((twins.ids[first], twins.ids[second]))
        words.append(f"{twins.words[first]}/{twins.words[second]}")
        of_set.append(len(probabilities))
    names = ["twin of the unknown piece" if p == 1 else f"twins {f'{p:g}'.removeprefix('0')}" for p in probabilities]
    return found, {
        "pair_words": np.array(words),
        "pair_set": np.array(of_set, dtype=int),
        "set_names": np.array([*names, "unrelated"]),
        "set_probability": np.array([*probabilities, np.nan]),
    }


def buckets_of(text: Text) -> tuple[list[str], np.ndarray]:
    """Return the token-frequency buckets of the training split: their names, and the bucket of every id."""
    from tiejax.data import text_batches

    return text_batches.buckets(np.bincount(text.train.ids, minlength=text.vocabulary.size), text.twins)


def build_ensemble(config: Config, text: Text, planned: Plan) -> "Ensemble":
    """Return tied and untied members of a resolved configuration, with what is recorded of them."""
    import jax
    import jax.numpy as jnp

    from tiejax import training, tying
    from tiejax.analysis import use_gradients
    from tiejax.data import text_batches, text_rows

    model = build_model(config, text)
    own_rows, packed = -(-planned.rows // planned.mesh), config.packing == "packed"
    masking = text_batches.Masking(text.twins, text.vocabulary.special, text.vocabulary.mask, planned.slots)

    def init(key: jax.Array) -> Any:
        return model.init(key, jnp.zeros((1, config.max_length), jnp.int32))["params"]

    def draw(subject: Any, step: jax.Array, fed: Any) -> Any:
        key = jax.random.fold_in(training.stream(subject.key, "data"), step)
        return masking.visit(fed.tokens, fed.segments, fed.row, key)

    def predict(params: Any, batch: Any, key: jax.Array | None) -> tuple[jax.Array, Any]:
        drops = key is not None and config.dropout > 0
        # Other rows, other masks of dropout.
        rngs = {"dropout": jax.random.fold_in(key, batch.row[0])} if key is not None and drops else None
        encoded = model.apply({"params": params}, batch.tokens, None, batch.segments, not drops, rngs=rngs, method="encode")
        states = encoded.reshape(-1, config.width)[batch.slot]
        return training.predict_slots(states, params["head"]["embedding"], batch.target, batch.weight)

    def loss(params: Any, batch: Any, key: jax.Array | None) -> Any:
        sum_of, predicted = predict(params, batch, key)
        right = jnp.sum(batch.weight * predicted.correct)
        number, sums, rights = training.total((jnp.sum(batch.weight), sum_of, right))
        number = jnp.maximum(number, 1)
        return sum_of / number, {"loss": sums / number, "accuracy": rights / number}

    pairs = jnp.asarray(pairs_of(text)[0], jnp.int32).reshape(-1, 2)
    names, bucket = buckets_of(text)

    def measure(params: Any, batch: Any, subject: Any, step: jax.Array) -> dict[str, jax.Array]:
        (_, metrics), own = jax.value_and_grad(loss, has_aux=True)(params, batch, None)
        found = {f"train_{name}": value for name, value in metrics.items()}
        # Of the tied loss these sum to the table's gradient.
        of_input, of_output = training.total((own["embed"]["embedding"], own["head"]["embedding"]))
        uses = use_gradients(of_input, of_output, bucket, len(names))
        found |= {f"use_{name}": value for name, value in uses.items()}
        for name, part in (("input", "embed"), ("output", "head")):
            table = params[part]["embedding"]
            found[f"distance_{name}"] = jnp.linalg.norm(table[pairs[:, 0]] - table[pairs[:, 1]], axis=-1)
            found[f"norm_{name}"] = jnp.mean(jnp.linalg.norm(table, axis=-1))
        finite = training.all_finite((params, metrics))
        return found | {"overflow": training.total(batch.overflow), "finite": finite}

    stream = text_rows.Stream(*text.validation, config.max_length, text.vocabulary.pad, 0, packed)
    shape = config.validation_batches, planned.rows, config.max_length
    everywhere = np.arange(own_rows * planned.mesh)
    held_out = [
        text_rows.take_rows(leaf.reshape(shape), everywhere, empty)
        for leaf, empty in zip(stream.rows(0, shape[0] * shape[1]), (text.vocabulary.pad, 0), strict=True)
    ]

    def validate(params: Any, batch: Any, subject: Any, step: jax.Array) -> dict[str, jax.Array]:
        visit = jax.random.fold_in(training.stream(subject.key, "validation"), step)
        first = jax.lax.axis_index(training.DATA) * own_rows
        row = first + jnp.arange(own_rows)

        def one(part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            number, tokens, segments = part
            tokens, segments = (jax.lax.dynamic_slice_in_dim(leaf, first, own_rows) for leaf in (tokens, segments))
            drawn = masking.visit(tokens, segments, row, jax.random.fold_in(visit, number))
            _, predicted = predict(params, drawn, None)
            rows = jnp.stack([drawn.weight, drawn.weight * predicted.cross_entropy, drawn.weight * predicted.correct])
            return rows @ jax.nn.one_hot(jnp.asarray(bucket)[drawn.target], len(names))

        parts = jnp.arange(config.validation_batches), *(jnp.asarray(leaf) for leaf in held_out)
        counted, nats, right = training.total(jnp.sum(jax.lax.map(one, parts), axis=0))
        return {
            "loss": jnp.sum(nats) / jnp.sum(counted),
            "accuracy": jnp.sum(right) / jnp.sum(counted),
            "bucket_loss": nats / counted,
            "bucket_accuracy": right / counted,
            "bucket_count": counted,
        }

    schedule, variants = schedule_of(config, planned), variants_of(config, planned)
    switches, phases = np.array([[False], [True]]), None
    if variants is not None:
        switches, phases = training.of_variants(
            variants.step.tolist(), planned.steps, variants.policy.tolist(), variants.new.tolist()
        )
    counts: Literal["all", "leaf"] = "all" if variants is None else "leaf"
    return training.Ensemble(
        init=init,
        draw=draw,
        loss=loss,
        optimizer=training.make_optimizer(config.optimizer, schedule, config.weight_decay, eps=config.eps, counts=counts),
        ties=[tying.Tie(*TIED)],
        switches=switches,
        phases=phases,
        steps=planned.steps,
        recorders={
            "record": training.Recorder(config.record_every, measure),
            "validation": training.Recorder(config.validate_every, validate),
        },
        feed=text_rows.TextFeed(*text.train, config.max_length, text.vocabulary.pad, planned.rows, packed),
        together=False,
        devices=planned.mesh,
    )


def variants_of(config: Config, planned: Plan) -> "Variants | None":
    """Return the variants of a run whose members untie; None for tied against untied."""
    if config.untie_at is None:
        return None
    from tiejax.analysis.untying import Variants

    return Variants.of(config.untie_at, planned.steps, [config.untie_policy], [config.untie_new])


def schedule_of(config: Config, planned: Plan) -> Any:
    """Return the learning-rate schedule of a run."""
    from tiejax import training

    rates = config.learning_rate, config.minimum_learning_rate
    return training.make_schedule(config.schedule, *rates, planned.half_period)


def reach(config: Config, planned: Plan) -> dict[str, float]:
    """Return the sum of the learning rates, about as far as Adam moves a coordinate, and how far apart two words start."""
    import jax.numpy as jnp

    rates = jnp.broadcast_to(schedule_of(config, planned)(jnp.arange(planned.steps)), (planned.steps,))
    return {"per_coordinate": float(jnp.sum(rates)), "initial": config.embedding_std * math.sqrt(2)}


def named_arrays(
    records: Mapping[str, Mapping[str, np.ndarray]], config: Config, text: Text, variants: "Variants | None" = None
) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[variant, seed, record, ...]`, validations under `validation_`."""
    from tiejax import training
    from tiejax.analysis.exor import VARIANTS

    arrays = {
        "variants": np.array(VARIANTS),
        "seeds": np.array(config.seed_list),
        "bucket_names": np.array(buckets_of(text)[0]),
        **pairs_of(text)[1],
    }
    if variants is not None:
        arrays |= variants.arrays
    return arrays | training.by_variant(records, {"record": "", "validation": "validation_"})


def scalars(
    records: Mapping[str, Mapping[str, np.ndarray]], pairs: Mapping[str, np.ndarray]
) -> "list[tuple[dict[str, np.ndarray], np.ndarray]]":
    """Return what TensorBoard is shown of records: points `[record, seed, variant]` by name, and their steps.

    pairs: what `pairs_of` says of the recorded distances.
    """
    record = records["record"]
    shown = {name: record[name] for name in ("train_loss", "train_accuracy", "norm_input", "norm_output")}
    for number, name in enumerate(pairs["set_names"]):
        for table in ("input", "output"):
            of_set = record[f"distance_{table}"][..., pairs["pair_set"] == number]
            if of_set.shape[-1]:
                shown[f"distance_{table}/{name}"] = of_set.mean(-1)
    validation = records["validation"]
    held_out = {f"validation_{name}": validation[name] for name in ("loss", "accuracy")}
    return [(shown, record["step"]), (held_out, validation["step"])]


def facts_of_model(config: Config, ensemble: "Ensemble") -> dict[str, Any]:
    """Return what results say of the model, with the parameters of each variant."""
    import jax

    shapes = jax.eval_shape(ensemble.init, jax.random.key(0))
    number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    names = ("activation", "positions", "layer_norm", "dropout", "compute_dtype", "embedding_std")
    return {
        "architecture": "transformer",
        **{name: getattr(config, name) for name in names},
        "parameters_untied": number,
        "parameters_tied": number - math.prod(shapes["head"]["embedding"].shape),
    }


def conclude(metrics: Mapping[str, np.ndarray], decay: float) -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run, tied against untied, and its figures."""
    from tiejax.analysis.text_mlm import analyse
    from tiejax.reporting import text_mlm as pages

    found, runs = analyse(metrics, decay)
    return found, pages.drawn(runs, found)


def conclude_untying(metrics: Mapping[str, np.ndarray], variants: "Variants") -> "tuple[dict[str, Any], list[Drawn]]":
    """Return what results.json says of a run whose members untie, and its figures."""
    from tiejax.analysis import exor, text_mlm, untying
    from tiejax.reporting import untying as pages

    finite, lasted = exor.who_lasted(metrics)
    found: dict[str, Any] = {**lasted, "claims": [], "curves": []}
    if not finite.any():
        return found, []
    runs = exor.of_seeds(metrics, finite)
    loss = text_mlm.final(runs["validation_loss"])
    others = {"accuracy": text_mlm.final(runs["validation_accuracy"])}
    distances = {}
    for number, name in enumerate(runs["set_names"]):
        for table in ("input", "output"):
            ratio = text_mlm.distance_ratio(runs, f"distance_{table}")[..., runs["pair_set"] == number]
            if ratio.shape[-1]:
                distances[f"{name}, {table}"] = np.median(ratio, axis=-1)
    others |= {f"distance, end / start, {name}": values for name, values in distances.items()}
    found |= untying.analyse(variants, loss, None, others, "validation loss")
    curves, title = variants.curves(), "validation loss (nats a masked piece)"
    return found, [
        pages.curve(found, title, curves, variants.step, None, None),
        pages.distances(distances, curves, variants.step, "distance, end / start"),
        pages.trajectories(runs["validation_step"], runs["validation_loss"], curves, variants.step, title, None),
    ]


def main(argv: Sequence[str]) -> int:
    """Run the experiment; return its exit status."""
    quiet = "--quiet" in argv
    together = "--distributed" in argv or environment.names_a_cluster()
    if together:
        environment.one_device_a_core()
    started = launch.start(
        EXPERIMENT, argv, lambda config, first: prepare(config, Console(quiet, silent=not first), "--resume" in argv)
    )
    config, run = started.config, started.run
    console = Console(quiet, silent=not started.first)
    if started.finished:
        console.result(f"the run is finished: {Path(config.out) / 'report.html'}")
        return 0
    text, planned = started.prepared
    if run is not None:
        launch.keep_text(run, text.facts, text.tokenizer)
    stop = stop_flag()

    import jax

    from tiejax.training import cluster

    own = np.frombuffer(bytes.fromhex(text.facts["fingerprint"])[:8], np.int64).tolist()
    if len({tuple(other) for other in cluster.or_die(lambda: cluster.agree(own))}) > 1:
        raise BadInput("--data_dir: the processes have prepared different texts; give one that all share, or a --tokenizer")
    # Accelerators multiply float32 in fewer bits unless told otherwise.
    if config.compute_dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")

    from tiejax.reporting import text_mlm as pages
    from tiejax.reporting import untying as curves

    devices = {"devices": [one.device_kind for one in jax.devices()]}
    facts = run.write_environment(devices, launch.command_of(argv)) if run else {}
    variants = variants_of(config, planned)
    models = (2 if variants is None else len(variants.step)) * len(config.seed_list)
    far = reach(config, planned)
    sentences = {name: facts["sentences"] for name, facts in text.facts["splits"].items()}
    console.say(
        f"text: {sentences['train']:,} sentences for training, {sentences['validation']:,} for validation; "
        f"{text.vocabulary.size:,} pieces and {len(text.twins.ids)} twins; fingerprint {text.facts['fingerprint'][:16]}"
    )
    console.say(
        f"{len(config.seed_list)} seeds, {models} models tied and untied, {planned.steps:,} steps of {planned.rows} rows "
        f"({planned.tokens:,.0f} pieces, {planned.padding:.1%} padding) on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}, {planned.mesh} a member, in {config.out}"
    )
    console.say(
        f"reach: learning rates sum to {far['per_coordinate']:.3g}, words start {far['initial']:.3g} apart a coordinate"
    )
    if 2 * far["per_coordinate"] < far["initial"]:
        console.warn("twins cannot meet in this run: raise --steps or --learning_rate")
    ensemble = build_ensemble(config, text, planned)
    events, pairs = None, pairs_of(text)[1]
    if config.tensorboard and run is not None:
        from tiejax.reporting.event_files import EventFiles

        # Records of a checkpoint come again when a run is resumed, so every process writes from the first step.
        names = ("untied", "tied") if variants is None else variants.names
        events = EventFiles(run.path / "events", config.seed_list, variants=names)

    def write_events(records: Any) -> None:
        if events is not None:
            for points, steps in scalars(records, pairs):
                events.write(points, steps)

    trained = launch.train(ensemble, config.seed_list, started, console, stop, models, on_records=write_events)
    if events is not None:
        events.close()
    if not trained.finished:
        return 130
    if run is None:
        return 0

    metrics = named_arrays(trained.records, config, text, variants)
    run.write_metrics(metrics)
    decay = config.weight_decay * far["per_coordinate"] if config.optimizer == "adamw" else 0.0
    found, drawn = conclude(metrics, decay) if variants is None else conclude_untying(metrics, variants)
    timing = launch.timing(trained, models)
    rate = timing["model_steps_per_s"]
    results = plain(
        {
            "experiment": "text_mlm",
            "data": text.facts,
            "model": facts_of_model(config, ensemble),
            "steps": planned.steps,
            "reach": far,
            **found,
            "timing": {
                **timing,
                "tokens_per_s": rate * planned.tokens if rate else None,
                "idle_share": trained.idle_share if rate else None,
                "padding": planned.padding,
            },
        }
    )
    launch.finish(run, config, results, facts, drawn, pages.page if variants is None else curves.page_on_text, console)
    return 0


if __name__ == "__main__":
    command_line.run_main(main)
