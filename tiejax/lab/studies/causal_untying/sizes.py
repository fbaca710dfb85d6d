"""Memory estimates of a run in closed form, for use before jax is imported and once the vocabulary is known."""

from typing import Any

from tiejax.lab.settings.sizes import FLOAT, MOMENTS, Need, bytes_of_records, bytes_of_token
from tiejax.models import counts
from tiejax.text.planted_pairs import KINDS, PAIRS

MODEL = ("vocab_size", "width", "layers")
FLAGS = {
    "state": MODEL,
    "records": ("seeds", "steps", "record_every", "planted"),
    "batches": ("batch_size", "context"),
    "training": ("batch_size", "context", *MODEL),
}
MOST_STEPS = 15_000  # without --steps
RECORD = 24 * FLOAT  # loss, distance, and gradients of two uses, in total and in buckets
FEED_FORWARD = 4  # width of the feed-forward layers, of the width
WIDER = 1.25  # width of the wider tied model, of the width


def wide_width(settings: Any) -> int:
    """Return the width of the wider tied model, a multiple of the number of heads."""
    return max(1, round(WIDER * settings.width / settings.heads)) * settings.heads


def need(settings: Any, vocabulary: int | None = None) -> Need:
    """Estimate the memory of one model of a run, since the number that train at once depends on the devices."""
    if vocabulary is None:
        vocabulary = settings.vocab_size if settings.tokenizer is None else 1
    width = settings.width
    values = counts.gpt2(vocabulary, settings.layers, width, FEED_FORWARD * width, settings.context, tied=False)
    places = settings.batch_size * settings.context
    steps = MOST_STEPS if settings.steps is None else settings.steps
    pairs = (len(KINDS) + 1) * PAIRS if settings.planted else 0
    of_member = bytes_of_records(settings, steps, RECORD + 2 * FLOAT * pairs, FLOAT)
    return Need(
        records=settings.number_of_seeds * len(settings.arms) * of_member,
        state=(1 + MOMENTS) * values * FLOAT,
        batches=64 * places * bytes_of_token(vocabulary),
        training=values * FLOAT + settings.layers * places * width * FLOAT,
    )
