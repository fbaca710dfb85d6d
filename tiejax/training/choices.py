"""Names of the choices that settings offer and training implements; importing this module does not import jax."""

from typing import Literal

# adamw: decoupled weight decay. adam: decay added to the gradient. Their equations are in `optimizer.py`.
OptimizerName = Literal["adamw", "adam"]

# cosine: oscillates between the largest and the smallest rate, without end (in layer tying: falls to 0 over the run). constant:
# the largest rate.
ScheduleName = Literal["cosine", "constant"]

# How products of float32 are computed. highest: in float32. high: in tensorfloat32, or as three products of bfloat16.
# default: in the lowest precision that the device offers. bfloat16: factors rounded to bfloat16, sums in float32. CPUs compute
# in float32 in every case.
Precision = Literal["highest", "high", "default", "bfloat16"]

# Adam's moments of a layer that separates from its owner. copy: the owner's. zero: zeros, which restarts the bias correction.
Moments = Literal["copy", "zero"]
