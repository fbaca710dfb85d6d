"""Optimizers and schedules against their equations in numpy."""

from typing import get_args

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from flax import nnx

from tiejax.training import cosine_cycle, make_optimizer, make_schedule
from tiejax.training.choices import OptimizerName, ScheduleName
from tiejax.training.optimizer import TableRecipe, clip_as_torch, warm_up_and_decay, with_own_rates

# name -> (gradient in the moments, term added to Adam's direction), both given g and decay * p.
EQUATIONS = {"adamw": (lambda g, decay: g, lambda decay: decay), "adam": (lambda g, decay: g + decay, lambda decay: 0)}


@pytest.mark.parametrize("kind", get_args(OptimizerName))
def test_optimizers_against_the_equations(x64, kind):
    """Three steps with a changing schedule; the first update uses schedule(0)."""
    moment_gradient, added = EQUATIONS[kind]
    rates, decay, eps, (b1, b2) = [0.1, 0.05, 0.01], 0.1, 1e-12, (0.9, 0.999)
    optimizer = make_optimizer(kind, lambda step: jnp.asarray(rates)[step], decay, eps=eps)
    p = np.array([1.0, -2.0, 0.5])
    params, opt_state = jnp.asarray(p), optimizer.init(jnp.asarray(p))
    m = v = np.zeros(3)
    for t, rate in enumerate(rates, start=1):
        g = np.array([0.3, -1.0, 2.0]) * t
        updates, opt_state = optimizer.update(jnp.asarray(g), opt_state, params)
        params = optax.apply_updates(params, updates)
        g = moment_gradient(g, decay * p)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        direction = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        p = p - rate * (direction + added(decay * p))
    np.testing.assert_allclose(params, p, rtol=1e-12)


@pytest.mark.parametrize("counts", ["all", "leaf"])
@pytest.mark.parametrize("kind", get_args(OptimizerName))
@pytest.mark.parametrize(
    "recipe", [{"weight_decay": 0.0}, {"weight_decay": 0.3}, {"rate": 2.0}, {"shared_second_moment": True}, {}], ids=str
)
def test_tables_against_the_equations(x64, kind, counts, recipe):
    """Three steps of a table of two rows next to a kernel, which is updated as usual."""
    moment_gradient, added = EQUATIONS[kind]
    rate, decay, eps, (b1, b2) = 0.1, 0.1, 1e-12, (0.9, 0.999)
    tables = TableRecipe(["embed/embedding"], **recipe)
    optimizer = make_optimizer(kind, optax.constant_schedule(rate), decay, eps=eps, counts=counts, tables=tables)
    p = {"embed": np.array([[1.0, -2.0], [0.5, 3.0]]), "dense": np.array([[0.2, 0.1]])}
    g = {"embed": np.array([[0.3, -1.0], [0.0, 0.01]]), "dense": np.array([[0.1, -0.7]])}

    def tree(values):
        return {"embed": {"embedding": jnp.asarray(values["embed"])}, "dense": {"kernel": jnp.asarray(values["dense"])}}

    params, opt_state = tree(p), optimizer.init(tree(p))
    moments = dict.fromkeys(p, (0, 0))
    for t in (1, 2, 3):
        updates, opt_state = optimizer.update(tree({name: t * value for name, value in g.items()}), opt_state, params)
        params = optax.apply_updates(params, updates)
        for name in p:
            is_table = name == "embed"
            factor = tables.weight_decay if is_table and tables.weight_decay is not None else decay
            gradient = moment_gradient(t * g[name], factor * p[name])
            m, v = moments[name] = (
                b1 * moments[name][0] + (1 - b1) * gradient,
                b2 * moments[name][1] + (1 - b2) * gradient**2,
            )
            seen = np.broadcast_to(v.mean(0), v.shape) if is_table and tables.shared_second_moment else v
            direction = m / (1 - b1**t) / (np.sqrt(seen / (1 - b2**t)) + eps)
            p[name] = p[name] - rate * (tables.rate if is_table else 1) * (direction + added(factor * p[name]))
    np.testing.assert_allclose(params["embed"]["embedding"], p["embed"], rtol=1e-10)
    np.testing.assert_allclose(params["dense"]["kernel"], p["dense"], rtol=1e-10)


@pytest.mark.parametrize(("max_norm", "scale"), [(2.5, 2.5 / (5 + 1e-6)), (5.0, 5 / (5 + 1e-6)), (5.1, 1.0)])
def test_clip_as_torch(x64, max_norm, scale):
    grads = {"a": jnp.array([3.0]), "b": jnp.array([[0.0], [4.0]])}  # of norm 5
    clipped, _ = clip_as_torch(max_norm).update(grads, optax.EmptyState())
    np.testing.assert_allclose(clipped["a"], [3 * scale], rtol=1e-14)
    np.testing.assert_allclose(clipped["b"], [[0], [4 * scale]], rtol=1e-14)


def test_clip_as_torch_of_float16():
    """The squares of the entries do not fit into float16."""
    clipped, _ = clip_as_torch(1.0).update({"a": jnp.full(1000, 30.0, jnp.float16)}, optax.EmptyState())
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clipped["a"], float)), 1, rtol=2e-3)


@pytest.mark.parametrize("tree", [nnx.State, tuple], ids=["nnx", "tuple"])
def test_a_shared_second_moment_with_counts_by_leaf_in_any_tree(tree):
    recipe = TableRecipe(["0/embed"] if tree is tuple else ["embed"], shared_second_moment=True)
    plain = {"embed": jnp.arange(6.0).reshape(3, 2), "body": jnp.ones(2)}
    params = (plain,) if tree is tuple else tree(plain)
    updates = {}
    for counts in ("leaf", "all"):
        optimizer = make_optimizer("adamw", optax.constant_schedule(0.1), 0.0, tables=recipe, counts=counts)
        updates[counts] = jax.tree.leaves(optimizer.update(params, optimizer.init(params), params)[0])
    jax.tree.map(np.testing.assert_allclose, updates["leaf"], updates["all"])


def test_a_recipe_for_tables_that_are_missing_is_refused():
    optimizer = make_optimizer("adamw", optax.constant_schedule(0.1), 0.0, tables=TableRecipe(["embed/embeding"], rate=0.0))
    with pytest.raises(ValueError, match="tables: no leaf of the parameters has one of the paths embed/embeding"):
        optimizer.init({"embed": {"embedding": jnp.ones((2, 2))}})


def test_decay_of_matrices_skips_biases_and_norms(x64):
    """Without gradients, decayed parameters shrink by rate x decay; stacked biases have the shape of matrices."""
    params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones((3, 2))}, "norm": {"scale": jnp.ones((3, 2))}}
    optimizer = make_optimizer("adamw", optax.constant_schedule(0.5), 0.1, decayed="matrices")
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert float(updates["dense"]["kernel"][0, 0]) == pytest.approx(-0.05)
    assert not np.any(updates["dense"]["bias"])
    assert not np.any(updates["norm"]["scale"])
    named = {
        "lstm": {"input_bias": jnp.ones((2, 3)), "w": jnp.ones((2, 3))},
        "haiku": {"b": jnp.ones(3), "offset": jnp.ones(3)},
    }
    decayed = jax.tree.map(np.any, optimizer.update(jax.tree.map(jnp.zeros_like, named), optimizer.init(named), named)[0])
    assert decayed == {"lstm": {"input_bias": False, "w": True}, "haiku": {"b": False, "offset": False}}


def test_own_rates_are_those_of_two_optimizers(x64):
    """Rates 1 and 3 times a schedule 1, .5; the state says which."""
    schedule, gradient = lambda step: jnp.asarray([1.0, 0.5])[step], {"kernel": jnp.array([0.2, -0.4])}
    params = {"kernel": jnp.array([1.0, 2.0])}
    optimizer = with_own_rates(lambda rate: make_optimizer("adamw", rate, 0.1), 1, schedule)
    for factor in (1.0, 3.0):
        ours, plain = params, params
        reference = make_optimizer("adamw", lambda step, factor=factor: factor * schedule(step), 0.1)
        state, state_of_plain = optimizer.init(params)._replace(rates=jnp.array([factor])), reference.init(params)
        for _ in range(2):
            updates, state = optimizer.update(gradient, state, ours)
            ours = optax.apply_updates(ours, updates)
            updates, state_of_plain = reference.update(gradient, state_of_plain, plain)
            plain = optax.apply_updates(plain, updates)
        np.testing.assert_allclose(ours["kernel"], plain["kernel"], rtol=1e-7)


@pytest.mark.parametrize("step", [0, 1, 3_333, 10_000, 15_000, 20_000, 149_999, 499_999])
def test_cosine_cycle_is_never_clamped(x64, step):
    expected = 1e-5 + (5e-4 - 1e-5) / 2 * (1 + np.cos(np.pi * step / 10_000))
    np.testing.assert_allclose(cosine_cycle(5e-4, 1e-5, 10_000)(jnp.int32(step)), expected, rtol=1e-9)


def test_cosine_cycle_is_accurate_in_float32():
    """At this step, cos(pi t / 10,000) without reduction of t would be off by 6e-5 of the range."""
    step = 489_500
    expected = 1e-5 + (5e-4 - 1e-5) / 2 * (1 + np.cos(np.pi * (step % 20_000) / 10_000))
    np.testing.assert_allclose(cosine_cycle(5e-4, 1e-5, 10_000)(jnp.int32(step)), expected, rtol=1e-6)


def test_warm_up_and_decay_are_linear():
    schedule = warm_up_and_decay(2.0, 4, 12)
    expected = [0, 0.5, 1.0, 1.5, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25, 0.0]
    np.testing.assert_allclose([schedule(step) for step in range(13)], expected, rtol=1e-6)
    np.testing.assert_allclose([warm_up_and_decay(2.0, 0, 4)(step) for step in range(5)], [2, 1.5, 1, 0.5, 0], rtol=1e-6)


def test_schedules_by_name():
    rates = {name: make_schedule(name, 0.5, 0.1, 10)(jnp.int32(10)) for name in get_args(ScheduleName)}
    assert rates == {"cosine": pytest.approx(0.1), "constant": 0.5}


def test_names_of_nnx_variables_end_before_their_value():
    """Biases and scales of a state of NNX are no matrices; its tables are found by their paths."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.norm = nnx.Linear(3, 3, rngs=rngs), nnx.LayerNorm(3, rngs=rngs)

    params = nnx.state(Model(nnx.Rngs(0)), nnx.Param)
    tables = TableRecipe(["linear/kernel"], rate=4.0)
    optimizer = make_optimizer("adamw", 1.0, 0.5, decayed="matrices", tables=tables)
    params = jax.tree.map(jnp.ones_like, params)
    updates = nnx.to_pure_dict(optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)[0])
    assert {float(leaf.max()) for leaf in (updates["linear"]["bias"], updates["norm"]["scale"], updates["norm"]["bias"])} == {
        0.0
    }
    np.testing.assert_allclose(updates["linear"]["kernel"], -2.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_optimizer("sgd", 1.0, 0.1), "kind: expected adamw or adam, got 'sgd'"),
        (lambda: make_optimizer("adamw", 1.0, 0.1, counts="leafs"), "counts: expected all or leaf, got 'leafs'"),
        (lambda: make_optimizer("adamw", 1.0, 0.1, decayed="none"), "decayed: expected all or matrices, got 'none'"),
        (lambda: make_schedule("linear", 1.0, 0.0, 10), "kind: expected cosine or constant, got 'linear'"),
        (lambda: make_schedule("cosine", 1.0, 0.0, 0), "half_period: expected at least 1 step, got 0"),
    ],
)
def test_mistyped_choices(call, words, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users do not have the type checks of the tests
    with pytest.raises(ValueError, match=words):
        call()
