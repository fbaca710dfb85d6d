"""LayerNorm with a derivative of its own, which keeps its input and two numbers a place instead of what autodiff would."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class LayerNorm(nn.Module):
    """y = (x - mean) / sqrt(var + epsilon) scale + bias, over one axis, var the mean of (x - mean)^2.

    Parameters, initial values and results are those of Flax's (with `use_fast_variance=False`): sums are in float32 or wider,
    and the output is in `dtype` (default: that of x and the parameters together).
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
    """Return x normalised over one axis, scaled and moved, in float32 or wider.

    With n = (x - mean) r and r = 1 / sqrt(var + epsilon), g the gradient of the result:
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


def _backward(axis: int, epsilon: float, kept: tuple[jax.Array, ...], of_y: jax.Array) -> tuple[jax.Array, ...]:
    x, mean, rate, scale, bias = kept
    normal = (x.astype(mean.dtype) - mean) * rate
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    of_normal = of_y * _along(scale, x, axis)
    along = jnp.mean(of_normal, axis, keepdims=True), jnp.mean(of_normal * normal, axis, keepdims=True)
    of_x = rate * (of_normal - along[0] - normal * along[1])
    of_scale, of_bias = jnp.sum(of_y * normal, others), jnp.sum(of_y, others)
    return of_x.astype(x.dtype), of_scale.astype(scale.dtype), of_bias.astype(bias.dtype)


def _along(parameter: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """Return [size] with the axes of x, so that it is multiplied along one of them."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.reshape(shape)


normalise.defvjp(_forward, _backward)
