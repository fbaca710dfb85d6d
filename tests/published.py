"""The published models and fixed inputs for them, shared by parity, golden and model tests. Does not import torch.

The table is copied from the specification and not read from the experiment, so that tests detect an error there.
"""

import functools
import zlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import training, tying
from tiejax.lab.studies.exor.batches import MaskedSequences
from tiejax.lab.studies.exor.task import split
from tiejax.models import BidirectionalLSTM, LanguageModel, Mixer, Transformer

LENGTH, VOCABULARY = 8, 7
DRAWS = 300  # draws of initial values in tests of their distribution
TIES = (tying.Tie("embed/embedding", "head/embedding"),)
ENCODERS = {"transformer": Transformer, "lstm": BidirectionalLSTM, "mixer": Mixer}


class Case(NamedTuple):
    """An architecture and the fields of its module."""

    architecture: str
    settings: dict


PUBLISHED = {
    "transformer_small": Case("transformer", {"layers": 1, "width": 4, "heads": 1, "feed_forward": 4}),
    "transformer_medium": Case("transformer", {"layers": 2, "width": 32, "heads": 1, "feed_forward": 32}),
    "lstm_small": Case("lstm", {"layers": 2, "width": 4, "hidden": 8}),
    "lstm_medium": Case("lstm", {"layers": 4, "width": 32, "hidden": 32}),
    "mixer_small": Case("mixer", {"layers": 1, "width": 4, "token_hidden": 4, "channel_hidden": 8}),
    "mixer_medium": Case("mixer", {"layers": 2, "width": 32, "token_hidden": 32, "channel_hidden": 32}),
}
SMALL = [name for name in PUBLISHED if name.endswith("small")]
MEDIUM = [name for name in PUBLISHED if name.endswith("medium")]

# Unpublished settings whose sizes all differ, so that no transposed or misread axis fits by chance.
OPTIONS = {
    "transformer_relu_2_heads": Case(
        "transformer", {"layers": 2, "width": 6, "heads": 2, "feed_forward": 10, "activation": "relu"}
    ),
    "transformer_silu_3_heads": Case(
        "transformer", {"layers": 3, "width": 6, "heads": 3, "feed_forward": 10, "activation": "silu"}
    ),
    "lstm_forward": Case("lstm", {"layers": 2, "width": 6, "hidden": 5, "bidirectional": False}),
    "lstm_uneven": Case("lstm", {"layers": 2, "width": 6, "hidden": 5}),
    "mixer_gelu": Case("mixer", {"layers": 2, "width": 6, "token_hidden": 9, "channel_hidden": 12, "activation": "gelu"}),
    "mixer_tanh": Case("mixer", {"layers": 2, "width": 6, "token_hidden": 9, "channel_hidden": 12, "activation": "tanh"}),
}
CASES = PUBLISHED | OPTIONS

# Numbers of parameters (untied, tied).
COUNTS = {
    "transformer_small": (192, 164),
    "transformer_medium": (13_376, 13_152),
    "lstm_small": (2_684, 2_656),
    "lstm_medium": (94_688, 94_464),
    "mixer_small": (224, 196),
    "mixer_medium": (6_032, 5_808),
}


class Protocol(NamedTuple):
    """The optimizer of a training test. The half period is short, so that the rate passes its minimum and rises again."""

    kind: str = "adamw"
    maximum: float = 5e-4
    minimum: float = 1e-5
    half_period: int = 100
    weight_decay: float = 0.1
    betas: tuple = (0.9, 0.999)
    eps: float = 1e-12


# Steps and optimizers of the training tests: all pass a minimum of the learning rate.
TRAINING = {name: (300, Protocol(half_period=100)) for name in SMALL}
TRAINING |= {name: (20, Protocol(half_period=8)) for name in MEDIUM}


def build(case: Case) -> LanguageModel:
    """Return the masked language model of a case."""
    settings = dict(case.settings)
    width = settings["width"]
    if case.architecture == "mixer":
        del settings["width"]  # a mixer infers its width from its input
    return LanguageModel(VOCABULARY, width, ENCODERS[case.architecture](**settings))


def init(model: LanguageModel, key: jax.Array) -> dict:
    """Initialise untied parameters."""
    return jax.jit(model.init)(key, jnp.zeros((1, LENGTH), jnp.int32), jnp.zeros(1, jnp.int32))["params"]


def draws(model: LanguageModel, number: int) -> dict:
    """Draw initial values for `number` keys, in the default float dtype: leaves [number, ...]."""
    return _draws(model, number, jnp.zeros(()).dtype)


@functools.cache
def _draws(model: LanguageModel, number: int, dtype: jnp.dtype) -> dict:
    # One key at a time: vectorised over keys, the random bits take several times as long to compile.
    drawn = jax.lax.map(lambda key: init(model, key), jax.random.split(jax.random.key(7), number))
    assert drawn["embed"]["embedding"].dtype == dtype
    return jax.tree.map(np.asarray, drawn)


def by_path(params: dict) -> dict:
    """Return the leaves by slash-separated path; `None` for targets of ties."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda leaf: leaf is None)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in pairs}


def weights(model: LanguageModel, dtype: type = np.float64) -> dict:
    """Return parameters that depend only on their paths and shapes, equal on all machines.

    No leaf has a value that could hide an error (a zero bias, a scale of 1), and the layers of a stack differ.
    """

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        uniform = 2 * np.random.default_rng(zlib.crc32(name.encode())).random(leaf.shape) - 1
        if name.endswith("embedding"):
            value = np.sqrt(3) * uniform
        elif name.endswith("kernel"):
            value = uniform * np.sqrt(3 / leaf.shape[-2])
        else:
            value = name.endswith("scale") + 0.3 * uniform
        return value.astype(dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(lambda: init(model, jax.random.key(0))))


def random_tokens(number: int) -> np.ndarray:
    """Return sequences of random symbols, `[number, LENGTH]`."""
    return (np.random.default_rng(0).random((number, LENGTH)) * VOCABULARY).astype(np.int32)


def visits(steps: int) -> MaskedSequences:
    """Return batches of the whole training split in the variant main, drawn by numpy and stacked over steps."""
    rng = np.random.default_rng(1)
    strings = split(7)["train"]
    shape = (steps, *strings.shape)
    spelled = np.where(strings == 0, rng.random(shape) >= 0.1, 2 + (rng.random(shape) >= 0.5)).astype(np.int32)
    parity = np.broadcast_to(4 + strings.sum(1) % 2, shape[:2])[..., None]
    position = (rng.random(shape[:2]) * 7).astype(np.int32)
    target = np.take_along_axis(spelled, position[..., None], axis=2)[..., 0]
    np.put_along_axis(spelled, position[..., None], 6, axis=2)
    return MaskedSequences(np.concatenate([spelled, parity], axis=2).astype(np.int32), position, target)


def logits_everywhere(model: LanguageModel, params: dict, tokens: np.ndarray) -> np.ndarray:
    """Return logits at every position of every sequence, [batch, length, vocabulary]."""
    # Accelerators multiply float32 with reduced precision by default.
    with jax.default_matmul_precision("highest"):
        logits = _everywhere(model)(*jax.tree.map(jnp.asarray, (params, tokens)))
    return np.asarray(logits).reshape(*tokens.shape, VOCABULARY)


@functools.cache  # one compilation for parity and golden tests, before and after training
def _everywhere(model: LanguageModel) -> Callable[[dict, jax.Array], jax.Array]:
    @jax.jit
    def apply(params: dict, tokens: jax.Array) -> jax.Array:
        positions = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32), len(tokens))
        return model.apply({"params": params}, jnp.repeat(tokens, LENGTH, axis=0), positions)

    return apply


def train(
    model: LanguageModel, params: dict, batches: MaskedSequences, how: str, protocol: Protocol
) -> tuple[np.ndarray, dict]:
    """Train with the library's step and optimizer; return the loss before every update and the final full parameters.

    how: `untied`; `stored`, with the tied table stored once; `switched`, with both tables stored and the tie a run-time switch.
    """
    with jax.default_matmul_precision("highest"):
        losses, final = _training(model, how, protocol)(*jax.tree.map(jnp.asarray, (params, batches)))
    return np.asarray(losses), jax.tree.map(np.asarray, final)


@functools.cache  # parity and golden tests start from different weights and share a compilation
def _training(model: LanguageModel, how: str, protocol: Protocol) -> Callable[[dict, MaskedSequences], tuple]:
    stored_ties = TIES if how == "stored" else ()
    switched_ties = TIES if how == "switched" else ()

    def logits(stored: dict, batch: MaskedSequences, key: jax.Array) -> jax.Array:
        return model.apply({"params": tying.view(stored, stored_ties)}, batch.tokens, batch.position)

    def loss(stored: dict, batch: MaskedSequences, key: jax.Array) -> tuple:
        return training.masked_lm_loss(logits, stored, batch, key)

    schedule = training.cosine_cycle(protocol.maximum, protocol.minimum, protocol.half_period)
    optimizer = training.make_optimizer(protocol.kind, schedule, protocol.weight_decay, protocol.betas, protocol.eps)
    step = training.make_step(loss, optimizer, switched_ties)

    @jax.jit
    def run(params: dict, batches: MaskedSequences) -> tuple:
        if how == "switched":
            params = tying.copy_to_targets(params, params, TIES, True)
        stored = tying.store(params, stored_ties)
        start = training.TrainState(stored, optimizer.init(stored))

        def visit(state: training.TrainState, batch: MaskedSequences) -> tuple:
            state, metrics = step(state, batch, jax.random.key(0), True)
            return state, metrics["loss"]

        state, losses = jax.lax.scan(visit, start, batches)
        return losses, tying.view(state.params, stored_ties)

    return run


def difference(ours: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest difference, relative to the largest reference value."""
    assert ours.shape == reference.shape
    assert ours.dtype == reference.dtype
    return float(np.abs(ours - reference).max() / np.abs(reference).max())
