"""What may be asked of a run of dynamic layer tying."""

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
from tiejax.tying.errors import TieError
from tiejax.tying.layer_maps import MAPS, check_maps
from tiejax.tying.layer_ties import Gradient, Rule, Start
from tiejax.tying.owner import Storage

AGENTS: dict[str, Literal["learner", "random"]] = {"agent": "learner", "random-agent": "random"}
AFTER_AGENT = ("random-map", "found-map")  # wait for the agent of their seed, where there is one
METHODS = (*AGENTS, *MAPS, *AFTER_AGENT)
NOT_STATIC = ("untied", *AGENTS, *AFTER_AGENT)  # every other method is a fixed map


@with_defaults(vocab_size=4096, layers=12, out="runs/layer_tying")
class Settings(AdamSettings, PrecisionSettings, AttentionSettings, EncoderSettings, TextSettings, RunSettings):
    """Dynamic layer tying: an agent's ties against none, fixed maps and random ones.

    Args:
        corpus: text files, folders of them, .gz, or tfds:NAME; a folder with one file each called train, valid and test is
            split so (default: the prose that CPython carries)
        validation: text that chooses the best step (default: the ninth tenth of the corpus)
        test: text that is reported on (default: the last tenth of the corpus)
        tokenizer: folder with GPT-2's vocab.json and merges.txt (or encoder.json and vocab.bpe), a tokenizer.json, or a name on
            the hub (default: byte-level BPE trained on the training text)
        context: tokens of a block, the begin token included
        architecture: GPT-2 (pre-LN), or BERT (post-LN) with its token types, all of the first, and its head: a dense map, the
            activation, LayerNorm and a bias
        objective: causal predicts the next token, masked a masked one (15 %, as BERT)
        feed_forward: width of the feed-forward layer (default: four times the width)
        activation: of the feed-forward layer: gelu (exact) or gelu_tanh (the hub's GPT-2)
        dtype: of weights, moments and computation; losses are float32
        compute_dtype: of the layers and the logits' product alone, where weights and moments stay in float32
        padding: the row of this token in the table starts at 0, and looking it up sends it no gradient, as torch's padding_idx
            does (the published BERT: 0, which is ! among GPT-2's tokens; default: no token)
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
            published (as the published code: neither; see docs/results/layer_tying.md)
        gradient: of all uses of shared weights, or of the owner's own alone (by published ties, of each layer that trains them)
        start: tied (all copies of layer 0), independent, frozen-random (as the published code: layers above the first
            keep their random weights until the agent has chosen for them), or told-tied (as the published code starts BERT:
            independent). Under the last two the agent is told that all are copies of layer 0
        reward: of one more training batch after each action: negative-loss, negative-ppl (the paper's), or clipped-ppl (the
            published code's: between -10 and 10, so that it says nothing while perplexity is above 10)
        details: own, or published (as the published code of a causal model: the end token is the last target of every block,
            gradients are clipped by their norm + 1e-6, GPT-2 has a position more than the context, held-out text is judged in
            batches of 10 blocks that weigh equally, and the reward's batch may repeat blocks that were just trained on)
        moments: what Adam remembers of a layer that becomes independent: copy (its owner's moments) or zero; by published ties
            every layer keeps its own
        epsilon_floor: the least probability of a random action; it is .95 to the power of the episode before
        storage: compact holds distinct layers alone, full all of them (one executable)
        batch_size: blocks a step
        learning_rate: of AdamW, constant
        clip: the gradient is clipped at this global norm
        validate_every: steps between validations
        validation_blocks: blocks of a validation, evenly over the split; the best step is then judged on the whole split
        test_blocks: blocks of each held-out split that the best step is judged on (default: all)
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
    moments: Literal["copy", "zero"] = "copy"
    epsilon_floor: float = 0.1
    storage: Storage = "compact"
    batch_size: int = 8
    clip: float = 1.0
    validate_every: int = 250
    validation_blocks: int = 256
    test_blocks: int | None = None

    def resolved(self) -> "Settings":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
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
        """Return the steps of so many episodes: k for each layer above the first."""
        steps = episodes * max(1, self.layers - 1) * self.k
        check_steps("episodes", episodes, steps)
        return steps

    def check(self) -> None:
        """Raise BadInput, naming the option, if a resolved configuration cannot be run."""
        super().check()
        sizes = ("batch_size", "steps", "validate_every", "validation_blocks", "test_blocks", "distinct")
        checks.check_counts(self, sizes)
        checks.check_positive(self, ("clip",))
        if not 0 <= self.epsilon_floor <= 1:
            raise BadInput(f"--epsilon_floor: must lie between 0 and 1, got {self.epsilon_floor}")
        if not 2 <= self.context <= 65536:
            raise BadInput(f"--context: must lie between 2, a begin token and another, and 65536, got {self.context}")
        if self.padding is not None and self.padding < 0:
            raise BadInput(f"--padding: must be the number of a token, at least 0, got {self.padding}")
        check_most("padding", self.padding or 0)
        check_places("batch_size", self.batch_size, self.context)
        if self.distinct is not None and self.distinct > self.layers:
            raise BadInput(f"--distinct: {self.distinct} is more than --layers {self.layers}")
        for missing, other in (("validation", "test"), ("test", "validation")):
            if getattr(self, other) and not getattr(self, missing):
                raise BadInput(f"--{missing}: needed, since --{other} is given; without both of them --corpus is cut 80/10/10")
        self._check_methods()
        if self.ties == "published" and self.gradient == "all":
            raise BadInput("--gradient: ties published send gradient of the owner's own use alone; give owner")
        if self.details == "published" and self.objective == "masked":
            raise BadInput("--details: those that are published are of a causal model; give own, or --objective causal")

    def _check_methods(self) -> None:
        """Check which methods are trained, those of the package and maps of the user's own."""
        if self.maps:
            try:
                check_maps(self.maps, self.layers)
            except TieError as error:
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

    @property
    def agents(self) -> list[str]:
        """The methods in which an agent ties and unties layers."""
        return [name for name in self.methods if name in AGENTS]

    @property
    def names(self) -> list[str]:
        """All methods, agents first, then other methods and maps of the user's own, then what waits for an agent."""
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
        description="Train a transformer whose layers are tied and untied by an agent that learns while the model does and, on "
        "the same batches, models untied, with fixed maps and with random ones; report perplexities, memory, time and ties, "
        "with figures and a report in a run directory.",
        example="Example: PROGRAM --corpus wikitext-2/ --seeds 3. Settings, the published ones among "
        "them, come by name, as --config layer_tying/wikitext2. Every method of every seed is a model of its own, one on each "
        "device at a time. What was interrupted goes on with the same command and --resume.",
        switches={name: text for name, text in SWITCHES.items() if name != "distributed"},
        first=("corpus", "methods", "seeds", "layers", "steps", "resume", "overwrite", "out"),
        configurations="layer_tying",
    ),
    run=_run,
    sizes=sizes,
    prepare=_prepare,
    may_change=("checkpoint_every", "data_dir"),
    single_process=True,
)
