"""The text of a run in blocks, and the batches of a model."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax import training
from tiejax.runs.console import Console
from tiejax.runs.resume import own_tokenizer
from tiejax.settings.command_line import BadInput
from tiejax.studies.layer_tying.job import Data
from tiejax.studies.layer_tying.settings import Settings
from tiejax.text import blocks, streams
from tiejax.text.corpus import CorpusError
from tiejax.text.streams import Streams


class Text(NamedTuple):
    """What is trained on: streams of tokens, and each cut into blocks."""

    streams: "Streams"
    blocks: dict[str, np.ndarray]


def prepare(settings: Settings, console: Console, resume: bool = False) -> Text:
    """Return the text of a configuration, in blocks; raises BadInput.

    resume: with the vocabulary that the run was started with.
    """

    assert settings.data_dir is not None
    try:
        with console.preparing() as progress:
            found = streams.prepare(
                settings.corpus,
                settings.validation,
                settings.test,
                own_tokenizer(settings, resume),
                settings.vocab_size,
                Path(settings.data_dir).expanduser(),
                text_feature=settings.text_feature,
                tfds_dir=settings.tfds_dir,
                say=console.say,
                progress=progress,
            )
        of_split = {
            name: blocks.blocks(found.split(name), settings.context, found.begin) for name in ("train", "validation", "test")
        }
    except CorpusError as error:
        raise BadInput(str(error)) from None
    return Text(found, of_split)


class Batch(NamedTuple):
    """Blocks of tokens, how much each counts, and what masks are drawn with."""

    tokens: Any
    weight: Any
    key: Any


def build_data(settings: Settings, text: Text) -> "Data":
    """Return the batches of a run: those of a group are drawn at random, the same for every method of a seed."""

    ones = np.ones(settings.batch_size, np.float32)

    def group(seed: int, number: int) -> list[Batch]:
        drawn = blocks.batch(text.blocks["train"], settings.batch_size, seed, number, settings.k + 1)
        masks = jax.random.fold_in(training.stream(jax.random.key(seed), "masks"), number)
        return [Batch(tokens, ones, jax.random.fold_in(masks, place)) for place, tokens in enumerate(drawn)]

    def held_out(split: str, most: int | None) -> list[tuple[Batch, float]]:
        whole = text.blocks[split]
        chosen = np.arange(len(whole))
        if most is not None and most < len(whole):
            chosen = np.arange(most) * len(whole) // most
        masks, found = training.stream(jax.random.key(0), f"{split} masks"), []
        for first in range(0, len(chosen), settings.batch_size):
            rows = chosen[first : first + settings.batch_size]
            filled = np.resize(rows, settings.batch_size)
            weight = (np.arange(settings.batch_size) < len(rows)).astype(np.float32)
            found.append((Batch(whole[filled], weight, jax.random.fold_in(masks, first)), float(len(rows))))
        return found

    return Data(
        group,
        held_out("validation", settings.validation_blocks),
        {split: held_out(split, settings.test_blocks) for split in ("validation", "test")},
    )
