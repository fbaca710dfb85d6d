"""The settings of the layer-tying study."""

import dataclasses
from typing import Any, Literal, NamedTuple

from tiejax.lab.runs.rates import KEPT
from tiejax.lab.settings import checks, shared
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.sizes import check_most, check_places, check_steps
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.layer_tying import sizes
from tiejax.lab.studies.layer_tying.variants import SCALES, Variant, check_variants
from tiejax.models.shapes import STD
from tiejax.system.processors import cores
from tiejax.training.choices import Moments, ScheduleName
from tiejax.tying.errors import TieError
from tiejax.tying.layer_maps import MAPS, check_maps, static_map
from tiejax.tying.layer_ties import Gradient, Rule, Start
from tiejax.tying.owner import Owner, Storage, check_owner

AGENTS: dict[str, Literal["learner", "random"]] = {"agent": "learner", "random-agent": "random"}
AFTER_AGENT = ("random-map", "found-map")  # trained after the agent of their seed, if the run has one
METHODS = (*AGENTS, *MAPS, *AFTER_AGENT)
BY_DEFAULT = [name for name in METHODS if name != "middle-cycle"]  # the same as sandwich with three distinct layers
NOT_STATIC = ("untied", *AGENTS, *AFTER_AGENT)  # every other method is a fixed map
UNCHANGED = Variant("untied")  # what a method is that is no variant
TUNING_SEED = 1000  # the first seed that chooses learning rates


class Form(NamedTuple):
    """What a method changes in the model: width, feed-forward width, adaptation, scale.

    residual_scale: a power of N, as in `models.Transformer`.
    """

    width: int
    feed_forward: int
    lora_rank: int
    residual_scale: float


@shared.with_defaults(vocab_size=4096, layers=12, out="runs/layer_tying")
class Settings(
    shared.AdamSettings,
    shared.PrecisionSettings,
    shared.AttentionSettings,
    shared.EncoderSettings,
    shared.TextSettings,
    shared.LookSettings,
):
    """Dynamic layer tying: ties chosen by an agent, compared with no ties, fixed maps and random maps.

    Args:
        seeds: number of seeds (0, 1, ...), a list such as [3,7,11], or a range; each seed trains one model with every method.
            With --resume, more seeds are appended (default: 1)
        until: decided adds seeds until every registered claim is decided: the claims are tested at 10, 16 and 24 seeds and at
            --max_seeds, each look with an equal share of .05
        corpus: text files or folders of text files (also .gz), or tfds:NAME for a TFDS data set with a text feature; a folder
            with one file for each of train, valid and test keeps these splits (default: the English text in Python itself)
        validation: text on which the best step is selected (default: the ninth tenth of the corpus)
        test: text on which the reported losses are computed (default: the last tenth of the corpus)
        tokenizer: folder with GPT-2's vocab.json and merges.txt (or encoder.json and vocab.bpe), a tokenizer.json, or a name on
            the Hugging Face Hub (default: byte-level BPE trained on the training text)
        context: number of tokens in a block, including the begin token
        architecture: gpt2 (pre-LN), or bert (post-LN) with token types (all of the first type) and BERT's head: a dense layer,
            the activation, LayerNorm and a bias
        objective: predict the next token (causal) or masked tokens (masked; 15 %, as in BERT)
        feed_forward: width of the feed-forward layer (default: four times the width)
        initial_std: standard deviation of the initial tables and kernels; with gpt2, that of kernels which add to the residual
            stream is divided by sqrt(2 layers). The default is that of GPT-2 and BERT, for a width of 768; at a width of H,
            sqrt(768 / H) times as much keeps the variance of the kernels' outputs
        activation: activation of the feed-forward layer; gelu is exact, gelu_tanh is that of GPT-2 in the transformers library
        dtype: dtype of weights, moments and computation; losses are float32
        compute_dtype: dtype of the layers and of the matrix product of the logits only; weights and moments stay in float32
        padding: token whose embedding starts at 0 and gets no gradient from look-ups, like torch's padding_idx (the published
            BERT: 0, which is "!" among GPT-2's tokens; default: no token)
        methods: methods to train: any of agent, random-agent, untied, the fixed maps all-one, sequence, cycle, cycle-reversed,
            sandwich, middle-cycle and reversed-halves, random-map (as many distinct layers as the agent has at its best step)
            and found-map (the agent's map at its best step, trained from scratch) (default: all except middle-cycle)
        maps: user-defined fixed maps by name, each a list of the layer whose weights each layer uses, such as {mine: [0, 0, 2,
            2]}
        variants: user-defined methods by name: a map (the name of a fixed map, or a list as in --maps) with any of distinct (as
            --distinct), lora_rank (rank of a low-rank adaptation that each layer adds to the weights it shares), residual_scale
            (none, 1/N or 1/sqrt(N): factor of the updates of the residual stream, where N layers share the same weights), width
            (the feed-forward width changes in proportion) and initial_weights (a file of weights from which every seed starts
            instead of random ones: one in models/ of a run, or one that tiejax share wrote, of a model with the same settings,
            map, rank and tokenizer), such as {relaxed: {map: cycle, distinct: 3, lora_rank: 4}}. better_than and not_worse_than
            name methods with which registered claims compare its test loss
        distinct: number of distinct layers in sequence, cycle, cycle-reversed and middle-cycle, and in random-map without an
            agent (default: a quarter of the layers)
        steps: training steps of every method (default: 2,000 unless --episodes is given)
        episodes: number of episodes of the agent, instead of --steps; an episode has one action for each layer above the first,
            and k batches per action
        k: number of batches between two actions
        ties: how ties are resolved: resolved (a copy of a copy uses the weights of its owner, and a layer that becomes
            independent gets separate weights), or published (as in the published code: neither; see
            docs/results/layer_tying_details.md)
        gradient: train shared weights with the gradients of all their uses (all) or of the owner's use only (owner; with --ties
            published, of the use of each layer that trains them)
        start: initial ties: tied (all layers copy layer 0), independent, frozen-random (as in the published code: layers above
            the first keep their random weights until the agent first acts on them), or told-tied (independent, as in the
            published code for BERT). With the last two the agent still observes that all layers copy layer 0
        reward: the agent's reward, computed from the loss of one more training batch after each action: negative-loss,
            negative-ppl (as in the paper), or clipped-ppl (as in the published code: clipped to [-10, 10], so that it is
            constant while perplexity is above 10)
        details: own (the choices of this library), or published (those of the published code for a causal model, which
            docs/results/layer_tying_details.md lists)
        moments: Adam's moments of a layer that becomes independent: copy (those of its owner) or zero; with --ties published
            every layer has separate moments throughout
        epsilon_floor: minimum probability of a random action; the probability is .95 to the power of the episode until it
            reaches this minimum
        storage: store the distinct layers only (compact), or all layers (full; a single compiled program for all ties)
        batch_size: blocks per step
        learning_rate: learning rate of AdamW; with a warm-up or a schedule, the largest one
        schedule: constant, or cosine (the learning rate falls towards 0, which it would reach one step after the last)
        warm_up: number of first steps, over which the learning rate rises from 0
        rates: learning rates to choose from, in ascending order, instead of --learning_rate. Classes of methods choose
            separately: agent, random-agent, each variant with initial weights or another width, and, of the other methods,
            those with low-rank adaptations, with each residual scale, without ties, with one distinct layer, with shared layers
            (the first that applies). The first method of a class chooses the rate with the lowest mean validation loss. While
            that is the first or the last, half or twice of it is tried as well, at most three times
        table_rate: factor of the learning rate, and so of the weight decay, of the embedding tables: of tokens, which is also
            the output layer's, of positions and of token types
        table_factors: with --rates, factors for the embedding tables to choose from together with the rate, in ascending order
            and continued likewise, instead of --table_rate. More than four pairs of a rate and a factor are trained with the
            first of --rate_seeds, and the best four with the others
        rate_seeds: number of seeds that choose among --rates, 1000, 1001, ...; they are not among the reported ones
        gate: with --rates, the run ends before its first seed unless the models of each class that choose its learning rate end
            this many nats below a bigram model of the tokens that a seed sees; claims are tested only if the final losses do so
            as well, those of untied and, with --rates, of one method of each class; a negative number allows losses above it
            (default: .1 with --rates and --corpus; otherwise, and with --objective masked, there is no such condition)
        clip: maximum global norm of the gradient
        validate_every: steps between validations
        validation_blocks: number of blocks per validation, spread evenly over the split; --test_blocks applies to the
            evaluation of the best step
        test_blocks: number of blocks of each held-out split on which the best step is evaluated (default: all)
    """

    SEEDS = 1
    LOOKS = (10, 16, 24)  # type: ignore[assignment]

    validation: list[str] = dataclasses.field(default_factory=list)
    test: list[str] = dataclasses.field(default_factory=list)
    context: int = 128
    architecture: Literal["gpt2", "bert"] = "gpt2"
    objective: Literal["causal", "masked"] = "causal"
    initial_std: float = STD
    activation: Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"] = "gelu"  # type: ignore[assignment]
    dtype: Literal["float32", "bfloat16"] = "float32"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    padding: int | None = None
    methods: list[str] = dataclasses.field(default_factory=lambda: list(BY_DEFAULT))
    maps: dict[str, list[int]] | None = None
    variants: dict[str, dict[str, Any]] | None = None
    distinct: int | None = None
    steps: int | None = None
    episodes: int | None = None
    k: int = 4
    ties: Rule = "resolved"
    gradient: Gradient = "all"
    start: Start = "tied"
    reward: Literal["negative-loss", "negative-ppl", "clipped-ppl"] = "negative-loss"
    details: Literal["own", "published"] = "own"
    moments: Moments = "copy"
    epsilon_floor: float = 0.1
    storage: Storage = "compact"
    batch_size: int = 8
    clip: float = 1.0
    schedule: ScheduleName = "constant"
    warm_up: int = 0
    rates: list[float] | None = None
    table_rate: float = 1.0
    table_factors: list[float] | None = None
    rate_seeds: int = 2
    gate: float | None = None
    validate_every: int = 250
    validation_blocks: int = 256
    test_blocks: int | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        if self.steps is not None and self.episodes is not None:
            raise BadInput("--steps and --episodes: give one of them")
        checks.check_counts(self, ("layers", "width", "k", "episodes", "rate_seeds"))
        fields = dataclasses.asdict(self) | checks.seeds_of_looks(self, self.SEEDS)
        if self.steps is None:
            fields["steps"], fields["episodes"] = 2000, None
            if self.episodes is not None:  # each with k steps for each layer above the first
                fields["steps"] = self.episodes * max(1, self.layers - 1) * self.k
                check_steps("episodes", self.episodes, fields["steps"])
        fields["feed_forward"] = 4 * self.width if self.feed_forward is None else self.feed_forward
        if self.gate is None and self.rates is not None and self.corpus and self.objective == "causal":
            fields["gate"] = 0.1
        fields["distinct"] = max(1, self.layers // 4) if self.distinct is None else self.distinct
        return Settings(**fields).filled()

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        super().check()
        sizes = ("batch_size", "steps", "validate_every", "validation_blocks", "test_blocks", "distinct")
        checks.check_counts(self, sizes)
        checks.check_positive(self, ("clip", "table_rate", "initial_std"))
        if not 0 <= self.epsilon_floor <= 1:
            raise BadInput(f"--epsilon_floor: expected a number between 0 and 1, got {self.epsilon_floor}")
        checks.check_context(self)
        if self.padding is not None and self.padding < 0:
            raise BadInput(f"--padding: expected a token id >= 0, got {self.padding}")
        check_most("padding", self.padding or 0)
        check_places("batch_size", self.batch_size, self.context)
        if self.distinct is not None and self.distinct > self.layers:
            raise BadInput(f"--distinct: expected at most --layers {self.layers}, got {self.distinct}")
        checks.check_held_out(self)
        self._check_methods()
        if self.rates is not None:
            checks.check_rates(self.rates, least=2)
            checks.check_tuning_seeds(self.seed_list, self.tuning_seeds)
        if self.table_factors is not None:
            checks.check_ascending("table_factors", self.table_factors)
            if self.rates is None:
                raise BadInput(
                    "--table_factors: are chosen together with the learning rate; give --rates as well, or --table_rate"
                )
            if self.table_rate != 1:
                raise BadInput("--table_rate: the factor is chosen among --table_factors; give one of them")
        if self.gate is not None and self.objective == "masked":
            raise BadInput("--gate: the bigram model predicts the next token; leave it out, or use --objective causal")
        if self.ties == "published" and self.gradient == "all":
            raise BadInput("--gradient: with --ties published expected owner, got all")
        if self.ties == "published" and any(self.form(name).residual_scale for name in self.variants or {}):
            raise BadInput("--variants: residual_scale counts the layers with the same weights, which needs --ties resolved")
        if not 0 <= self.warm_up < (self.steps or 0):
            raise BadInput(f"--warm_up: expected an integer >= 0 and below --steps {self.steps}, got {self.warm_up}")
        if self.details == "published" and self.objective == "masked":
            raise BadInput("--details: the published details are those of a causal model; use own, or --objective causal")

    def _check_methods(self) -> None:
        """Check the built-in methods and the user-defined maps."""
        if self.maps:
            try:
                check_maps(self.maps, self.layers)
            except TieError as error:
                raise BadInput(f"--maps: {error}") from None
        if not self.methods and not self.maps and not self.variants:
            raise BadInput(f"--methods: expected at least one of {', '.join(METHODS)}")
        for name in self.methods:
            if name not in METHODS:
                raise BadInput(f"--methods: unknown method {name[:80]!r}; expected any of {', '.join(METHODS)}")
        names = [*self.methods, *(self.maps or {}), *(self.variants or {})]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"--methods, --maps and --variants: expected distinct names, {repeated[0][:80]} is repeated")
        for option in ("maps", "variants"):
            if any(not name or not name.replace("-", "").replace("_", "").isalnum() for name in getattr(self, option) or {}):
                raise BadInput(f"--{option}: names may contain only letters, digits, - and _")
        check_variants(self.variants or {}, names, self.layers, self.heads)
        for name in self.variants or {}:
            if (self.feed_forward or 0) * self.form(name).width % self.width:
                raise BadInput(
                    f"--variants: {name}: width: --feed_forward {self.feed_forward} cannot change in proportion to "
                    f"{self.form(name).width} of {self.width}"
                )
        if self.layers < 2 and any(name in AGENTS for name in self.methods):
            raise BadInput(f"--layers: an agent needs at least 2 (layer 0 is always independent), got {self.layers}")
        if "found-map" in self.methods and "agent" not in self.methods:
            raise BadInput("--methods: found-map uses the agent's map; add agent")

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds that choose the learning rates."""
        return list(range(TUNING_SEED, TUNING_SEED + self.rate_seeds))

    @property
    def factors(self) -> list[float]:
        """The factors of the tables' learning rate that are tried."""
        return self.table_factors or [self.table_rate]

    @property
    def two_rates(self) -> bool:
        """Whether the tables can have another learning rate than the other parameters."""
        return self.factors != [1.0]

    @property
    def halved(self) -> bool:
        """Whether the first seed chooses the pairs of a rate and a factor that are trained with the others."""
        return self.table_factors is not None and len(self.rates or ()) * len(self.table_factors) > KEPT

    @property
    def variants_by_name(self) -> dict[str, Variant]:
        """The variants, by name; those as wide as the run have no `width`."""
        variants = {name: Variant(**fields) for name, fields in (self.variants or {}).items()}
        return {
            name: variant._replace(width=None) if variant.width == self.width else variant for name, variant in variants.items()
        }

    def form(self, method: str) -> Form:
        """Return what a method changes in the model."""
        variant, feed_forward = self.variants_by_name.get(method, UNCHANGED), self.feed_forward or 4 * self.width
        width = variant.width or self.width
        return Form(width, feed_forward * width // self.width, variant.lora_rank, SCALES[variant.residual_scale])

    def class_of(self, method: str) -> str:
        """Return the class of a method, whose methods share a learning rate.

        Each agent, and each variant of another width or with initial weights, is a class of its own.
        """
        variant = self.variants_by_name.get(method, UNCHANGED)
        if method in AGENTS:
            return method
        if variant.initial_weights is not None or variant.width is not None:
            return f"variant {method}"
        if variant.lora_rank:
            return "adapted"
        if SCALES[variant.residual_scale]:
            return f"scaled {variant.residual_scale}"
        owner = self.fixed_map(method)
        distinct = None if owner is None else len(set(owner.tolist()))
        return "untied" if distinct == self.layers else "looped" if distinct == 1 else "shared"

    def fixed_map(self, method: str) -> Owner | None:
        """Return the owner vector of a method with the same map for every seed, None for other methods."""
        assert self.distinct is not None
        if method in AGENTS or method in AFTER_AGENT:
            return None
        if (variant := self.variants_by_name.get(method)) is not None:
            return variant.owner(self.layers, self.distinct)
        if self.maps and method in self.maps:
            return check_owner(self.maps[method])
        return static_map(method, self.layers, self.distinct)

    @property
    def classes(self) -> dict[str, str]:
        """The classes of the run's methods, each with the method that chooses its learning rate.

        That is the first one, except that a random map of the run's size chooses for methods that need the agent of their seed.
        """
        first: dict[str, str] = {}
        for method in self.names:  # the methods that need an agent come last
            first.setdefault(self.class_of(method), "random-map" if method in AFTER_AGENT else method)
        return dict(sorted(first.items(), key=lambda item: item[0] in AGENTS))  # which take longest

    @property
    def gated(self) -> list[str]:
        """The methods that must pass the gate: untied and, if rates are chosen or untied is missing, one of each class."""
        each = {self.class_of(name): name for name in reversed(self.names)}
        chosen = [name for name in self.names if name in each.values()]
        return chosen if self.rates is not None or "untied" not in self.names else ["untied"]

    @property
    def agents(self) -> list[str]:
        """The methods with an agent that ties and unties layers."""
        return [name for name in self.methods if name in AGENTS]

    @property
    def names(self) -> list[str]:
        """All methods in training order: agents, other methods, maps and variants, then the methods that need the agent."""
        at_once = [name for name in self.methods if name not in AFTER_AGENT]
        waiting = [name for name in self.methods if name in AFTER_AGENT]
        return [*sorted(at_once, key=lambda name: name not in AGENTS), *(self.maps or {}), *(self.variants or {}), *waiting]


STUDY = Study(
    "layer_tying",
    Settings,
    CommandLine(
        description="Train a transformer whose layers an agent ties and unties while both learn and, on the same batches, "
        "models without ties, with fixed ties and with random ties; write perplexities, memory, time, ties, figures and a "
        "report into a run directory.",
        example="Example: PROGRAM --corpus wikitext-2/ --seeds 3. The published settings and others are available by name, "
        "such as --config layer_tying/wikitext2. Each method and seed is a separate model; each device trains one at a time. "
        "An interrupted run continues with the same command and --resume.",
        switches={name: text for name, text in SWITCHES.items() if name != "distributed"},
        first=("corpus", "methods", "seeds", "layers", "steps", "resume", "overwrite", "out"),
        configurations="layer_tying",
    ),
    run="tiejax.lab.studies.layer_tying.study:run",
    sizes=sizes,
    prepare="tiejax.lab.studies.layer_tying.study:prepare",
    may_change=("checkpoint_every", "data_dir", "gate", "tracker"),
    adds=("gate",),
    appends=True,
    single_process=True,
    # One device that uses all cores is faster for fewer models than cores, since CPU devices do not share a model.
    device_a_core=lambda settings: len(settings.names) * len(settings.seed_list) >= cores(),
)
