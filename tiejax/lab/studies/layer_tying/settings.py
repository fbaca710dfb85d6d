"""The settings of the layer-tying study."""

import dataclasses
from typing import Any, Literal

from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput, CommandLine
from tiejax.lab.settings.shared import (
    AdamSettings,
    AttentionSettings,
    EncoderSettings,
    PrecisionSettings,
    RunSettings,
    TextSettings,
    with_defaults,
)
from tiejax.lab.settings.sizes import check_most, check_places, check_steps
from tiejax.lab.settings.study import SWITCHES, Study
from tiejax.lab.studies.layer_tying import sizes
from tiejax.system.processors import cores
from tiejax.training.choices import Moments
from tiejax.tying.errors import TieError
from tiejax.tying.layer_maps import MAPS, check_maps
from tiejax.tying.layer_ties import Gradient, Rule, Start
from tiejax.tying.owner import Storage

AGENTS: dict[str, Literal["learner", "random"]] = {"agent": "learner", "random-agent": "random"}
AFTER_AGENT = ("random-map", "found-map")  # trained after the agent of their seed, if the run has one
METHODS = (*AGENTS, *MAPS, *AFTER_AGENT)
NOT_STATIC = ("untied", *AGENTS, *AFTER_AGENT)  # every other method is a fixed map


@with_defaults(vocab_size=4096, layers=12, out="runs/layer_tying")
class Settings(AdamSettings, PrecisionSettings, AttentionSettings, EncoderSettings, TextSettings, RunSettings):
    """Dynamic layer tying: ties chosen by an agent, compared with no ties, fixed maps and random maps.

    Args:
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
        activation: activation of the feed-forward layer; gelu is exact, gelu_tanh is that of GPT-2 in the transformers library
        dtype: dtype of weights, moments and computation; losses are float32
        compute_dtype: dtype of the layers and of the matrix product of the logits only; weights and moments stay in float32
        padding: token whose embedding starts at 0 and gets no gradient from look-ups, like torch's padding_idx (the published
            BERT: 0, which is "!" among GPT-2's tokens; default: no token)
        methods: methods to train: any of agent, random-agent, untied, the fixed maps all-one, sequence, cycle, cycle-reversed,
            sandwich and reversed-halves, random-map (as many distinct layers as the agent has at its best step) and found-map
            (the agent's map at its best step, trained from scratch)
        maps: user-defined fixed maps by name, each a list of the layer whose weights each layer uses, such as {mine: [0, 0, 2,
            2]}
        distinct: number of distinct layers in sequence, cycle and cycle-reversed, and in random-map without an agent (default:
            a quarter of the layers)
        steps: training steps of every method (default: 2,000 unless --episodes is given)
        episodes: number of episodes of the agent, instead of --steps; an episode has one action for each layer above the first,
            and k batches per action
        k: number of batches between two actions
        ties: how ties are resolved: resolved (a copy of a copy uses the weights of its owner, and a layer that becomes
            independent gets separate weights), or published (as in the published code: neither; see
            docs/results/layer_tying.md)
        gradient: train shared weights with the gradients of all their uses (all) or of the owner's use only (owner; with --ties
            published, of the use of each layer that trains them)
        start: initial ties: tied (all layers copy layer 0), independent, frozen-random (as in the published code: layers above
            the first keep their random weights until the agent first acts on them), or told-tied (independent, as in the
            published code for BERT). With the last two the agent still observes that all layers copy layer 0
        reward: the agent's reward, computed from the loss of one more training batch after each action: negative-loss,
            negative-ppl (as in the paper), or clipped-ppl (as in the published code: clipped to [-10, 10], so that it is
            constant while perplexity is above 10)
        details: own (the choices of this library), or published (those of the published code for a causal model: the end token
            is the last target of every block, gradients are clipped by their norm + 1e-6, GPT-2 has one position more than the
            context, held-out text is evaluated in batches of 10 blocks with equal weights, and the reward's batch may repeat
            blocks that were just trained on)
        moments: Adam's moments of a layer that becomes independent: copy (those of its owner) or zero; with --ties published
            every layer has separate moments throughout
        epsilon_floor: minimum probability of a random action; the probability is .95 to the power of the episode until it
            reaches this minimum
        storage: store the distinct layers only (compact), or all layers (full; a single compiled program for all ties)
        batch_size: blocks per step
        learning_rate: learning rate of AdamW, which is constant
        clip: maximum global norm of the gradient
        validate_every: steps between validations
        validation_blocks: number of blocks per validation, spread evenly over the split; --test_blocks applies to the
            evaluation of the best step
        test_blocks: number of blocks of each held-out split on which the best step is evaluated (default: all)
    """

    validation: list[str] = dataclasses.field(default_factory=list)
    test: list[str] = dataclasses.field(default_factory=list)
    context: int = 128
    architecture: Literal["gpt2", "bert"] = "gpt2"
    objective: Literal["causal", "masked"] = "causal"
    activation: Literal["gelu", "gelu_tanh", "relu", "silu", "tanh"] = "gelu"  # type: ignore[assignment]
    dtype: Literal["float32", "bfloat16"] = "float32"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    padding: int | None = None
    methods: list[str] = dataclasses.field(default_factory=lambda: list(METHODS))
    maps: dict[str, list[int]] | None = None
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
    validate_every: int = 250
    validation_blocks: int = 256
    test_blocks: int | None = None

    def resolved(self) -> "Settings":
        """Return the settings with every default filled in; raises BadInput if they are invalid."""
        if self.steps is not None and self.episodes is not None:
            raise BadInput("--steps and --episodes: give one of them")
        checks.check_counts(self, ("layers", "width", "k", "episodes"))
        fields = dataclasses.asdict(self)
        if self.steps is None:
            fields["steps"], fields["episodes"] = 2000 if self.episodes is None else self._steps_of(self.episodes), None
        if self.data_dir is None:
            fields["data_dir"] = checks.default_data_dir()
        fields["feed_forward"] = 4 * self.width if self.feed_forward is None else self.feed_forward
        fields["distinct"] = max(1, self.layers // 4) if self.distinct is None else self.distinct
        settings = Settings(**fields)
        settings.check()
        return settings

    def _steps_of(self, episodes: int) -> int:
        """Return the steps of `episodes` episodes: k steps for each layer above the first."""
        steps = episodes * max(1, self.layers - 1) * self.k
        check_steps("episodes", episodes, steps)
        return steps

    def check(self) -> None:
        """Raise BadInput, naming the option, if resolved settings cannot be run."""
        super().check()
        sizes = ("batch_size", "steps", "validate_every", "validation_blocks", "test_blocks", "distinct")
        checks.check_counts(self, sizes)
        checks.check_positive(self, ("clip",))
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
        if self.ties == "published" and self.gradient == "all":
            raise BadInput("--gradient: with --ties published expected owner, got all")
        if self.details == "published" and self.objective == "masked":
            raise BadInput("--details: the published details are those of a causal model; use own, or --objective causal")

    def _check_methods(self) -> None:
        """Check the built-in methods and the user-defined maps."""
        if self.maps:
            try:
                check_maps(self.maps, self.layers)
            except TieError as error:
                raise BadInput(f"--maps: {error}") from None
        if not self.methods and not self.maps:
            raise BadInput(f"--methods: expected at least one of {', '.join(METHODS)}")
        for name in self.methods:
            if name not in METHODS:
                raise BadInput(f"--methods: unknown method {name[:80]!r}; expected any of {', '.join(METHODS)}")
        names = [*self.methods, *(self.maps or {})]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise BadInput(f"--methods and --maps: expected distinct names, {repeated[0][:80]} is repeated")
        if any(not name or not name.replace("-", "").replace("_", "").isalnum() for name in self.maps or {}):
            raise BadInput("--maps: names may contain only letters, digits, - and _")
        if self.layers < 2 and any(name in AGENTS for name in self.methods):
            raise BadInput(f"--layers: an agent needs at least 2 (layer 0 is always independent), got {self.layers}")
        if "found-map" in self.methods and "agent" not in self.methods:
            raise BadInput("--methods: found-map uses the agent's map; add agent")

    @property
    def agents(self) -> list[str]:
        """The methods with an agent that ties and unties layers."""
        return [name for name in self.methods if name in AGENTS]

    @property
    def names(self) -> list[str]:
        """All methods in training order: agents, other methods and user-defined maps, then the methods that need the agent."""
        at_once = [name for name in self.methods if name not in AFTER_AGENT]
        waiting = [name for name in self.methods if name in AFTER_AGENT]
        return [*sorted(at_once, key=lambda name: name not in AGENTS), *(self.maps or {}), *waiting]


def _prepare(settings: Any, console: Any, resume: bool) -> Any:
    from tiejax.lab.studies.layer_tying.text import prepare

    return prepare(settings, console, resume)


def _run(launched: Any, console: Any) -> int:
    from tiejax.lab.studies.layer_tying.study import run

    return run(launched, console)


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
    run=_run,
    sizes=sizes,
    prepare=_prepare,
    may_change=("checkpoint_every", "data_dir", "tracker"),
    single_process=True,
    # One device that uses all cores is faster for fewer models than cores, since CPU devices do not share a model.
    device_a_core=lambda settings: len(settings.names) * len(settings.seed_list) >= cores(),
)
