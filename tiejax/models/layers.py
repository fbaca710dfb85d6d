"""Linear maps, LayerNorm and dropout.

Initial values are torch's, as in the published EXor experiment, since they affect training trajectories.

LayerNorm has a custom derivative, which saves less than autodiff: its input and two numbers per position.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

LAYER_NORM_EPSILON = 1e-5  # torch's default; Flax's is 1e-6
LEVELS = 2**16


class LayerNorm(nn.Module):
    """LayerNorm over one axis: y = (x - mean) / sqrt(var + epsilon) scale + bias, where var is the mean of (x - mean)^2.

    Parameters, initial values and results are those of Flax's LayerNorm with `use_fast_variance=False`. Sums are in float32 or
    wider; the output is in `dtype` (default: the promoted dtype of x and the parameters).
    """

    epsilon: float
    axis: int = -1
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        size = (x.shape[self.axis],)
        scale = self.param("scale", nn.initializers.ones, size, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, size, self.param_dtype)
        dtype = jnp.result_type(x, scale, bias) if self.dtype is None else self.dtype
        return normalise(x, scale, bias, self.axis, self.epsilon).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalise(
    x: Float[Array, "*shape"], scale: Float[Array, " size"], bias: Float[Array, " size"], axis: int, epsilon: float
) -> Float[Array, "*shape"]:
    """Return x normalised over one axis, scaled and shifted, in float32 or wider.

    With n = (x - mean) r, r = 1 / sqrt(var + epsilon), and g the gradient of the result:
    dx = r (g scale - mean(g scale) - n mean(g scale n)), dscale = sum g n, dbias = sum g.
    """
    return _forward(x, scale, bias, axis, epsilon)[0]


def _forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, axis: int, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(wide, axis, keepdims=True)
    centred = wide - mean
    rate = jax.lax.rsqrt(jnp.mean(centred * centred, axis, keepdims=True) + epsilon)
    y = centred * (rate * _along(scale, x, axis)) + _along(bias, x, axis)
    return y, (x, mean, rate, scale, bias)


def _backward(axis: int, epsilon: float, saved: tuple[jax.Array, ...], y_grad: jax.Array) -> tuple[jax.Array, ...]:
    x, mean, rate, scale, bias = saved
    normal = (x.astype(mean.dtype) - mean) * rate
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    normal_grad = y_grad * _along(scale, x, axis)
    along = jnp.mean(normal_grad, axis, keepdims=True), jnp.mean(normal_grad * normal, axis, keepdims=True)
    x_grad = rate * (normal_grad - along[0] - normal * along[1])
    scale_grad, bias_grad = jnp.sum(y_grad * normal, others), jnp.sum(y_grad, others)
    return x_grad.astype(x.dtype), scale_grad.astype(scale.dtype), bias_grad.astype(bias.dtype)


def _along(parameter: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """Return a parameter [size] reshaped so that it broadcasts along one axis of x."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.reshape(shape)


normalise.defvjp(_forward, _backward)


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


def drop_probability(rate: float) -> float:
    """Return the probability used for a rate: the nearest multiple of 2^-16 below 1."""
    return min(round(rate * LEVELS), LEVELS - 1) / LEVELS


def keep_mask(key: Key[Array, ""], rate: float, shape: tuple[int, ...]) -> Bool[Array, "*shape"]:
    """Return a random mask that is true for the values to keep, each with probability 1 - `drop_probability(rate)`."""
    return jax.random.bits(key, shape, jnp.uint16) >= round(drop_probability(rate) * LEVELS)


class Dropout(nn.Module):
    """Dropout with the random stream `dropout`: y = x / (1 - rate) where x is kept, else 0; y = x if deterministic."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"], deterministic: bool) -> Float[Array, "*shape"]:
        if deterministic or self.rate == 0:
            return x
        keep = keep_mask(self.make_rng("dropout"), self.rate, x.shape)
        return jnp.where(keep, x * (1 / (1 - drop_probability(self.rate))), 0).astype(x.dtype)
