"""Names of the policies for ending and beginning a tie, described in `untie.py`; imports no jax."""

from typing import Literal, get_args

Policy = Literal["copy", "zero", "zero-keep-count", "split"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
# The leaf of an ending tie that counts as new, and the values that a beginning tie takes.
New = Literal["source", "target"]
Keep = Literal["mean", "source", "target"]
