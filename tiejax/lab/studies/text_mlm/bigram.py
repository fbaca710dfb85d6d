"""The losses that the models of a run must beat: those of bigram models of the sentences that one seed reads."""

from tiejax.lab.studies.text_mlm.ensemble import feed_of, validation_rows
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text
from tiejax.pretraining.step_plan import StepPlan
from tiejax.text import masked_bigrams
from tiejax.text.masked_bigrams import sentences_of


def losses_of_bigrams(settings: Settings, text: Text, plan: StepPlan) -> dict[str, float]:
    """Return the losses of masked tokens, in nats, of three bigram models (see `masked_bigrams.losses_of_bigrams`).

    They are counted on exactly the sentences that the steps of the first seed read, each once: all sentences in a run of an
    epoch or more (and at most the first `MOST_TOKENS` tokens). They are scored on the sentences of a validation.
    """
    stream, batches = validation_rows(settings, text, plan)
    read = sentences_of(feed_of(settings, text, plan).stream(settings.seed_list[0]), plan.steps * plan.rows)
    held_out = sentences_of(stream, batches * plan.rows)
    return masked_bigrams.losses_of_bigrams(read, held_out, text.twins, text.vocabulary.special)
