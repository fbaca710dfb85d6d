"""The error that ties raise; does not import jax."""


class TieError(ValueError):
    """Invalid ties: a missing leaf, mismatched shapes or dtypes, two sources of one leaf, a cycle, or values that differ.

    The message names the tie, both paths and, where they matter, shapes and dtypes.
    """
