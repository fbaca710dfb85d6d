"""Memory estimates of a text run in closed form, for use before jax is imported and again once the text is known."""

from typing import Any, NamedTuple

from tiejax.lab.settings.sizes import FLOAT, INDEX, MOMENTS, STATE, Need, bytes_of_records, bytes_of_rows, bytes_of_value
from tiejax.models import counts
from tiejax.statistics.untie_arms import Arms

MODEL = ("vocab_size", "width", "layers", "feed_forward")
FLAGS = {
    "state": ("seeds", *MODEL),
    "records": ("seeds", "steps", "record_every", "validate_every"),
    "batches": ("seeds", "batch_size", "max_length", "validation_batches"),
    "training": ("batch_size", "max_length", *MODEL),
}


class Decided(NamedTuple):
    """Sizes that depend on the text.

    vocabulary: tokens and twins. pairs: pairs of words with recorded distances. buckets: token-frequency buckets.
    steps: training steps. rows: rows of a step. mesh: devices that train one member together.
    """

    vocabulary: int
    pairs: int
    buckets: int
    steps: int
    rows: int
    mesh: int = 1


def before_text(settings: Any) -> Decided:
    """Return lower bounds of the sizes before the text is read; a trained vocabulary is assumed to have its full size."""
    vocabulary = settings.vocab_size if settings.tokenizer is None else 1
    packed = max(1, settings.batch_size * settings.min_length // settings.max_length)
    rows = packed if settings.packing == "packed" else settings.batch_size
    return Decided(vocabulary, 0, 2, settings.steps or 1, rows)


def parameters(settings: Any, vocabulary: int) -> int:
    """Return the number of parameters of one untied model."""
    positions = settings.max_length * settings.width if settings.positions == "learned" else 0
    bias = vocabulary if settings.head_bias else 0
    encoder = counts.transformer(settings.layers, settings.width, settings.feed_forward, settings.layer_norm == "pre")
    return 2 * vocabulary * settings.width + bias + positions + encoder


def need(settings: Any, decided: Decided | None = None) -> Need:
    """Estimate the memory of a run of resolved settings; a lower bound if `decided` is None."""
    text = decided or before_text(settings)
    arms, by_use = len(settings.compared), False
    if settings.untie_at is not None:
        policies = Arms.of(settings.untie_at, text.steps, [settings.untie_policy], [settings.untie_new]).policy
        arms, by_use = len(policies), "split" in policies
    seeds = settings.number_of_seeds
    member_parameters = parameters(settings, text.vocabulary)
    state = STATE * member_parameters + by_use * MOMENTS * FLOAT * 2 * text.vocabulary * settings.width
    of_member = bytes_of_records(settings, text.steps, bytes_of_record(text), bytes_of_validation(text))
    records = arms * seeds * of_member + text.steps * (INDEX + FLOAT)  # and every step's learning rate
    # The size of the validation split is unknown here: count one batch, the minimum.
    batches = settings.validation_batches if isinstance(settings.validation_batches, int) else 1
    rows = bytes_of_rows(text.rows, settings.max_length, text.vocabulary, settings.number_of_seeds, batches)
    # A device trains one member at a time: its gradients and the inputs of each layer.
    of_value = bytes_of_value(settings.compute_dtype)
    activations = text.rows // text.mesh * settings.max_length * settings.width * settings.layers * of_value
    return Need(arms * seeds * state, records, rows, FLOAT * member_parameters // text.mesh + activations)


def bytes_of_record(text: Decided) -> int:
    """Return the bytes of one record: loss and accuracy, gradients by use and bucket, distances of pairs."""
    return FLOAT * (2 + 4 * (1 + text.buckets) + 2 * text.pairs) + INDEX + 1  # the last two: overflow, finite


def bytes_of_validation(text: Decided) -> int:
    """Return the bytes of one validation: loss and accuracy, then loss, accuracy and number of tokens per bucket."""
    return FLOAT * (2 + 3 * text.buckets)
