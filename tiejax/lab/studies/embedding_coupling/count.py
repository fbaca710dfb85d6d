"""Parameter counts of the paper's models, computed from their shapes, next to the printed numbers."""

from typing import NamedTuple

from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.models.bert import count_parameters
from tiejax.models.shapes import PUBLISHED_SHAPES, Published


class Counted(NamedTuple):
    """A computed parameter count and the printed one, in millions."""

    millions: float
    printed: int

    @property
    def residual(self) -> float:
        """The relative difference of the count from the printed number."""
        return self.millions / self.printed - 1


def counted(published: Published) -> tuple[Counted, Counted]:
    """Return the parameter counts of a published model in pre-training and in fine-tuning."""
    before, after = count_parameters(published.shape, published.vocabulary)
    return Counted(before / 1e6, published.pretraining), Counted(after / 1e6, published.fine_tuning)


def table() -> list[str]:
    """Return the lines of the table of parameter counts."""
    width = max(len(published.name) for published in PUBLISHED_SHAPES)
    heads = f"{'millions of parameters':{width}}  {'pre-training':>12} {'printed':>8} {'residual':>9}"
    lines = [f"{heads}  {'fine-tuning':>12} {'printed':>8} {'residual':>9}"]
    for published in PUBLISHED_SHAPES:
        cells = [f"{count.millions:12.1f} {count.printed:8} {count.residual:+9.2%}" for count in counted(published)]
        lines.append("  ".join([f"{published.name:{width}}", *cells]))
    lines.append("Both counts include BERT's pooler, as the printed ones do; a coupled table counts once.")
    return lines


def answer(settings: Settings, console: Console) -> int:
    """Print the table; return the exit status."""
    for line in table():
        console.result(line)
    return 0
