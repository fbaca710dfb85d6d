"""The losses that the models of a run must beat: those of bigram models of the sentences that one seed reads."""

import numpy as np

from tiejax.lab.studies.text_mlm.ensemble import feed_of, validation_rows
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text
from tiejax.pretraining.step_plan import StepPlan
from tiejax.text.array_records import Sequences
from tiejax.text.ngram import masked_losses
from tiejax.text.packing import Stream

MOST_TOKENS = 2**26  # of the sentences that are counted: more would take minutes and several times their memory


def losses_of_bigrams(settings: Settings, text: Text, plan: StepPlan) -> dict[str, float]:
    """Return the losses of masked tokens, in nats, of the bigram models `left`, `right` and `both` (see `masked_losses`).

    They are counted on exactly the sentences that the steps of the first seed read, each once: all sentences in a run of an
    epoch or more (and at most the first `MOST_TOKENS` tokens). They are scored on the sentences of a validation, at tokens that
    can be masked (see `masked_losses`). Twins are planted once in both, with the probabilities of the run, so that bigrams and
    models predict the same tokens, twins included. [CLS] and [SEP] are neighbours that are never predicted. Two things differ
    from the validation loss: that is a mean over newly drawn twins and masks, and in it the neighbours of a masked token may be
    masked too, whereas the bigram models see both.
    """
    rng, special = np.random.default_rng(0), np.array(text.vocabulary.special)
    stream, batches = validation_rows(settings, text, plan)
    read = sentences_of(feed_of(settings, text, plan).stream(settings.seed_list[0]), plan.steps * plan.rows)
    held_out = sentences_of(stream, batches * plan.rows)
    predicted = ~np.isin(np.arange(text.twins.vocabulary), special)
    return masked_losses(planted(read, text, rng), planted(held_out, text, rng), text.twins.vocabulary, predicted)


def sentences_of(stream: Stream, rows: int) -> Sequences:
    """Return the sentences in the first rows of a stream, each once, in the order of the text."""
    order, starts = stream.packing(0)
    found = np.zeros(len(stream.offsets) - 1, bool)
    found[order[: starts[min(rows, len(starts) - 1)]]] = True
    lengths = np.diff(stream.offsets)
    found &= np.cumsum(lengths * found) <= MOST_TOKENS
    return Sequences(stream.ids[np.repeat(found, lengths)], np.concatenate([[0], np.cumsum(lengths[found])]))


def planted(sequences: Sequences, text: Text, rng: np.random.Generator) -> Sequences:
    """Return sentences in which words are replaced by their twins at random, as at one visit of a run."""
    twin, probability = text.twins.tables()
    swapped = rng.random(len(sequences.ids), np.float32) < probability[sequences.ids]
    return sequences._replace(ids=np.where(swapped, twin[sequences.ids], sequences.ids))
