"""LayerNorm with a custom derivative, which saves less than autodiff: its input and two numbers per position."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
    x: Float[Array, "*shape"], scale: Float[Array, "size"], bias: Float[Array, "size"], axis: int, epsilon: float
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
