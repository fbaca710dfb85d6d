"""Parameters of shapes and memory of a run in closed form, before jax is imported and once the text is known.

Shapes are trained one after another, and each is pre-trained before it is fine-tuned; the largest stage counts.
"""

from typing import Any

from tiejax.lab.settings.sizes import FLOAT, INDEX, STATE, Need, bytes_of_records, bytes_of_rows, bytes_of_value
from tiejax.models import counts
from tiejax.models.shapes import POSITIONS, PUBLISHED_SHAPES, Published, Shape

SPECIAL = 5  # tokens without a twin in a cipher
STARTS = 2  # of every fine-tuning: pre-trained and control
MEMBERS = ("seeds", "rate_seeds")
FLAGS = {
    "state": ("fine_tuning_seeds", *MEMBERS, "vocab_size", "shapes"),
    "records": ("steps", "record_every", "validate_every", *MEMBERS),
    "batches": ("batch_rows", "max_length", "validation_batches", *MEMBERS),
    "training": ("batch_rows", "max_length", "vocab_size", "shapes"),
}
RECORD = 2 * FLOAT + INDEX + 1  # loss and accuracy, overflow, finite
VALIDATION = 2 * FLOAT


def least_vocabulary(settings: Any) -> int:
    """Return the fewest tokens of a run before its text is read; a trained vocabulary is assumed to have its full size."""
    return max(1, settings.vocab_size - SPECIAL) * (1 + settings.cipher) if settings.tokenizer is None else 1


def parameters(shape: Shape, vocabulary: int, positions: int = POSITIONS, pooler: bool = False) -> tuple[int, int]:
    """Return the parameter counts of a shape in pre-training (a coupled table once) and in fine-tuning (without task head).

    pooler: with tanh(W h + b) of the first state, which published counts include.
    """
    more = counts.linear(shape.width, shape.width) if pooler else 0
    before = counts.bert_encoder(shape, vocabulary, positions) + counts.bert_head(shape, vocabulary)
    return before + more, counts.bert_fine_tuned(shape, vocabulary, positions) + more


def counted(published: Published) -> list[tuple[float, int, float]]:
    """Return (computed, printed, relative difference) of a model in pre-training and in fine-tuning, counts in millions."""
    numbers = (number / 1e6 for number in parameters(published.shape, published.vocabulary, pooler=True))
    printed = published.pretraining, published.fine_tuning
    return [(millions, number, millions / number - 1) for millions, number in zip(numbers, printed, strict=True)]


def table() -> list[str]:
    """Return the lines of the table of parameter counts."""
    width = max(len(published.name) for published in PUBLISHED_SHAPES)
    heads = f"{'millions of parameters':{width}}  {'pre-training':>12} {'printed':>8} {'residual':>9}"
    lines = [f"{heads}  {'fine-tuning':>12} {'printed':>8} {'residual':>9}"]
    for published in PUBLISHED_SHAPES:
        cells = [f"{millions:12.1f} {printed:8} {residual:+9.2%}" for millions, printed, residual in counted(published)]
        lines.append("  ".join([f"{published.name:{width}}", *cells]))
    lines.append("Both counts include BERT's pooler, as the printed ones do; a coupled table counts once.")
    return lines


def answer(settings: Any, console: Any) -> int:
    """Print the table of `--count`; return the exit status."""
    for line in table():
        console.result(line)
    return 0


def need(settings: Any, vocabulary: int | None = None, mesh: int = 1, checkpoint: int = 0) -> Need:
    """Estimate the memory of a run of resolved settings; a lower bound without `vocabulary`.

    vocabulary: with the tokens of the cipher. checkpoint: fine-tuned parameters of a loaded checkpoint.
    """
    if settings.start is not None:
        return Need(_transfer(settings, 0, checkpoint))
    tokens = least_vocabulary(settings) if vocabulary is None else vocabulary
    stages = [_of_shape(settings, shape, tokens, mesh) for shape in settings.every_shape.values()]
    return max(stages, key=lambda stage: stage.total)


def _of_shape(settings: Any, shape: Shape, vocabulary: int, mesh: int) -> Need:
    before, after = parameters(shape, vocabulary, settings.max_length)
    seeds, value_bytes = settings.number_of_seeds + settings.rate_seeds, bytes_of_value(settings.compute_dtype)
    # A device trains one member at a time: its gradients and the inputs of each layer.
    tokens = -(-settings.batch_rows // mesh) * settings.max_length
    pretraining = Need(
        STATE * before * seeds,
        seeds * bytes_of_records(settings, settings.steps, RECORD, VALIDATION),
        bytes_of_rows(settings.batch_rows, settings.max_length, vocabulary, seeds, settings.validation_batches),
        FLOAT * before // mesh + tokens * shape.width * shape.layers * value_bytes,
    )
    transfer = Need(_transfer(settings, before, after), pretraining.records)
    return max(pretraining, transfer, key=lambda stage: stage.total)


def _transfer(settings: Any, before: int, after: int) -> int:
    """Return the bytes of fine-tuned members with their moments, and of the pre-trained and initial parameters."""
    seeds = settings.number_of_seeds
    trained = seeds + settings.rate_seeds
    scored = seeds * settings.fine_tuning_seeds
    tried = settings.rate_seeds * len(settings.fine_tuning_rates)
    return STATE * after * STARTS * max(scored, tried) + FLOAT * (before + after) * trained
