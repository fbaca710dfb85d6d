"""The parameters of the paper's models, counted from their shapes, beside the printed numbers."""

from tiejax.models.bert import count_parameters
from tiejax.models.shapes import PUBLISHED, Published
from tiejax.runs.console import Console
from tiejax.studies.embedding_coupling.settings import Settings

MILLION = 1e6


def residuals(published: Published) -> tuple[float, float]:
    """Return by which share the counts of a published model, in pre-training and fine-tuning, differ from the printed ones."""
    counts = count_parameters(published.shape, published.vocabulary)
    printed = published.pretraining, published.fine_tuning
    first, second = (count / MILLION / number - 1 for count, number in zip(counts, printed, strict=True))
    return first, second


def table() -> list[str]:
    """Return the table as lines."""
    width = max(len(published.name) for published in PUBLISHED)
    heads = f"{'millions of parameters':{width}}  {'pre-training':>12} {'printed':>8} {'residual':>9}"
    lines = [f"{heads}  {'fine-tuning':>11} {'printed':>8} {'residual':>9}"]
    for published in PUBLISHED:
        before, after = (count / MILLION for count in count_parameters(published.shape, published.vocabulary))
        of_before, of_after = residuals(published)
        lines.append(
            f"{published.name:{width}}  {before:12.1f} {published.pretraining:8} {of_before:+9.2%}"
            f"  {after:11.1f} {published.fine_tuning:8} {of_after:+9.2%}"
        )
    return lines


def answer(settings: Settings, console: Console) -> int:
    """Print the table; return the exit status."""
    for line in table():
        console.result(line)
    return 0
