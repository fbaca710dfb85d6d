"""The text of a run: blocks of tokens, planted symbols, frequencies of tokens, and the losses of bigram models."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from tiejax.lab.comparison.segments import step_at
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.text import preparing
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory
from tiejax.lab.studies.causal_untying import sizes
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.text import blocks, planted_pairs, streams
from tiejax.text.buckets import buckets, entropy
from tiejax.text.errors import CorpusError
from tiejax.text.ngram import bigram_loss
from tiejax.text.planted_pairs import Planting
from tiejax.text.streams import Streams
from tiejax.text.twins import Twins
from tiejax.training.sources import ExampleFeed

MARKED = 1.0  # share of the sentences that begin with a marker


def plant(
    streams: Streams, splits: Sequence[np.ndarray], cut: Callable[[np.ndarray], np.ndarray]
) -> tuple[Planting, np.ndarray, list[np.ndarray]]:
    """Plant symbols in the training and the validation text; raises CorpusError if too much would be planted.

    All draws are the same in every run on the same text. cut: cuts a text, in which markers have been inserted, into blocks.
    Returns what is planted, chosen by the training text, whether each original token ends a sentence, and the blocks.
    """
    is_word, ends = planted_pairs.words_of(streams.token_texts(), splits[0])
    planting = planted_pairs.choose(np.bincount(splits[0], minlength=streams.vocabulary), is_word)
    written = []
    for number, ids in enumerate(splits):
        rng = np.random.default_rng([0, number])
        marked = planted_pairs.with_markers(planting, ids, ends, MARKED, rng)
        written.append(planted_pairs.write(planting, cut(marked), ends, rng))
    if (share := planted_pairs.share(planting, written[0])) > planted_pairs.MOST_PLANTED:
        raise CorpusError(
            f"planted: {share:.1%} of the tokens would be planted, expected at most {planted_pairs.MOST_PLANTED:.0%}; use "
            "text with longer sentences"
        )
    return planting, ends, written


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
    """Prepare the text of a run, with the vocabulary with which a resumed run was started; raises BadInput."""
    context, planting, ends = settings.context, None, None
    assert context is not None
    with preparing(settings, console, resume) as asked:
        prepared = streams.prepare(**asked, validation=settings.validation, test=settings.test)

        def cut(ids: np.ndarray) -> np.ndarray:
            return blocks.blocks(ids, context, prepared.begin).astype(np.int32)

        splits = [prepared.split(name) for name in ("train", "validation")]
        if settings.planted:
            planting, ends, (train, validation) = plant(prepared, splits, cut)
        else:
            train, validation = map(cut, splits)
    if len(train) < settings.batch_size:
        raise BadInput(f"--corpus: {len(train)} blocks of training text, expected at least --batch_size {settings.batch_size}")
    new = 0 if planting is None else planting.vocabulary - prepared.vocabulary
    check_memory(settings, sizes.need(settings, prepared.vocabulary + new), sizes.FLAGS)
    count = np.bincount(train[:, 1:].ravel(), minlength=prepared.vocabulary + new)
    # Planted symbols have the bucket of twins, the last one.
    names, bucket = buckets(count[: prepared.vocabulary], Twins(prepared.vocabulary, ("",) * new, (0,) * new, (0.0,) * new))
    names = [*names[:-1], "planted"] if planting is not None else names[:-1]
    return Text(prepared, train, validation, bucket, names, entropy(count), planting, ends)


def loss_of_bigram(settings: Settings, text: Text, seed: int, steps: int) -> float:
    """Return the loss of the final validation, in nats a token, of the bigram model of what a seed sees in some steps."""
    feed = ExampleFeed(text.train, settings.batch_size)
    return bigram_loss(text.train[feed.seen(seed, steps)], text.judged(settings.final_blocks), text.vocabulary)


def losses_by_length(settings: Settings, text: Text, seed: int, steps: int) -> dict[str, float]:
    """Return the loss of the bigram model for every length of the run, as a fraction of its steps."""
    return {
        str(length): loss_of_bigram(settings, text, seed, step_at(length, steps)) for length in (*settings.ends, Fraction(1))
    }


def planted_facts(text: Text, judged: np.ndarray) -> dict[str, Any]:
    """Return `planted` of results.json: words by kind, the planted share, and the choices in `judged`; {} on plain text."""
    if text.planting is None or text.ends is None:
        return {}
    texts, planting = text.streams.token_texts(), text.planting
    made = planted_pairs.choices(planting, judged, text.ends)
    found = {
        "words": {kind: [texts[token].strip() for token in tokens] for kind, tokens in planting.twins.items()},
        "ciphered": [texts[token].strip() for token in planting.ciphered],
        "unrelated": [[texts[token].strip() for token in pair] for pair in planting.unrelated],
        "pairs_of_markers": planting.markers,
        "symbols": planting.vocabulary - planting.size,
        "share": planted_pairs.share(planting, text.train),
        "least_loss": planted_pairs.least_loss(made),
        "choices": {name: int((made.kind == number).sum()) for number, name in enumerate(planted_pairs.CHOICES)},
    }
    return {"planted": found}
