"""The text of a run: blocks of tokens, planted symbols, buckets of tokens by frequency, and the entropy of frequencies."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.text import preparing
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory
from tiejax.lab.studies.causal_untying import planted_text, sizes
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.text import blocks, streams
from tiejax.text.buckets import buckets, entropy
from tiejax.text.planted_pairs import Planting
from tiejax.text.streams import Streams
from tiejax.text.twins import Twins


class Text(NamedTuple):
    """The text of a run.

    train, validation: blocks of tokens. bucket: the bucket of every token by frequency rank, out of `bucket_names`. entropy:
    that of the token frequencies of the training text, in nats. planting, ends: what is planted, and whether each original
    token ends a sentence; None without `--planted`. natural: pairs of words by list, once they are measured.
    """

    streams: Streams
    train: Int32[np.ndarray, "number context"]
    validation: Int32[np.ndarray, "number context"]
    bucket: Int[np.ndarray, "vocabulary"]
    bucket_names: list[str]
    entropy: float
    planting: Planting | None = None
    ends: Bool[np.ndarray, " original"] | None = None
    natural: Mapping[str, Int[np.ndarray, "pairs 2"]] = {}

    def judged(self, most: int) -> Int32[np.ndarray, "number context"]:
        """The validation blocks of the final losses: all, or `most` spread evenly."""
        return self.validation[blocks.spread(len(self.validation), most)]

    @property
    def vocabulary(self) -> int:
        """The number of tokens, planted symbols included."""
        return self.streams.vocabulary if self.planting is None else self.planting.vocabulary

    @property
    def pairs(self) -> Mapping[str, Int[np.ndarray, "pairs 2"]]:
        """The pairs of symbols whose distances are recorded, by kind."""
        return self.natural if self.planting is None else self.planting.pairs()

    @property
    def of_pairs(self) -> tuple[list[str], Int[np.ndarray, "pairs 2"]]:
        """The kind of every pair, and its ids, in the order of recorded distances."""
        kinds = [kind for kind, pairs in self.pairs.items() for _ in pairs]
        return kinds, np.concatenate([np.zeros((0, 2), int), *self.pairs.values()])


def prepare(settings: Settings, console: Console, resume: bool = False) -> Text:
    """Prepare the text of a run; raises BadInput.

    resume: use the vocabulary with which the run was started.
    """
    assert settings.context is not None
    with preparing(settings, console, resume) as asked:
        prepared = streams.prepare(**asked, validation=settings.validation, test=settings.test)
        splits = [prepared.split(name) for name in ("train", "validation")]
        plant = planted_text.plant(prepared, splits) if settings.planted else None
        train, validation = (
            blocks.blocks(ids, settings.context, prepared.begin).astype(np.int32)
            for ids in (splits if plant is None else plant.marked)
        )
        if plant is not None:
            train, validation = plant.write(train, validation)
    if len(train) < settings.batch_size:
        raise BadInput(f"--corpus: {len(train)} blocks of training text, expected at least --batch_size {settings.batch_size}")
    vocabulary = prepared.vocabulary if plant is None else plant.planting.vocabulary
    check_memory(settings, sizes.need(settings, vocabulary), sizes.FLAGS)
    count = np.bincount(train[:, 1:].ravel(), minlength=vocabulary)
    names, bucket = buckets(count[: prepared.vocabulary], Twins(prepared.vocabulary, (), (), ()))
    if plant is None:
        return Text(prepared, train, validation, bucket, names[:-1], entropy(count))
    new = np.full(vocabulary - prepared.vocabulary, len(names) - 1, bucket.dtype)
    names, bucket = [*names[:-1], "planted"], np.concatenate([bucket, new])
    return Text(prepared, train, validation, bucket, names, entropy(count), plant.planting, plant.ends)
