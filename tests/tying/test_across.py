"""Optimizers whose update of one leaf depends on another, against gradients of which one is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.tying import Tie, TieError, check_leafwise
from tiejax.tying.across import update_origins

PARAMS = {"embed": jnp.ones((4, 3)), "head": jnp.ones((3, 4)), "bias": jnp.ones(4)}
TIE = Tie("embed", "head", transform="transpose")
NORM = optax.clip_by_global_norm(0.01)


def by_reference(updates):
    """Divide by the norm, which is summed in a mutable array."""
    total = jax.new_ref(jnp.zeros(()))
    for leaf in jax.tree.leaves(updates):
        total[...] += jnp.sum(jnp.square(leaf))
    return jax.tree.map(lambda leaf: leaf / jnp.sqrt(total[...]), updates)


LEAFWISE = {
    "adamw": optax.adamw(0.1),
    "clipped by value": optax.chain(optax.clip(0.1), optax.adamw(0.1)),
    "clipped by unit": optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1)),
    "trust ratios": optax.lamb(0.1),
    "several steps at once": optax.MultiSteps(optax.adam(0.1), 2),
    "conditional on finite gradients": optax.apply_if_finite(optax.adam(0.1), 3),
    "injected": optax.inject_hyperparams(optax.adamw)(0.1),
    "norm of the rest": optax.chain(optax.masked(NORM, {"embed": False, "head": False, "bias": True}), optax.adamw(0.1)),
}
ACROSS = {
    "clipped by norm": optax.chain(NORM, optax.adamw(0.1)),
    "clipped after": optax.chain(optax.adamw(0.1), NORM),
    "within several steps": optax.MultiSteps(optax.chain(NORM, optax.adam(0.1)), 2),
    "within a compiled function": optax.stateless(lambda updates, _: jax.jit(lambda u: NORM.update(u, None)[0])(updates)),
    "within a loop": optax.stateless(lambda updates, _: jax.lax.fori_loop(0, 2, lambda _, u: NORM.update(u, None)[0], updates)),
    "through a mutable array": optax.stateless(lambda updates, _: by_reference(updates)),
    "through the state": optax.contrib.prodigy(0.1),
    "through the parameters": optax.contrib.dog(0.1),
}


@pytest.mark.parametrize("name", LEAFWISE)
def test_leafwise(name):
    check_leafwise(LEAFWISE[name], PARAMS, TIE)


@pytest.mark.parametrize("name", ACROSS)
def test_across(name):
    with pytest.raises(TieError, match=r"tie embed -> head: the optimizer's update of \w+ depends on \w+, .* count twice"):
        check_leafwise(ACROSS[name], PARAMS, TIE)


@pytest.mark.parametrize("name", sorted({*LEAFWISE, *ACROSS} - {"conditional on finite gradients"}))
def test_what_an_update_depends_on(name):
    """A gradient that is not a number spoils exactly the updates that depend on it, now or in the next steps."""
    optimizer = (LEAFWISE | ACROSS)[name]
    origins = update_origins(optimizer, PARAMS)
    for path, leaf in PARAMS.items():
        state, spoiled = optimizer.init(PARAMS), set()
        for _ in range(2):
            grads = PARAMS | {path: jnp.full_like(leaf, jnp.nan)}
            updates, state = optimizer.update(grads, state, PARAMS)
            spoiled |= {other for other, update in updates.items() if np.isnan(update).any()}
        assert spoiled == {other for other in PARAMS if path in origins[other]}


def test_nothing_is_computed():
    """Shapes are enough, so that parameters may be traced."""
    shapes = jax.eval_shape(lambda: PARAMS)
    check_leafwise(optax.adamw(0.1), shapes, TIE)
    jax.jit(lambda params: check_leafwise(optax.adamw(0.1), params, TIE))(PARAMS)
