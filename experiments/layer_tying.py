"""Layers tied and untied by an agent while a model trains (Hay and Wolf, ICLR 2024), against fixed maps on the same batches."""

import concurrent.futures
import dataclasses
import io
import json
import math
import threading
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tiejax import launch
from tiejax.reporting import checks, command_line, environment
from tiejax.reporting.command_line import BadInput
from tiejax.reporting.console import Console, counted
from tiejax.reporting.run_directory import RunDirectory, plain, stop_flag

if TYPE_CHECKING:
    import jax

    from tiejax.data.streams import Streams
    from tiejax.training.layered import Layered
    from tiejax.training.tying_run import Data, Job, Protocol, Records

# jax is imported inside functions: a run's configuration is checked before it loads.

AGENTS = {"agent": "learner", "random-agent": "random"}
AFTER_AGENT = ("random-map", "found-map")
METHODS = (*AGENTS, "untied", "all-one", "sequence", "cycle", "cycle-reversed", "sandwich", "reversed-halves", *AFTER_AGENT)
TABLES = ("embed/embedding", "head/embedding")
RANDOM_MAPS = 1004  # a stream of randomness that nothing else draws from
FINISHED = "finished"


@dataclasses.dataclass(frozen=True)
class Config:
    """Dynamic layer tying: an agent's ties against none, fixed maps and random ones.

    Args:
        corpus: text files, folders of them, .gz, or tfds:NAME; a folder with one file each called train, valid and test is
            split so (default: the prose that CPython carries)
        validation: text that chooses the best step (default: the ninth tenth of the corpus)
        test: text that is reported on (default: the last tenth of the corpus)
        text_feature: which text feature of a TFDS data set, where it has several
        tfds_dir: where TFDS keeps its data sets (default: its own)
        data_dir: where prepared text and trained vocabularies are kept (default: tiejax in the user's cache)
        tokenizer: folder with GPT-2's vocab.json and merges.txt (or encoder.json and vocab.bpe), a tokenizer.json, or a name on
            the hub (default: byte-level BPE trained on the training text)
        vocab_size: pieces of the trained vocabulary
        context: pieces of a block, the begin piece included
        architecture: block of GPT-2 (pre-LN) or of BERT (post-LN)
        objective: causal predicts the next piece, masked a masked one (15 %, as BERT)
        layers: number of layers
        width: width of embeddings and hidden states
        heads: attention heads
        feed_forward: width of the feed-forward layer (default: four times the width)
        activation: of the feed-forward layer: gelu (exact) or gelu_tanh (the hub's GPT-2)
        dropout: probability of dropping a hidden value in training
        dtype: of weights, moments and computation; losses are float32
        methods: what is trained, any of agent, random-agent, untied, all-one, sequence, cycle, cycle-reversed, sandwich,
            reversed-halves, random-map (as many distinct layers as the agent has at its best step) and found-map (the agent's
            map of its best step, from scratch)
        maps: fixed maps of your own, name -> the layer whose weights each layer has, as {mine: [0, 0, 2, 2]}
        distinct: distinct layers of sequence, cycle and cycle-reversed, and of random-map where there is no agent (default: a
            quarter of the layers)
        steps: training steps of every method (default: 2,000 unless episodes are given)
        episodes: instead of steps, episodes of the agent: one action a layer above the first, k batches an action
        k: batches between two actions
        ties: resolved (a copy of a copy has its owner, and a layer that becomes independent has weights of its own), or
            published (as the published code: neither; see the README)
        gradient: of all uses of shared weights, or of the owner's own alone
        start: tied (all copies of layer 0), independent, or frozen-random (as the published code: layers above the first
            keep their random weights until the agent has chosen for them)
        reward: of one more training batch after each action: negative-loss, negative-ppl (the paper's), or clipped-ppl (the
            published code's: between -10 and 10, so that it says nothing while perplexity is above 10)
        moments: what Adam remembers of a layer that becomes independent: copy (its owner's moments) or zero
        epsilon_floor: the least probability of a random action; it is .95 to the power of the episode before
        storage: compact holds distinct layers alone, full all of them (one executable)
        seeds: how many (0, 1, ...), or a list of them, as [3,7,11]
        batch_size: blocks a step
        learning_rate: of AdamW, constant
        weight_decay: of every parameter
        clip: the gradient is clipped at this global norm
        validate_every: steps between validations
        validation_blocks: blocks of a validation, evenly over the split; the best step is then judged on the whole split
        test_blocks: blocks of each held-out split that the best step is judged on (default: all)
        checkpoint_every: seconds between checkpoints
        out: the run directory
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    validation: list[str] = dataclasses.field(default_factory=list)
    test: list[str] = dataclasses.field(default_factory=list)
    text_feature: str | None = None
    tfds_dir: str | None = None
    data_dir: str | None = None
    tokenizer: str | None = None
    vocab_size: int = 4096
    context: int = 128
    architecture: Literal["gpt2", "bert"] = "gpt2"
    objective: Literal["causal", "masked"] = "causal"
    layers: int = 12
    width: int = 128
    heads: int = 4
    feed_forward: int | None = None
    activation: Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"] = "gelu"
    dropout: float = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    methods: list[str] = dataclasses.field(default_factory=lambda: list(METHODS))
    maps: dict[str, list[int]] | None = None
    distinct: int | None = None
    steps: int | None = None
    episodes: int | None = None
    k: int = 4
    ties: Literal["resolved", "published"] = "resolved"
    gradient: Literal["all", "owner"] = "all"
    start: Literal["tied", "independent", "frozen-random"] = "tied"
    reward: Literal["negative-loss", "negative-ppl", "clipped-ppl"] = "negative-loss"
    moments: Literal["copy", "zero"] = "copy"
    epsilon_floor: float = 0.1
    storage: Literal["compact", "full"] = "compact"
    seeds: int | list[int] = 1
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    validate_every: int = 250
    validation_blocks: int = 256
    test_blocks: int | None = None
    checkpoint_every: float = 30.0
    out: str = "runs/layer_tying"

    def resolved(self) -> "Config":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
        if self.steps is not None and self.episodes is not None:
            raise BadInput("--steps and --episodes: give one of them")
        checks.check_counts(self, ("layers", "width", "k", "episodes"))
        given = dataclasses.asdict(self)
        if self.steps is None:
            actions = None if self.episodes is None else self.episodes * max(1, self.layers - 1)
            given["steps"], given["episodes"] = 2000 if actions is None else actions * self.k, None
        if self.data_dir is None:
            given["data_dir"] = checks.default_data_dir()
        given["feed_forward"] = 4 * self.width if self.feed_forward is None else self.feed_forward
        given["distinct"] = max(1, self.layers // 4) if self.distinct is None else self.distinct
        config = Config(**given)
        config.check()
        return config

    def check(self) -> None:
        """Raise BadInput, naming the option, if a resolved configuration cannot be run."""
        checks.check_seeds(self.seeds)
        sizes = ("heads", "feed_forward", "vocab_size", "batch_size", "steps", "validate_every", "validation_blocks")
        checks.check_counts(self, (*sizes, "test_blocks", "distinct"))
        checks.check_not_negative(self, ("learning_rate", "weight_decay"))
        checks.check_positive(self, ("clip", "checkpoint_every"))
        if not 0 <= self.epsilon_floor <= 1:
            raise BadInput(f"--epsilon_floor: must lie between 0 and 1, got {self.epsilon_floor}")
        if not 2 <= self.context <= 65536:
            raise BadInput(f"--context: must lie between 2, a begin piece and another, and 65536, got {self.context}")
        checks.check_model(self)
        if self.distinct is not None and self.distinct > self.layers:
            raise BadInput(f"--distinct: {self.distinct} is more than --layers {self.layers}")
        if self.maps:
            from tiejax import tying

            try:
                tying.check_maps(self.maps, self.layers)
            except tying.TieError as error:
                raise BadInput(f"--maps: {error}") from None
        if not self.methods and not self.maps:
            raise BadInput(f"--methods: needs at least one of {', '.join(METHODS)}")
        for name in self.methods:
            if name not in METHODS:
                raise BadInput(f"--methods: there is no {name}; there are {', '.join(METHODS)}")
        names = [*self.methods, *(self.maps or {})]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"--methods and --maps: every name once, {repeated[0]} is repeated")
        if any(not name or not name.replace("-", "").replace("_", "").isalnum() for name in self.maps or {}):
            raise BadInput("--maps: a name is letters, digits, - and _")
        if self.layers < 2 and any(name in AGENTS for name in self.methods):
            raise BadInput("--layers: an agent needs at least 2, the first layer being always its own")
        if "found-map" in self.methods and "agent" not in self.methods:
            raise BadInput("--methods: found-map is the agent's map, so it needs agent as well")
        if self.ties == "published" and self.gradient == "all":
            raise BadInput("--gradient: ties published send gradient of the owner's own use alone; give owner")
        if not self.out:
            raise BadInput("--out: must name a directory, got nothing")

    @property
    def seed_list(self) -> list[int]:
        return checks.seed_list(self.seeds)

    @property
    def names(self) -> list[str]:
        """All methods, agents first, then maps of the user's own, then what waits for an agent."""
        own = [name for name in self.methods if name not in AFTER_AGENT]
        late = [name for name in self.methods if name in AFTER_AGENT]
        return [*sorted(own, key=lambda name: name not in AGENTS), *(self.maps or {}), *late]


EXPERIMENT = launch.Experiment(
    Config,
    command_line.CommandLine(
        description="Train a transformer whose layers are tied and untied by an agent that learns while the model does and, on "
        "the same batches, models untied, with fixed maps and with random ones; report perplexities, memory, time and ties, "
        "with figures and a report in a run directory.",
        example="Example: python experiments/layer_tying.py --corpus wikitext-2/ --seeds 3. Settings, the published ones among "
        "them, are in configs/layer_tying/. Every method of every seed is a model of its own, one on each device at a time. "
        "What was interrupted goes on with the same command and --resume.",
        switches={name: text for name, text in launch.SWITCHES.items() if name != "distributed"},
    ),
    free=("checkpoint_every", "data_dir"),
    alone=True,
)


class Text(NamedTuple):
    """What is trained on: streams of pieces, and each cut into blocks."""

    streams: "Streams"
    blocks: dict[str, np.ndarray]


def prepare(config: Config, console: Console, resume: bool = False) -> Text:
    """Return the text of a configuration, in blocks; raises BadInput.

    resume: with the vocabulary that the run was started with.
    """
    from tiejax.data import blocks, streams
    from tiejax.data.corpus import CorpusError

    assert config.data_dir is not None
    try:
        with console.preparing() as progress:
            found = streams.prepare(
                config.corpus,
                config.validation,
                config.test,
                launch.tokenizer_of(config, resume),
                config.vocab_size,
                Path(config.data_dir).expanduser(),
                text_feature=config.text_feature,
                tfds_dir=config.tfds_dir,
                say=console.say,
                progress=progress,
            )
        of_split = {
            name: blocks.blocks(found.split(name), config.context, found.begin) for name in ("train", "validation", "test")
        }
    except CorpusError as error:
        raise BadInput(str(error)) from None
    return Text(found, of_split)


class Batch(NamedTuple):
    """Blocks of pieces, how much each counts, and what masks are drawn with."""

    tokens: Any
    weight: Any
    key: Any


def build_model(config: Config, vocabulary: int) -> Any:
    """Return the language model of a configuration, for so many pieces of the tokenizer."""
    import jax.numpy as jnp

    from tiejax import models

    pre = config.architecture == "gpt2"
    assert config.feed_forward is not None
    encoder = models.Transformer(
        config.layers,
        config.width,
        config.heads,
        config.feed_forward,
        config.activation,
        config.dropout,
        identical_layers=False,
        height=1,
        rematerialise=True,
        norm_first=pre,
        causal=config.objective == "causal",
        kernel_std=0.02,
        residual_std=0.02 / math.sqrt(2 * config.layers) if pre else 0.02,
        hidden_dropout=False,
        dtype=jnp.dtype(config.dtype),
    )
    return models.LanguageModel(
        vocabulary + (config.objective == "masked"),  # and [MASK]
        config.width,
        encoder,
        embedding_std=0.02,
        max_positions=config.context,
        embedding_norm=not pre,
        embedding_dropout=config.dropout,
        dtype=jnp.dtype(config.dtype),
    )


def initial(config: Config, model: Any) -> Callable[[Any, Any], Any]:
    """Return (root key, layers that own weights) -> parameters; a layer starts the same whatever others there are."""
    import jax
    import jax.numpy as jnp

    from tiejax import training
    from tiejax.training.layered import stack_of, with_stack

    def init(key: jax.Array, own: jax.Array) -> Any:
        tokens = jnp.zeros((1, config.context), jnp.int32)

        def layer(number: jax.Array) -> Any:
            drawn = model.init(jax.random.fold_in(training.stream(key, "layers"), number), tokens)["params"]
            return jax.tree.map(lambda leaf: leaf[0], stack_of(drawn))

        params = model.init(training.stream(key, "init"), tokens)["params"]
        params = with_stack(params, jax.vmap(layer)(own))
        return jax.tree.map(lambda leaf: leaf.astype(config.dtype), params)

    return init


def build(
    config: Config, vocabulary: int, begin: int, device: "jax.Device", other_loss: Callable[..., Any] | None = None
) -> "Layered":
    """Return everything that is compiled of a resolved configuration, for one device.

    other_loss: instead of the experiment's own (for benchmarks).
    """
    import jax
    import jax.numpy as jnp

    from tiejax import training, tying
    from tiejax.data import text_batches
    from tiejax.data.twins import Twins
    from tiejax.training.layered import Layered, LayeredAdamW

    model = build_model(config, vocabulary)
    places = config.batch_size * (config.context - 1)
    masking = text_batches.Masking(Twins(vocabulary, (), (), ()), (begin,), vocabulary, text_batches.slots_for(places))

    def loss(params: Any, batch: Batch, key: jax.Array | None, reads: jax.Array, sends: jax.Array) -> jax.Array:
        tokens = batch.tokens.astype(jnp.int32)
        rngs = {"dropout": key} if key is not None and config.dropout else None
        if config.objective == "masked":
            rows = jnp.arange(len(tokens))
            asked = masking.visit(tokens, jnp.ones_like(tokens), rows, batch.key)
            shown, target = asked.tokens, asked.target
            weight = asked.weight * batch.weight[asked.slot // config.context]
        else:
            shown, target = tokens, tokens[:, 1:].reshape(-1)
            weight = jnp.repeat(batch.weight, config.context - 1)
        states = model.apply({"params": params}, shown, None, None, rngs is None, reads, sends, rngs=rngs, method="encode")
        if config.objective == "masked":
            states = states.reshape(-1, config.width)[asked.slot]
        else:
            states = states[:, :-1].reshape(-1, config.width)
        total, _ = training.predict_slots(states, params["head"]["embedding"], target, weight)
        # Of a small batch it may be that nothing is masked.
        return total / jnp.maximum(jnp.sum(weight), 1)

    return Layered(
        initial(config, model),
        other_loss or loss,
        LayeredAdamW(config.learning_rate, config.weight_decay, config.clip),
        [tying.Tie(*TABLES)],
        config.moments,
        config.storage,
        device,
    )


def build_data(config: Config, text: Text) -> "Data":
    """Return the batches of a run: those of a group are drawn at random, the same for every method of a seed."""
    import jax

    from tiejax import training
    from tiejax.data import blocks
    from tiejax.training.tying_run import Data

    ones = np.ones(config.batch_size, np.float32)

    def group(seed: int, number: int) -> list[Batch]:
        drawn = blocks.batch(text.blocks["train"], config.batch_size, seed, number, config.k + 1)
        masks = jax.random.fold_in(training.stream(jax.random.key(seed), "masks"), number)
        return [Batch(tokens, ones, jax.random.fold_in(masks, place)) for place, tokens in enumerate(drawn)]

    def held_out(split: str, most: int | None) -> list[tuple[Batch, float]]:
        whole = text.blocks[split]
        chosen = np.arange(len(whole))
        if most is not None and most < len(whole):
            chosen = np.arange(most) * len(whole) // most
        masks, found = training.stream(jax.random.key(0), f"{split} masks"), []
        for first in range(0, len(chosen), config.batch_size):
            rows = chosen[first : first + config.batch_size]
            filled = np.resize(rows, config.batch_size)
            weight = (np.arange(config.batch_size) < len(rows)).astype(np.float32)
            found.append((Batch(whole[filled], weight, jax.random.fold_in(masks, first)), float(len(rows))))
        return found

    return Data(
        group,
        held_out("validation", config.validation_blocks),
        {split: held_out(split, config.test_blocks) for split in ("validation", "test")},
    )


def protocol_of(config: Config) -> "Protocol":
    """Return what all models of a resolved configuration have in common."""
    from tiejax.training.tying_run import Protocol

    assert config.steps is not None
    return Protocol(
        config.layers,
        config.steps,
        config.k,
        config.ties,
        config.start,
        config.gradient,
        config.storage,
        config.reward,
        config.epsilon_floor,
        config.validate_every,
    )


def job_of(config: Config, method: str, seed: int, of_agent: "Records | None") -> "Job":
    """Return one model of a run; of_agent: the records of the agent of its seed, where the method waits for it."""
    from tiejax import tying
    from tiejax.training.tying_run import Job

    if method in AGENTS:
        return Job(method, seed, AGENTS[method], None)  # type: ignore[arg-type]
    assert config.distinct is not None
    if method == "found-map":
        assert of_agent is not None
        group = of_agent["final"]["best_owner"][0]
        return Job(method, seed, None, tying.of_groups(group))
    if method == "random-map":
        number = config.distinct if of_agent is None else len(np.unique(of_agent["final"]["best_owner"][0]))
        rng = np.random.default_rng([seed, RANDOM_MAPS])
        return Job(method, seed, None, tying.random_map(config.layers, number, rng))
    if config.maps and method in config.maps:
        return Job(method, seed, None, tying.check_owner(config.maps[method]))
    return Job(method, seed, None, tying.static_map(method, config.layers, config.distinct))


def name_of(method: str, seed: int) -> str:
    """Return how files call one model of a run."""
    return f"{method}-seed{seed}"


def weights_file(params: Any, owner: np.ndarray) -> bytes:
    """Return a safetensors file of parameters with a place for every layer: distinct arrays once, and in its metadata the ties.

    Metadata: `owner`, the layer whose weights each layer has; `places`, its place in the stack that is saved; `tied`, the pair
    of tables that are one.
    """
    import jax
    import safetensors.flax

    from tiejax import tying
    from tiejax.training.layered import stack_of, with_stack

    # As `put` takes a fetched state, so that it holds whatever rule the ties are by.
    stack = jax.tree.map(lambda leaf: leaf[np.unique(owner)], stack_of(params))
    leaves = jax.tree_util.tree_leaves_with_path(with_stack(params, stack))
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): jax.numpy.asarray(leaf) for path, leaf in leaves}
    places = tying.places(owner, "compact").tolist()
    facts = {"owner": owner.tolist(), "places": places, "tied": TABLES}
    found: bytes = safetensors.flax.save(named, {name: json.dumps(value) for name, value in facts.items()})
    return found


class Jobs:
    """The models of a run, dealt out over devices: each trains one at a time, and takes the next that waits for nothing."""

    def __init__(self, config: Config, text: Text, run: RunDirectory, resume: bool, console: Console) -> None:
        self._config, self._text, self._run, self._resume, self._console = config, text, run, resume, console
        self._lock = threading.Lock()
        self._every = [(method, seed) for method in config.names for seed in config.seed_list]
        files = {one: run.path / FINISHED / f"{name_of(*one)}.npz" for one in self._every}
        self.records: dict[tuple[str, int], Records] = {one: read_records(path) for one, path in files.items() if path.exists()}
        for one in self.records:  # killed between writing the one and removing the other, a run leaves both
            run.remove(f"checkpoints/{name_of(*one)}")
        self._waiting = [one for one in self._every if one not in self.records]
        assert config.steps is not None
        self.total, self.done = len(self._every) * config.steps, len(self.records) * config.steps
        self.here, self.compile_s = 0, 0.0
        self.began, self.train_s = time.perf_counter(), 0.0

    def run(self, devices: Sequence["jax.Device"], stop: Callable[[], bool]) -> None:
        """Train everything, or until `stop` says so; raises whatever a model raises, after the others have saved themselves."""
        self._stop = stop
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            working = [pool.submit(self._work, device) for device in devices[: len(self._waiting)]]
            while not all(one.done() for one in working):
                time.sleep(0.2)
                if any(one.done() and one.exception() for one in working):
                    self._stop = lambda: True
                with self._lock:
                    self.train_s = time.perf_counter() - self.began
                    self._console.progress(self.done, self.total, self.here, self.train_s, 1)
        for one in working:
            one.result()

    @property
    def stopped(self) -> bool:
        """Whether models are left that did not finish."""
        return len(self.records) < len(self._every)

    def _next(self) -> tuple[str, int] | None:
        with self._lock:
            for place, (method, seed) in enumerate(self._waiting):
                if self._of_agent(method, seed) is not None or not self._waits(method):
                    return self._waiting.pop(place)
        return None

    def _waits(self, method: str) -> bool:
        return method in AFTER_AGENT and "agent" in self._config.methods

    def _of_agent(self, method: str, seed: int) -> "Records | None":
        return self.records.get(("agent", seed)) if self._waits(method) else None

    def _work(self, device: "jax.Device") -> None:
        import jax

        with jax.default_device(device):
            layered = build(self._config, self._text.streams.vocabulary, self._text.streams.begin, device)
            data = build_data(self._config, self._text)
            while self._waiting and not self._stop():
                chosen = self._next()
                if chosen is None:
                    time.sleep(0.2)
                    continue
                before = layered.compile_s
                self._one(layered, data, *chosen)
                with self._lock:
                    self.compile_s += layered.compile_s - before

    def _told(self, steps: int, seconds: float) -> None:
        with self._lock:
            self.done += steps
            self.here += steps if seconds else 0

    def _one(self, layered: "Layered", data: "Data", method: str, seed: int) -> None:
        from tiejax import training, tying
        from tiejax.training.tying_run import run_job

        assert self._config.steps is not None
        name = name_of(method, seed)
        job = job_of(self._config, method, seed, self._of_agent(method, seed))
        folder = self._run.checkpoints / name / "steps"
        with self._lock:  # orbax is not made to be started by several threads at once
            checkpoints = training.Checkpoints(folder, [tying.Tie(*TABLES)], say=self._console.warn)
        protocol, every = protocol_of(self._config), self._config.checkpoint_every
        try:
            found = run_job(layered, protocol, job, data, checkpoints, self._resume, self._stop, self._told, every)
        except training.CheckpointMismatch as error:
            raise BadInput(f"--resume: {error}") from None
        checkpoints.close()
        if found is None:
            return
        records, params = found
        self._run.write(f"models/{name}.safetensors", weights_file(params, records["final"]["best_owner"][0]))
        self._run.write(f"{FINISHED}/{name}.npz", written_records(records))
        self._run.remove(f"checkpoints/{name}")
        with self._lock:
            self.records[method, seed] = records
        number, loss = len(np.unique(records["final"]["final_owner"][0])), float(records["final"]["test"][0])
        self._console.say(f"{method}, seed {seed}: {counted(number, 'distinct layer')}, test loss {loss:.4f} nats a piece")


def written_records(records: "Records") -> bytes:
    """Return the records of a model as an .npz file."""
    buffer = io.BytesIO()
    arrays = {f"{group}/{name}": values for group, fields in records.items() for name, values in fields.items()}
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_records(path: Path) -> "Records":
    """Return the records of a model from an .npz file; raises BadInput if it is damaged."""
    records: Records = {}
    try:
        with np.load(path) as arrays:
            for full, values in arrays.items():
                group, _, name = full.partition("/")
                records.setdefault(group, {})[name] = values
    except (OSError, ValueError, zipfile.BadZipFile):
        raise BadInput(f"--resume: {path} is damaged; remove it, and that model is trained again") from None
    return records


def named_arrays(config: Config, records: "Mapping[tuple[str, int], Records]") -> dict[str, np.ndarray]:
    """Return the records of all models as the arrays of metrics.npz: `[method, seed, ...]`, and `[agent, seed, ...]`."""
    agents = [name for name in config.names if name in AGENTS]

    def stacked(names: Sequence[str], group: str, field: str) -> np.ndarray:
        return np.array([[records[name, seed][group][field] for seed in config.seed_list] for name in names])

    every, first = config.names, records[config.names[0], config.seed_list[0]]
    arrays = {
        "methods": np.array(every),
        "seeds": np.array(config.seed_list),
        "train_loss": stacked(every, "step", "loss"),
        "distinct": stacked(every, "step", "distinct"),
        "time_step": stacked(every, "step", "time"),
        "validation_step": first["validation"]["step"],
        "validation_loss": stacked(every, "validation", "loss"),
        "validation_loss_best": stacked(every, "final", "validation")[..., 0],
        "test_loss": stacked(every, "final", "test")[..., 0],
        **{name: stacked(every, "final", name)[:, :, 0] for name in ("best_step", "best_owner", "final_owner")},
    }
    if agents:
        of_first = records["agent" if "agent" in agents else agents[0], config.seed_list[0]]["action"]
        arrays |= {
            "agents": np.array(agents),
            "action_episode": of_first["episode"],
            "action_layer": of_first["layer"],
            "epsilon": of_first["epsilon"],
            **{name: stacked(agents, "action", name) for name in ("action", "reward", "q_loss")},
            "action_owner": stacked(agents, "action", "owner"),
        }
    return arrays


def sizes_of(config: Config, records: "Mapping[tuple[str, int], Records]") -> dict[int, dict[str, int]]:
    """Return what a step takes with so many distinct layers, for every number that occurred."""
    found: dict[int, dict[str, int]] = {}
    for one in records.values():
        size = one["size"]
        for place, height in enumerate(size["height"].tolist()):
            found[height] = {name: int(values[place]) for name, values in size.items() if name != "height"}
    if config.storage == "compact":
        return found
    distinct = {int(number) for one in records.values() for number in np.unique(one["step"]["distinct"])}
    distinct |= {len(np.unique(one["final"]["best_owner"])) for one in records.values()}
    return dict.fromkeys(sorted(distinct), found[config.layers])


def facts_of_model(config: Config, vocabulary: int) -> dict[str, Any]:
    """Return what results say of the model, with the parameters of an untied stack, the shared table counted once."""
    import jax

    shapes = jax.eval_shape(initial(config, build_model(config, vocabulary)), jax.random.key(0), np.arange(config.layers))
    number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    return {"parameters_untied": number - math.prod(shapes["head"]["embedding"].shape), "activation": config.activation}


def main(argv: Sequence[str]) -> int:
    """Run the experiment; return its exit status."""
    environment.one_device_a_core()
    console = Console("--quiet" in argv)
    started = launch.start(EXPERIMENT, argv, lambda config, first: prepare(config, console, "--resume" in argv))
    config, run = started.config, started.run
    if started.finished:
        console.result(f"the run is finished: {Path(config.out) / 'report.html'}")
        return 0
    assert run is not None
    text: Text = started.prepared
    told = text.streams.facts | {"fingerprint": text.streams.fingerprint}
    facts_of_text = launch.keep_text(run, told, text.streams.tokenizer_file.read_bytes())
    stop = stop_flag()

    import jax

    from tiejax.analysis.layer_tying import analyse
    from tiejax.reporting import layer_tying as pages

    if config.dtype == "float32":
        # Accelerators multiply float32 in fewer bits unless told otherwise.
        jax.config.update("jax_default_matmul_precision", "highest")
    facts = run.write_environment({"devices": [one.device_kind for one in jax.devices()]}, launch.command_of(argv))
    model = facts_of_model(config, text.streams.vocabulary)
    pieces = {name: len(part) * (config.context - 1) for name, part in text.blocks.items()}
    console.say(
        f"text: {pieces['train']:,} pieces for training, {pieces['validation']:,} for validation, {pieces['test']:,} for test, "
        f"in blocks of {config.context}; {text.streams.vocabulary:,} different ones; "
        f"fingerprint {text.streams.fingerprint[:16]}"
    )
    console.say(
        f"{len(config.names)} methods x {len(config.seed_list)} seeds, {config.steps:,} steps, {model['parameters_untied']:,} "
        f"parameters untied, on {jax.device_count()} x {jax.devices()[0].device_kind}, in {config.out}"
    )
    jobs = Jobs(config, text, run, started.switches["resume"], console)
    with console:
        jobs.run(jax.devices(), stop)
    if jobs.stopped:
        console.result(f"stopped after {jobs.done:,} of {jobs.total:,} steps; go on with the same command and --resume")
        return 130

    metrics = named_arrays(config, jobs.records)
    run.write_metrics(metrics)
    sizes = sizes_of(config, jobs.records)
    splits = text.streams.facts["splits"]
    found, runs = analyse(
        metrics, sizes, {name: splits[name]["pieces"] / splits[name]["words"] for name in ("validation", "test")}
    )
    train_s = jobs.train_s if jobs.here else 0.0
    rate = jobs.here / train_s if train_s else None
    results = plain(
        {
            "experiment": "layer_tying",
            "model": model,
            "data": facts_of_text,
            "steps": config.steps,
            "sizes": sizes,
            **found,
            "timing": {"compile_s": jobs.compile_s, "train_s": train_s, "model_steps_per_s": rate},
        }
    )
    launch.finish(run, config, results, facts, pages.drawn(runs, found), pages.page, console)
    return 0


if __name__ == "__main__":
    command_line.run_main(main)
