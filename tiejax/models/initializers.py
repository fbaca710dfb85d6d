"""Layers with torch's initial values, as in the published EXor experiment, since they affect training trajectories."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiejax.models.layer_norm import LayerNorm

LAYER_NORM_EPSILON = 1e-5  # torch's default; Flax's is 1e-6


def uniform(bound: float) -> jax.nn.initializers.Initializer:
    """Return an initializer that samples the uniform distribution on [-bound, bound)."""

    def init(key: jax.Array, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Dense(nn.Module):
    """Linear map y = x W + b over the last axis of x, with the parameters and results of Flax's `nn.Dense`.

    The other axes are flattened, so the gradient of W is a product of two matrices in their stored layout; otherwise XLA would
    transpose both on a CPU. dtype: dtype of the computation (default: the promoted dtype of x and the parameters).
    """

    features: int
    kernel_init: Any
    bias_init: Any = nn.initializers.zeros
    param_dtype: Any = jnp.float32
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Float[Array, "*places width"]) -> Float[Array, "*places features"]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
        dtype = jnp.result_type(x, kernel, bias) if self.dtype is None else self.dtype
        flat, kernel, bias = (leaf.astype(dtype) for leaf in (x.reshape(-1, x.shape[-1]), kernel, bias))
        return (flat @ kernel + bias).reshape(*x.shape[:-1], self.features)


def linear(fan_in: int, features: int, name: str, dtype: Any = None) -> Dense:
    """Return a Dense layer whose kernel and bias are initialised uniformly in +-1/sqrt(fan_in), as in torch.nn.Linear."""
    init = uniform(1 / math.sqrt(fan_in))
    return Dense(features, kernel_init=init, bias_init=init, param_dtype=default_dtype(), dtype=dtype, name=name)


def layer_norm(name: str, axis: int = -1, dtype: Any = None, epsilon: float = LAYER_NORM_EPSILON) -> LayerNorm:
    """Return a LayerNorm over one axis, with sums in float32 for any output `dtype`, and torch's epsilon by default."""
    return LayerNorm(epsilon, axis, dtype, default_dtype(), name=name)


def default_dtype() -> jnp.dtype:
    """Return jax's default float type: float32, or float64 under `jax_enable_x64`."""
    return jnp.zeros(()).dtype
