"""Live arrays at the peak of a program, against counts by hand. Numbers are float32: 4 bytes."""

import jax
import jax.numpy as jnp
import pytest

from tiejax.pretraining.live_arrays import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, alive


def shaped(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def live(function, *arguments, kinds=None, returned=None):
    """The bytes by kind; everything is activations by default."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return alive(jaxpr, kinds or [ACTIVATIONS] * len(jaxpr.invars), returned or [ACTIVATIONS] * len(jaxpr.outvars))


def total(function, *arguments):
    return live(function, *arguments).total()


X, W, V = shaped(64, 32), shaped(32, 128), shaped(128, 8)
GIVEN = 4 * (64 * 32 + 32 * 128 + 128 * 8)


def test_an_array_is_live_until_its_last_read():
    """The peak is the first product: all inputs and its result. The activation reuses the memory of the product."""
    assert total(lambda x, w, v: jnp.tanh(x @ w) @ v, X, W, V) == GIVEN + 4 * 64 * 128


def test_an_array_that_is_read_again_stays():
    """h is read twice, so that h and tanh(h) are live together."""
    given = 4 * (64 * 32 + 32 * 128)

    def both(x, w):
        h = x @ w
        return jnp.sum(h @ jnp.tanh(h).T)

    assert total(both, X, W) == max(given + 4 * 64 * 128, 4 * (2 * 64 * 128 + 64 * 64))


def test_element_wise_operations_are_fused_into_a_reduction():
    assert total(lambda x: jnp.sum(2 * jnp.exp(x) + 1), X) == 4 * 64 * 32 + 4


def test_expensive_results_with_two_readers_are_arrays_and_cheap_ones_are_not():
    matrices = shaped(64, 64), shaped(64, 64)

    def read_twice(function):
        def both(x, w):
            y = function(x)
            return jnp.sum(y), jnp.sum(y * w), jnp.sum(x)

        return both

    cheap, expensive = (total(read_twice(function), *matrices) for function in (lambda x: 2 * x, jnp.exp))
    assert 2 * 4 * 64 * 64 < cheap < 2.01 * 4 * 64 * 64
    assert 3 * 4 * 64 * 64 < expensive < 3.01 * 4 * 64 * 64


def test_equal_computations_are_done_once():
    once = total(lambda x, w: jnp.sum(x @ w), X, W)
    assert total(lambda x, w: jnp.sum((x @ w) * (x @ w)), X, W) == once


def test_unread_results_are_not_computed():
    def wasteful(x, w):
        x @ w
        return jnp.sum(x)

    # The other argument is freed at the beginning.
    assert total(wasteful, X, W) == 4 * 64 * 32 + 4


def test_a_scatter_is_in_place_at_the_last_read_of_a_table():
    table, rows = 4 * 1000 * 16, 4 * 8 * 16

    def add(table, rows):
        return table.at[jnp.arange(8)].add(rows)

    def add_and_keep(table, rows):
        return add(table, rows), table

    given = shaped(1000, 16), shaped(8, 16)
    assert table + rows <= total(add, *given) < table + 2 * rows
    assert 2 * table + rows <= total(add_and_keep, *given) < 2 * table + 2 * rows


@pytest.mark.parametrize("unroll", [1, True])
def test_the_carry_of_a_loop_counts_once(unroll):
    """Five times h -> tanh(h w): w, h, and the product that becomes the next h."""

    def loop(h, w):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, length=5, unroll=unroll)[0]

    assert total(loop, shaped(16, 32), shaped(32, 32)) == 4 * (32 * 32 + 2 * 16 * 32)


@pytest.mark.parametrize("unroll", [1, True])
def test_the_gradient_of_a_loop_keeps_every_step(unroll):
    """The gradient of tanh(h w) needs h of every step: one or two states per step, unrolled or not."""

    def gradient(steps):
        def loss(h, w):
            return jnp.sum(jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, length=steps, unroll=unroll)[0])

        return total(jax.grad(loss), shaped(512, 32), shaped(32, 32))

    state = 4 * 512 * 32
    assert 5 * state <= gradient(10) - gradient(5) <= 5 * 2 * state


def test_rematerialisation_keeps_only_inputs():
    """Of a layer with a wide hidden state only the narrow input is kept, which takes 16 times less memory per layer."""
    narrow, wide = 4 * 1024 * 16, 4 * 1024 * 256
    weights = shaped(16, 256), shaped(256, 16)

    def gradient(layer, layers):
        def loss(x, w, v):
            for _ in range(layers):
                x = layer(x, w, v)
            return jnp.sum(x)

        return total(jax.grad(loss), shaped(1024, 16), *weights)

    def plain(x, w, v):
        return jnp.sin(x @ w) @ v

    kept = gradient(plain, 9) - gradient(plain, 3)
    rematerialised = gradient(jax.checkpoint(plain), 9) - gradient(jax.checkpoint(plain), 3)
    assert kept >= 6 * wide
    assert rematerialised <= 6 * 2 * narrow


def test_kinds_of_a_step_with_momentum():
    """p' = p - m', m' = m / 2 + g: parameters, moments and the gradient are live together."""

    def step(p, m, x):
        g = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p) @ jnp.ones((16, 1))))(p)
        m = m / 2 + g
        return p - m, m

    table = shaped(32, 16)
    kinds, returned = [PARAMETERS, OPTIMIZER, ACTIVATIONS], [PARAMETERS, OPTIMIZER]
    found = live(step, table, table, shaped(4, 32), kinds=kinds, returned=returned)
    size = 4 * 32 * 16
    assert found[PARAMETERS] == found[OPTIMIZER] == found[GRADIENTS] == size
    assert found[ACTIVATIONS] >= 4 * 4 * 32


def test_arrays_computed_from_parameters_alone_are_parameters():
    """The product reads parameters in half precision, which replace those in full precision."""

    def read(p, x):
        return x @ p.astype(jnp.bfloat16)

    found = live(read, shaped(32, 16), jax.ShapeDtypeStruct((256, 32), jnp.bfloat16), kinds=[PARAMETERS, ACTIVATIONS])
    assert found == {PARAMETERS: 2 * 32 * 16, ACTIVATIONS: 2 * (256 * 32 + 256 * 16)}
