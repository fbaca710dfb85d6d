"""The losses that the models of a run must beat: those of bigram models of the sentences that pre-training reads."""

from tiejax.lab.studies.embedding_coupling.encoders import ORDER, feed_of, validation_stream
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.pretraining.step_plan import StepPlan
from tiejax.text import masked_bigrams
from tiejax.text.masked_bigrams import sentences_of


def losses_of_bigrams(settings: Settings, text: Text, plan: StepPlan) -> dict[str, float]:
    """Return the losses of masked tokens, in nats, of three bigram models (see `masked_bigrams.losses_of_bigrams`).

    They are counted on exactly the sentences that all members read, each once, and scored on those of a validation.
    """
    read = sentences_of(feed_of(settings, text, plan).stream(ORDER), plan.steps * plan.rows)
    held_out = sentences_of(validation_stream(settings, text), settings.validation_batches * plan.rows)
    return masked_bigrams.losses_of_bigrams(read, held_out, text.twins, text.vocabulary.special, settings.cipher)
