"""What pre-training of each shape takes of a device, on a mesh that need not be there."""

from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import in_units
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.pretraining.live_arrays import KINDS
from tiejax.pretraining.memory import MemoryPlan, Pretraining, largest_batch, plan_memory
from tiejax.text.tokenizer import SPECIAL


def answer(settings: Settings, console: Console) -> int:
    """Print bytes a device for each shape, and the largest batch for a given memory; return the exit status."""
    assert settings.plan is not None
    if settings.batch_rows < settings.plan:
        raise BadInput(f"--plan: {settings.plan} devices a member need as many rows, --batch_rows is {settings.batch_rows}")
    vocabulary = settings.vocab_size * (1 + settings.cipher) - len(SPECIAL) * settings.cipher
    dtype = None if settings.compute_dtype == "float32" else settings.compute_dtype
    rows_of_tables = list[list[str]]()
    columns: list[str] = []
    for name, shape in settings.every_shape.items():
        of = Pretraining(
            shape,
            vocabulary,
            settings.max_length,
            settings.plan,
            rematerialise=settings.rematerialise,
            dtype=dtype,
            max_norm=settings.clip,
        )
        cells = in_words(plan_memory(of, settings.batch_rows))
        if settings.memory is not None:
            cells.insert(-1, ("most rows", _most_rows(of, int(settings.memory))))
        columns = ["a device of " + str(settings.plan), *(kind for kind, _ in cells)]
        rows_of_tables.append([name, *(cell for _, cell in cells)])
    for line in aligned([columns, *rows_of_tables]):
        console.result(line)
    rows = f"{settings.batch_rows} rows of {settings.max_length} tokens a step, {vocabulary:,} different ones"
    limit = "" if settings.memory is None else f"; most rows: for {in_units(int(settings.memory))} a device"
    console.result(f"{rows}; one member at a time{limit}")
    return 0


def in_words(plan: MemoryPlan) -> list[tuple[str, str]]:
    """Return the plan as a table: what there is, and its bytes on one device, the total last but the output table's lie."""
    kinds = [(kind, in_units(getattr(plan, kind))) for kind in KINDS]
    return [*kinds, ("total", in_units(plan.total)), ("output table", plan.output_table)]


def _most_rows(of: Pretraining, memory: int) -> str:
    """Write the most rows of a step, or that not one fits."""
    try:
        return f"{largest_batch(of, memory):,}"
    except ValueError:
        return "none"


def aligned(rows: list[list[str]]) -> list[str]:
    """Return rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
