"""The progress bar of a training outside of the laboratory's studies."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar_of(steps: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar for the block of a `with` statement.

    Args:
        steps: Number of steps in total.
        shown: Whether there is a bar; None if standard error is a terminal.

    Yields:
        A function that takes the number of steps done.
    """
    if not (sys.stderr is not None and sys.stderr.isatty() if shown is None else shown):
        yield lambda step: None
        return
    import rich.console
    import rich.progress

    columns = (
        rich.progress.TextColumn("training"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda step: bar.update(task, completed=step)
