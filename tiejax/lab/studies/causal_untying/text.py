"""The text of a run: blocks of tokens, buckets of tokens by frequency, and the entropy of the token frequencies."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.resume import text_arguments
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory
from tiejax.lab.studies.causal_untying import sizes
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.text import blocks, streams
from tiejax.text.buckets import buckets, entropy
from tiejax.text.errors import CorpusError
from tiejax.text.streams import Streams
from tiejax.text.twins import Twins


class Text(NamedTuple):
    """The text of a run.

    train, validation: blocks of tokens. bucket: the bucket of every token by frequency rank, out of `bucket_names`. entropy:
    that of the token frequencies of the training text, in nats.
    """

    streams: Streams
    train: Int32[np.ndarray, "number context"]
    validation: Int32[np.ndarray, "number context"]
    bucket: Int[np.ndarray, "vocabulary"]
    bucket_names: list[str]
    entropy: float

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return self.streams.vocabulary


def prepare(settings: Settings, console: Console, resume: bool = False) -> Text:
    """Prepare the text of a run; raises BadInput.

    resume: use the vocabulary with which the run was started.
    """
    assert settings.context is not None
    try:
        with console.preparing() as progress:
            prepared = streams.prepare(
                **text_arguments(settings, resume),
                validation=settings.validation,
                test=settings.test,
                say=console.say,
                progress=progress,
            )
        train, validation = (
            blocks.blocks(prepared.split(name), settings.context, prepared.begin).astype(np.int32)
            for name in ("train", "validation")
        )
    except CorpusError as error:
        raise BadInput(f"--{error}") from None
    if len(train) < settings.batch_size:
        raise BadInput(f"--corpus: {len(train)} blocks of training text, expected at least --batch_size {settings.batch_size}")
    check_memory(settings, lambda settings: sizes.need(settings, prepared.vocabulary), sizes.OPTIONS)
    count = np.bincount(train[:, 1:].ravel(), minlength=prepared.vocabulary)
    names, bucket = buckets(count, Twins(prepared.vocabulary, (), (), ()))
    return Text(prepared, train, validation, bucket, names[:-1], entropy(count))
