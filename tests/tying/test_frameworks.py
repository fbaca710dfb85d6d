"""Ties in the trees of five frameworks: summed gradients, one optimizer state, untying and retying during training."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.tying import Tie, equal_leaves, find_ties, retie, store, tie_between, tied_loss, untie, view

VOCABULARY, WIDTH = 7, 3
TOKENS = jnp.arange(VOCABULARY)
TARGETS = (3 * TOKENS + 1) % VOCABULARY


class Case(NamedTuple):
    """A model: full parameters `tree`, `apply(tree, tokens) -> logits`, and functions that select the leaves of its tie."""

    tree: object
    apply: object
    tie: Tie
    selectors: tuple


def plain():
    one, other = (jax.random.normal(jax.random.key(seed), (VOCABULARY, WIDTH)) for seed in (0, 1))
    tree = {"emb": {"table": one}, "head": [other, jnp.zeros(VOCABULARY)]}
    apply = lambda tree, tokens: tree["emb"]["table"][tokens] @ tree["head"][0].T + tree["head"][1]  # noqa: E731
    return Case(tree, apply, Tie("emb/table", "head/0"), (lambda t: t["emb"]["table"], lambda t: t["head"][0]))


def linen():
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            return nn.Dense(VOCABULARY, name="head")(nn.Embed(VOCABULARY, WIDTH, name="emb")(tokens))

    model = Model()
    variables = model.init(jax.random.key(0), TOKENS)
    select = lambda v: v["params"]["emb"]["embedding"], lambda v: v["params"]["head"]["kernel"]
    return Case(variables, model.apply, Tie("params/emb/embedding", "params/head/kernel", transform="transpose"), select)


def nnx_model():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.emb = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
            self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, rngs=rngs)

        def __call__(self, tokens):
            return self.head(self.emb(tokens))

    return Model(nnx.Rngs(0))


def nnx_state():
    from flax import nnx

    graph, state = nnx.split(nnx_model())
    apply = lambda state, tokens: nnx.merge(graph, state)(tokens)  # noqa: E731
    select = lambda s: s["emb"]["embedding"], lambda s: s["head"]["kernel"]
    return Case(state, apply, Tie("emb/embedding", "head/kernel", transform="transpose"), select)


def nnx_module():
    select = lambda m: m.emb.embedding, lambda m: m.head.kernel
    tie = Tie("emb/embedding/value", "head/kernel/value", transform="transpose")
    return Case(nnx_model(), lambda model, tokens: model(tokens), tie, select)


def equinox():
    import equinox as eqx

    class Model(eqx.Module):
        emb: eqx.nn.Embedding
        head: eqx.nn.Linear

        def __call__(self, tokens):
            return jax.vmap(lambda token: self.head(self.emb(token)))(tokens)

    keys = jax.random.split(jax.random.key(0))
    model = Model(
        eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0]), eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=keys[1])
    )
    select = lambda m: m.emb.weight, lambda m: m.head.weight
    return Case(model, lambda model, tokens: model(tokens), Tie("emb/weight", "head/weight"), select)


def haiku():
    import haiku as hk

    model = hk.without_apply_rng(
        hk.transform(lambda tokens: hk.Linear(VOCABULARY, name="head")(hk.Embed(VOCABULARY, WIDTH, name="emb")(tokens)))
    )
    params = model.init(jax.random.key(0), TOKENS)
    select = lambda p: p["emb"]["embeddings"], lambda p: p["head"]["w"]
    return Case(params, model.apply, Tie("emb/embeddings", "head/w", transform="transpose"), select)


OTHERS = [pytest.param(make, marks=pytest.mark.parity, id=make.__name__) for make in (equinox, haiku)]
FRAMEWORKS = [*(pytest.param(make, id=make.__name__) for make in (plain, linen, nnx_state, nnx_module)), *OTHERS]


def loss_of(case):
    def loss(tree):
        return optax.softmax_cross_entropy_with_integer_labels(case.apply(tree, TOKENS), TARGETS).mean()

    return loss


def leaves(tree, case):
    return [np.asarray(jax.tree.leaves(select(tree))[0]) for select in case.selectors]


def turned(array, case):
    return array.T if case.tie.transform == "transpose" else array


@pytest.mark.parametrize("make", FRAMEWORKS)
def test_gradient_is_the_sum_over_both_uses(make):
    case = make()
    stored = store(case.tree, [case.tie])
    assert len(jax.tree.leaves(stored)) == len(jax.tree.leaves(case.tree)) - 1
    source, target = leaves(jax.grad(loss_of(case))(view(stored, [case.tie])), case)
    once = jax.grad(tied_loss(loss_of(case), [case.tie]))(stored)
    found = np.asarray(jax.tree.leaves(case.selectors[0](once))[0])
    np.testing.assert_allclose(found, source + turned(target, case), rtol=1e-5, atol=1e-6)
    assert jax.tree.leaves(case.selectors[1](once)) == []


@pytest.mark.parametrize("make", FRAMEWORKS)
def test_untie_and_retie_during_training(make):
    case, optimizer = make(), optax.adamw(1e-2)
    ties, loss = [case.tie], loss_of(case)

    def steps(loss, tree, state, number):
        @jax.jit
        def step(tree, state):
            updates, state = optimizer.update(jax.grad(loss)(tree), state, tree)
            return optax.apply_updates(tree, updates), state

        for _ in range(number):
            tree, state = step(tree, state)
        return tree, state

    stored = store(case.tree, ties)
    state = optimizer.init(stored)
    assert len(jax.tree.leaves(state)) == 2 * len(jax.tree.leaves(stored)) + 1  # moments, and one count
    before = loss(view(stored, ties))
    stored, state = steps(tied_loss(loss, ties), stored, state, 100)
    params, state = untie(optimizer, stored, state, ties)
    assert list(equal_leaves(params, ties).values()) == [True]
    assert loss(params) < before
    params, state = steps(loss, params, state, 3)
    assert list(equal_leaves(params, ties).values()) == [False]
    source, target = leaves(params, case)
    stored, state = retie(optimizer, params, state, ties, keep="mean")
    np.testing.assert_allclose(leaves(view(stored, ties), case)[0], (source + turned(target, case)) / 2, rtol=1e-6)
    steps(tied_loss(loss, ties), stored, state, 1)


@pytest.mark.parametrize("make", FRAMEWORKS)
def test_tie_between_selected_leaves(make):
    case = make()
    found = tie_between(case.tree, *case.selectors, transform=case.tie.transform)
    full = view(store(case.tree, [found]), [found])
    source, target = leaves(full, case)
    np.testing.assert_array_equal(turned(source, case), target)


def test_selectors_that_read_the_array_of_an_nnx_variable():
    from flax import nnx

    layers = nnx.List([nnx.Embed(7, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 7, rngs=nnx.Rngs(0))])
    found = tie_between(
        layers, lambda model: model[0].embedding[...], lambda model: model[1].kernel[...], transform="transpose"
    )
    assert str(found) == "tie 0/embedding/value -> 1/kernel/value"


def test_shared_nnx_variable_stays_shared():
    """jax differentiates the two occurrences separately, so they differ after one step; as a tie they stay equal."""
    from flax import nnx

    class Twice(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(3, 3, use_bias=False, rngs=rngs)
            self.b = nnx.Linear(3, 3, use_bias=False, rngs=rngs)
            self.b.kernel = self.a.kernel

        def __call__(self, x):
            return self.b(jnp.tanh(self.a(x)))

    model, x = Twice(nnx.Rngs(0)), jnp.eye(3)

    def loss(model):
        return jnp.sum(jnp.square(model(x) - 1))

    def stepped(tree, gradient):
        return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, tree, gradient)

    ties = find_ties(model, equal=False)
    assert [(tie.source, tie.target) for tie in ties] == [("a/kernel/value", "b/kernel/value")]
    natively = stepped(model, jax.jit(jax.grad(loss))(model))
    assert list(equal_leaves(natively, ties).values()) == [False]
    stored = store(model, ties)
    ours = view(stepped(stored, jax.jit(jax.grad(tied_loss(loss, ties)))(stored)), ties)
    assert list(equal_leaves(ours, ties).values()) == [True]
    kernel = model.a.kernel.get_value()
    expected = kernel - 0.1 * jax.grad(lambda w: jnp.sum(jnp.square(jnp.tanh(x @ w) @ w - 1)))(kernel)
    np.testing.assert_allclose(ours.a.kernel.get_value(), expected, rtol=1e-6)


class Stateful(NamedTuple):
    """A model with batch normalisation and dropout, as a loss `(params, state, key) -> (value, state)`."""

    params: object
    state: object
    loss: object
    tie: Tie
    by_hand: object  # the same loss with the source in both places
    select: object  # the source and the target of a tree


def equinox_with_state():
    import equinox as eqx

    class Model(eqx.Module):
        emb: eqx.nn.Embedding
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout
        head: eqx.nn.Linear

        def __call__(self, token, state, key):
            hidden, state = self.norm(self.emb(token), state)
            return self.head(self.dropout(hidden, key=key)), state

    def make(key):
        emb, head = jax.random.split(key)
        return Model(
            eqx.nn.Embedding(VOCABULARY, WIDTH, key=emb),
            eqx.nn.BatchNorm(WIDTH, axis_name="batch", mode="batch"),
            eqx.nn.Dropout(),
            eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=head),
        )

    def loss(model, state, key):
        batched = jax.vmap(model, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
        logits, state = batched(TOKENS, state, jax.random.split(key, VOCABULARY))
        return optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean(), state

    def by_hand(model, state, key):
        return loss(eqx.tree_at(lambda m: m.head.weight, model, model.emb.weight), state, key)

    model, state = eqx.nn.make_with_state(make)(jax.random.key(0))
    return Stateful(model, state, loss, Tie("emb/weight", "head/weight"), by_hand, lambda m: (m.emb.weight, m.head.weight))


def haiku_with_state():
    import haiku as hk

    @hk.transform_with_state
    def model(tokens):
        hidden = hk.BatchNorm(True, True, 0.9, name="norm")(hk.Embed(VOCABULARY, WIDTH, name="emb")(tokens), is_training=True)
        hidden = hk.dropout(hk.next_rng_key(), 0.5, hidden)
        return hk.Linear(VOCABULARY, with_bias=False, name="head")(hidden)

    def loss(params, state, key):
        logits, state = model.apply(params, state, key, TOKENS)
        return optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS).mean(), state

    def by_hand(params, state, key):
        return loss(params | {"head": {"w": params["emb"]["embeddings"].T}}, state, key)

    params, state = model.init(jax.random.key(0), TOKENS)
    tie = Tie("emb/embeddings", "head/w", transform="transpose")
    return Stateful(params, state, loss, tie, by_hand, lambda p: (p["emb"]["embeddings"], p["head"]["w"]))


@pytest.mark.parity
@pytest.mark.parametrize("rate", [0.0, 1e-2])
@pytest.mark.parametrize("make", [equinox_with_state, haiku_with_state])
def test_state_and_keys_are_those_of_the_model_tied_by_hand(make, rate):
    import equinox as eqx

    case, optimizer = make(), optax.adamw(rate)
    stored = store(case.params, case.tie)

    def train(loss, params):
        state, opt_state, losses = case.state, optimizer.init(eqx.filter(params, eqx.is_inexact_array)), []

        @eqx.filter_jit
        def step(params, state, opt_state, key):
            (value, state), grads = eqx.filter_value_and_grad(loss, has_aux=True)(params, state, key)
            updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(params, eqx.is_inexact_array))
            return eqx.apply_updates(params, updates), state, opt_state, value

        for number in range(4):
            params, state, opt_state, value = step(params, state, opt_state, jax.random.key(number))
            losses.append(value)
        return losses, params, state

    losses, trained, state = train(tied_loss(case.loss, case.tie), stored)
    expected, reference, expected_state = train(case.by_hand, case.params)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert len(np.unique(losses)) == 4  # new masks, and at a rate above 0 new parameters
    np.testing.assert_allclose(case.select(trained)[0], case.select(reference)[0], rtol=1e-5)
    assert len(jax.tree.leaves(state)) > 0
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7), state, expected_state)
    changed = jax.tree.map(lambda one, other: not np.array_equal(one, other), state, case.state)
    assert any(jax.tree.leaves(changed))
