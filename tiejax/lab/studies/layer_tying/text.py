"""The text of a layer-tying run, cut into blocks, its batches, and the losses of a bigram model of what a seed reads."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from tiejax import training
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.text import preparing
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory
from tiejax.lab.studies.layer_tying import sizes
from tiejax.lab.studies.layer_tying.job import Data
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.text import blocks, streams
from tiejax.text.ngram import bigram
from tiejax.text.sequences import SPLITS
from tiejax.text.streams import Streams

PUBLISHED_HELD_OUT_BATCH = 10  # blocks of a held-out batch in the published code, regardless of the training batch size


class Text(NamedTuple):
    """The token streams of a run, and their blocks `[number, context]` by split."""

    streams: Streams
    blocks: dict[str, np.ndarray]

    @property
    def tokens_per_word(self) -> dict[str, float]:
        """The mean number of tokens per word in each held-out split."""
        splits = self.streams.facts["splits"]
        return {name: splits[name]["tokens"] / splits[name]["words"] for name in ("validation", "test")}


class BlockBatch(NamedTuple):
    """Blocks of tokens `[batch_size, context]`, their weights `[batch_size]`, and a random key for their masks."""

    tokens: Any
    weight: Any
    key: Any


def prepare(settings: Settings, console: Console, resume: bool = False) -> Text:
    """Prepare the text of a run in blocks, with the vocabulary with which a resumed run was started; raises BadInput."""
    with preparing(settings, console, resume) as asked:
        prepared = streams.prepare(**asked, validation=settings.validation, test=settings.test)
        by_split = {name: blocks.blocks(prepared.split(name), settings.context, prepared.begin) for name in SPLITS}
    if settings.padding is not None and settings.padding >= prepared.vocabulary:
        raise BadInput(f"--padding: expected a token id <= {prepared.vocabulary - 1}, got {settings.padding}")
    check_memory(settings, sizes.need(settings, prepared.vocabulary), sizes.FLAGS)
    return Text(prepared, by_split)


def build_data(settings: Settings, text: Text) -> Data:
    """Return the batches of a run; those of a group are sampled at random, identically for all methods of a seed.

    With `--details published` the reward's batch is drawn independently of the group's training batches, and held-out batches
    have the published size and equal weights.
    """
    ones, published = np.ones(settings.batch_size, np.float32), settings.details == "published"

    @functools.cache
    def masks(seed: int) -> jax.Array:
        return training.stream(jax.random.key(seed), "masks")

    def group(seed: int, number: int) -> list[BlockBatch]:
        sampled = text.blocks["train"][drawn(settings, text, seed, number)]
        keys = keys_of(masks(seed), number, len(sampled))
        return [BlockBatch(tokens, ones, key) for tokens, key in zip(sampled, keys, strict=True)]

    def held_out(split: str, most: int | None) -> list[tuple[BlockBatch, float]]:
        """Return batches, with the same masks for all models; the last one is padded with blocks of weight 0."""
        whole, rows = text.blocks[split], PUBLISHED_HELD_OUT_BATCH if published else settings.batch_size
        chosen, masks = blocks.spread(len(whole), most), training.stream(jax.random.key(0), f"{split} masks")
        batches = []
        for first in range(0, len(chosen), rows):
            some = chosen[first : first + rows]
            weight = (np.arange(rows) < len(some)).astype(np.float32)
            batch = BlockBatch(whole[np.resize(some, rows)], weight, jax.random.fold_in(masks, first))
            batches.append((batch, 1.0 if published else float(len(some))))
        return batches

    return Data(
        group,
        held_out("validation", settings.validation_blocks),
        {split: held_out(split, settings.test_blocks) for split in ("validation", "test")},
    )


def drawn(settings: Settings, text: Text, seed: int, number: int) -> Int[np.ndarray, "batches batch_size"]:
    """Return which training blocks are in the batches of a group: those of its k steps, then that of the reward."""
    draw = functools.partial(blocks.drawn, len(text.blocks["train"]), settings.batch_size, seed, number)
    if settings.details == "published":
        return np.concatenate([draw(settings.k), draw(1, draw=1)])
    return draw(settings.k + 1)


@functools.partial(jax.jit, static_argnums=2)
def keys_of(root: jax.Array, number: int | jax.Array, count: int) -> tuple[jax.Array, ...]:
    """Return the keys of the batches of a group in one computation, which takes less time than one for each key."""
    return tuple(jax.random.fold_in(jax.random.fold_in(root, number), index) for index in range(count))


def losses_of_bigram(settings: Settings, text: Text, seed: int) -> dict[str, float]:
    """Return the losses of the bigram model of the blocks on which a seed trains, in nats a token, judged as those of models.

    `test` and `validation`: of the blocks on which the best step is evaluated. `selection`: of the blocks of a validation.
    """
    data, published = build_data(settings, text), settings.details == "published"

    def pairs(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens before predicted ones, and those; with published details, the end token is one."""
        if published:
            blocks = np.pad(blocks, ((0, 0), (0, 1)), constant_values=text.streams.begin)
        return blocks[:, :-1], blocks[:, 1:]

    def loss(batches: Sequence[tuple[BlockBatch, float]]) -> float:
        """Return the mean loss of weighted batches, as `job.mean_loss` does."""
        rows = [np.asarray(batch.tokens)[np.asarray(batch.weight) > 0] for batch, _ in batches]
        losses = [-np.log(model.probabilities(*pairs(blocks))).mean() for blocks in rows]
        return float(np.average(losses, weights=[weight for _, weight in batches]))

    model = bigram(*pairs(text.blocks["train"][seen(settings, text, seed)]), text.streams.vocabulary)
    judged = {**data.held_out, "selection": data.selection}
    return {name: loss(judged[name]) for name in ("test", "validation", "selection")}


def seen(settings: Settings, text: Text, seed: int) -> Int[np.ndarray, " blocks"]:
    """Return the numbers of the blocks that the training steps of a seed read, each once, ascending, without the rewards'."""
    assert settings.steps is not None
    groups = range(-(-settings.steps // settings.k))
    return np.unique(np.concatenate([drawn(settings, text, seed, group)[:-1] for group in groups])[: settings.steps])
