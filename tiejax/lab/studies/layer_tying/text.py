"""The text of a layer-tying run, cut into blocks, and its batches."""

import functools
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
    """Prepare the text of a run in blocks; raises BadInput.

    resume: use the vocabulary with which the run was started.
    """
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
        batch_size = PUBLISHED_HELD_OUT_BATCH if published else settings.batch_size
        batches = held_out_batches(text.blocks[split], split, batch_size, most)
        return [(batch, 1.0) for batch, _ in batches] if published else batches

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


def held_out_batches(whole: np.ndarray, split: str, batch_size: int, most: int | None = None) -> list[tuple[BlockBatch, float]]:
    """Return the blocks of a split in batches, each with its number of blocks: all, or `most` spread evenly over the split.

    Masks are the same for all models. The last batch is padded with blocks of weight 0.
    """
    chosen = blocks.spread(len(whole), most)
    masks, batches = training.stream(jax.random.key(0), f"{split} masks"), []
    for first in range(0, len(chosen), batch_size):
        rows = chosen[first : first + batch_size]
        weight = (np.arange(batch_size) < len(rows)).astype(np.float32)
        batch = BlockBatch(whole[np.resize(rows, batch_size)], weight, jax.random.fold_in(masks, first))
        batches.append((batch, float(len(rows))))
    return batches
