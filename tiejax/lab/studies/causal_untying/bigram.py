"""The loss that the models of a run must beat: that of a bigram model of the tokens that one seed sees."""

from fractions import Fraction

from tiejax.lab.comparison.segments import step_at
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.text.ngram import bigram_loss
from tiejax.training.sources import ExampleFeed


def loss_of_bigram(settings: Settings, text: Text, seed: int, steps: int) -> float:
    """Return the loss of the final validation, in nats a token, of the bigram model of what a seed sees in some steps."""
    feed = ExampleFeed(text.train, settings.batch_size)
    return bigram_loss(text.train[feed.seen(seed, steps)], text.judged(settings.final_blocks), text.vocabulary)


def losses_by_length(settings: Settings, text: Text, seed: int, steps: int) -> dict[str, float]:
    """Return the loss of the bigram model for every length of the run, as a fraction of its steps."""
    return {
        str(length): loss_of_bigram(settings, text, seed, step_at(length, steps)) for length in (*settings.ends, Fraction(1))
    }
