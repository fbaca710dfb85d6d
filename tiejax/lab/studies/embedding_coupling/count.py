"""Parameter counts of the paper's models, computed from their shapes, next to the printed numbers."""

from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.models.bert import count_parameters
from tiejax.models.shapes import PUBLISHED_SHAPES, Published


def counted(published: Published) -> list[tuple[float, int, float]]:
    """Return (computed, printed, relative difference) of a model in pre-training and in fine-tuning, counts in millions."""
    counts = (count / 1e6 for count in count_parameters(published.shape, published.vocabulary))
    printed = published.pretraining, published.fine_tuning
    return [(millions, number, millions / number - 1) for millions, number in zip(counts, printed, strict=True)]


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


def answer(settings: Settings, console: Console) -> int:
    """Print the table; return the exit status."""
    for line in table():
        console.result(line)
    return 0
