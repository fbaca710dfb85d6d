"""The number of parameters of a tree, with each shared array counted once."""

import math

from tiejax.tying.leaves import is_array
from tiejax.tying.tie import PyTree, leaves_by_path
from tiejax.tying.ties import TiesLike, resolve


def count_parameters(params: PyTree, ties: TiesLike = ()) -> int:
    """Count the entries of all arrays, those of a tied array once.

    Args:
        params: Full or stored parameters: arrays, or shapes and dtypes. Other leaves, such as functions, count as 0.
        ties: Ties between leaves of `params`; `find_ties(params, equal=False)` finds leaves that are one array.

    Returns:
        The number of entries.

    Raises:
        TieError: The ties do not fit `params`.

    Examples:
        >>> import numpy as np
        >>> params = {"embed": np.ones((5, 2)), "head": np.ones((2, 5)), "bias": np.zeros(5)}
        >>> count_parameters(params), count_parameters(params, Tie("embed", "head", transform="transpose"))
        (25, 15)
    """
    targets = {tie.target for tie in resolve(ties, params)}
    leaves = leaves_by_path(params)[0]
    return sum(math.prod(leaf.shape) for path, leaf in leaves.items() if is_array(leaf) and path not in targets)
