"""Names of the policies for ending and beginning a tie, described in `untie.py`; does not import jax."""

from typing import Literal, get_args

Policy = Literal["copy", "zero", "zero-keep-count", "split"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
# The leaf that counts as new when a tie ends, and the leaf whose values both take when a tie begins (or their mean).
New = Literal["source", "target"]
Keep = Literal["mean", "source", "target"]
