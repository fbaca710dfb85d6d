"""In how many bits products of float32 are formed: accelerators use fewer than 32 unless they are told otherwise."""

from contextlib import AbstractContextManager
from typing import Literal

import jax

# highest: float32. high: tensorfloat32, or three products of bfloat16. default: the fewest that the device has. bfloat16:
# factors rounded to it, sums in float32. CPUs compute in float32 whatever is asked.
Precision = Literal["highest", "high", "default", "bfloat16"]


def products_in(precision: Precision) -> AbstractContextManager[None]:
    """Return the context in which the products of float32 in a function that is traced are formed in this precision.

    jax's names, but for `bfloat16`, which it takes for `default`: here it is the same on every device that can. Products of
    bfloat16 are not touched.
    """
    name = "BF16_BF16_F32" if precision == "bfloat16" else precision
    context: AbstractContextManager[None] = jax.default_matmul_precision(name)
    return context
