"""The losses that masked language models must beat: those of bigram models of the sentences that a run reads."""

from collections.abc import Sequence

import numpy as np

from tiejax.text.ngram import masked_losses
from tiejax.text.packing import Stream
from tiejax.text.sequences import Sequences
from tiejax.text.twins import Twins

MOST_TOKENS = 2**26  # of the sentences that are counted: more would take minutes and several times their memory


def losses_of_bigrams(
    read: Sequences, held_out: Sequences, twins: Twins, special: Sequence[int], whole_sentences: bool = False
) -> dict[str, float]:
    """Return the losses of masked tokens, in nats, of the bigram models `left`, `right` and `both` (see `masked_losses`).

    Twins are planted once in both parts, with the probabilities of the run, so that bigrams and models predict the same tokens,
    twins included. [CLS] and [SEP] are neighbours that are never predicted. Two things differ from the validation loss: that is
    a mean over newly drawn twins and masks, and in it the neighbours of a masked token may be masked too, whereas the bigram
    models see both.

    read: the sentences that a seed reads, from which the models are counted. held_out: those of a validation, at whose tokens
    that can be masked the models are scored. special: tokens that are never masked. whole_sentences: as in `Masking`.
    """
    rng = np.random.default_rng(0)
    predicted = ~np.isin(np.arange(twins.vocabulary), np.array(special))
    train, validation = (planted(part, twins, rng, whole_sentences) for part in (read, held_out))
    return masked_losses(train, validation, twins.vocabulary, predicted)


def sentences_of(stream: Stream, rows: int) -> Sequences:
    """Return the sentences in the first rows of a stream, each once, in the order of the text, at most `MOST_TOKENS` tokens."""
    found, epoch = np.zeros(len(stream.offsets) - 1, bool), 0
    while rows > 0 and not found.all():  # only if languages are sampled, an epoch may lack some sentences
        order, starts = stream.packing(epoch)
        found[order[: starts[min(rows, len(starts) - 1)]]] = True
        rows, epoch = rows - (len(starts) - 1), epoch + 1
    lengths = np.diff(stream.offsets)
    found &= np.cumsum(lengths * found) <= MOST_TOKENS
    return Sequences(stream.ids[np.repeat(found, lengths)], np.concatenate([[0], np.cumsum(lengths[found])]))


def planted(sequences: Sequences, twins: Twins, rng: np.random.Generator, whole_sentences: bool = False) -> Sequences:
    """Return sentences in which words are replaced by their twins at random, as at one visit of a run."""
    twin, probability = twins.tables()
    lengths = np.diff(sequences.offsets)
    draws = rng.random(len(lengths) if whole_sentences else len(sequences.ids), np.float32)
    swapped = (np.repeat(draws, lengths) if whole_sentences else draws) < probability[sequences.ids]
    return sequences._replace(ids=np.where(swapped, twin[sequences.ids], sequences.ids))
