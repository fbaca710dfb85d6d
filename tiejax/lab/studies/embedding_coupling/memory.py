"""Planned device memory of pre-training each shape, for a mesh that need not exist."""

from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import in_units
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.pretraining.memory import MemoryPlan, Pretraining, largest_batch, plan_memory
from tiejax.text.tokenizer import SPECIAL


def answer(settings: Settings, console: Console) -> int:
    """Print the bytes per device for each shape, and the largest batch that fits in a given memory; return the exit status."""
    assert settings.plan is not None
    if settings.batch_rows < settings.plan:
        raise BadInput(f"--plan: expected at most --batch_rows {settings.batch_rows} devices, got {settings.plan}")
    vocabulary = settings.vocab_size * (1 + settings.cipher) - len(SPECIAL) * settings.cipher
    dtype = None if settings.compute_dtype == "float32" else settings.compute_dtype
    rows_of_tables = list[list[str]]()
    columns: list[str] = []
    for name, shape in settings.every_shape.items():
        task = Pretraining(
            shape,
            vocabulary,
            settings.max_length,
            settings.plan,
            rematerialise=settings.rematerialise,
            dtype=dtype,
            max_norm=settings.clip,
        )
        cells = in_words(plan_memory(task, settings.batch_rows))
        if settings.memory is not None:
            cells.insert(-1, ("maximum rows", _most_rows(task, int(settings.memory))))
        columns = [f"per device, {settings.plan} devices", *(kind for kind, _ in cells)]
        rows_of_tables.append([name, *(cell for _, cell in cells)])
    for line in aligned([columns, *rows_of_tables]):
        console.result(line)
    rows = f"{settings.batch_rows} rows of {settings.max_length} tokens per step, vocabulary {vocabulary:,}"
    limit = "" if settings.memory is None else f"; maximum rows: with {in_units(int(settings.memory))} per device"
    console.result(f"{rows}; one member at a time{limit}")
    return 0


def in_words(plan: MemoryPlan) -> list[tuple[str, str]]:
    """Return the rows of a plan's table: kinds of arrays with their bytes per device, the total, the output table's layout."""
    kinds = [(kind, in_units(getattr(plan, kind))) for kind in ("parameters", "gradients", "optimizer", "activations")]
    return [*kinds, ("total", in_units(plan.total)), ("output table", plan.output_table)]


def _most_rows(task: Pretraining, memory: int) -> str:
    """Return the largest number of rows of a step that fits in memory, or "none"."""
    try:
        return f"{largest_batch(task, memory):,}"
    except ValueError:
        return "none"


def aligned(rows: list[list[str]]) -> list[str]:
    """Join rows of cells to lines, padding each column to its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
