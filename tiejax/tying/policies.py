"""The choices at the end and the beginning of a tie, by name; imports no jax. `untie.py` says what each does."""

from typing import Literal, get_args

Policy = Literal["copy", "zero", "zero-keep-count", "split"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
# Which leaf of a tie leaves, and whose values a tie that begins takes.
New = Literal["source", "target"]
Keep = Literal["mean", "source", "target"]
