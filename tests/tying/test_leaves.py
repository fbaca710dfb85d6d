"""Leaves that are not arrays pass through; shapes and partitions over devices can be stored and viewed like arrays."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tiejax.tying import (
    Reshape,
    Scale,
    Slice,
    Tie,
    TieError,
    assert_tied,
    equal_leaves,
    find_ties,
    resolve,
    retie,
    store,
    untie,
    view,
)

TIE = Tie("a/w", "b/w")
TURNED = Tie("a", "b", transform="transpose")
SETTINGS = {"activation": jnp.tanh, "name": "mlp", "rate": 0.5, "train": True, "bias": None}


def module(seed):
    """A layer with settings among its leaves, as modules of Equinox have."""
    weights = jnp.asarray(np.random.default_rng(seed).normal(size=(2, 3)), jnp.float32)
    return {"w": weights, "steps": jnp.int32(seed), **SETTINGS}


def arrays(tree):
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else None, tree)


def inexact(tree):
    return jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else None, arrays(tree))


@pytest.mark.parametrize("trained", [arrays, inexact])
@pytest.mark.parametrize("optimizer", [optax.adamw(1e-2), optax.sgd(1e-2)], ids=["adamw", "sgd"])
def test_settings_pass_through_untie_and_retie(optimizer, trained):
    """The state is one of the arrays alone, as of `eqx.filter(model, eqx.is_array)`; all other leaves stay the same objects."""
    tree = {"a": module(1), "b": module(2)}
    stored = store(tree, TIE)
    params, state = untie(optimizer, stored, optimizer.init(trained(stored)), [TIE])
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.init(trained(tree)))
    np.testing.assert_array_equal(params["b"]["w"], tree["a"]["w"])
    again, state = retie(optimizer, params, state, TIE)
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.init(trained(stored)))
    for found in (params["a"], params["b"], again["a"]):
        assert all(found[name] is value for name, value in SETTINGS.items())
    assert again["b"]["w"] is None


def test_settings_are_neither_found_nor_matched_by_patterns():
    tree = {"a": module(1), "b": module(2)}
    both = {"a": tree["a"], "b": dict(tree["a"])}
    assert [str(tie) for tie in find_ties(both)] == ["tie a/steps -> b/steps", "tie a/w -> b/w"]
    assert [tie.target for tie in resolve(Tie("a/*", "b/*"), tree)] == ["b/steps", "b/w"]
    full = view(store(tree, Tie("a/*", "b/*")), Tie("a/*", "b/*"))
    assert full["b"]["activation"] is jnp.tanh
    assert full["b"]["train"] is True
    with pytest.raises(TieError, match=r"tie a/activation -> b/activation: a/activation is not an array but"):
        store(tree, Tie("a/activation", "b/activation"))


@pytest.mark.parity
def test_equinox_model_with_an_activation_and_a_dropout():
    import equinox as eqx

    class Model(eqx.Module):
        emb: eqx.nn.Embedding
        mlp: eqx.nn.MLP
        drop: eqx.nn.Dropout
        head: eqx.nn.Linear

        def __call__(self, token):
            return self.head(self.drop(self.mlp(self.emb(token)), inference=True))

    keys = jax.random.split(jax.random.key(0), 3)
    model = Model(
        eqx.nn.Embedding(5, 3, key=keys[0]),
        eqx.nn.MLP(3, 3, 4, 1, key=keys[1]),
        eqx.nn.Dropout(0.5),
        eqx.nn.Linear(3, 5, use_bias=False, key=keys[2]),
    )
    tie, optimizer = Tie("emb/weight", "head/weight"), optax.adamw(1e-2)

    @eqx.filter_jit
    def step(tree, state, ties):
        def loss(tree):
            logits = jax.vmap(view(tree, ties))(jnp.arange(5))
            return optax.softmax_cross_entropy_with_integer_labels(logits, (jnp.arange(5) + 1) % 5).mean()

        value, grads = eqx.filter_value_and_grad(loss)(tree)
        updates, state = optimizer.update(grads, state, eqx.filter(tree, eqx.is_inexact_array))
        return eqx.apply_updates(tree, updates), state, value

    stored = store(model, tie)
    state = optimizer.init(eqx.filter(stored, eqx.is_inexact_array))
    stored, state, first = step(stored, state, (tie,))
    params, state = untie(optimizer, stored, state, tie)
    assert equal_leaves(params, tie) == {"head/weight": True}
    assert params.mlp.activation is model.mlp.activation
    assert params.drop.p == 0.5
    params, state, second = step(params, state, ())
    assert second < first
    stored, state = retie(optimizer, params, state, tie)
    assert state[0].count == 2
    step(stored, state, (tie,))


def test_shapes_are_viewed_as_shapes():
    params = {"a": jnp.ones((2, 3)), "b": jnp.zeros((3, 2))}
    shapes = jax.eval_shape(lambda: params)
    full = view(store(shapes, TURNED), TURNED)
    assert (full["b"].shape, full["b"].dtype) == ((3, 2), jnp.float32)
    assert isinstance(full["b"], jax.ShapeDtypeStruct)
    weighed = Tie("a", "b", transform="transpose", gradient=(1.0, 0.5))
    assert view(store(shapes, weighed), weighed) == full


SPECS = [
    ("transpose", PartitionSpec("x", None), PartitionSpec(None, "x")),
    ("transpose", PartitionSpec("layers", "x", ("y", "z")), PartitionSpec("layers", ("y", "z"), "x")),
    ("transpose", PartitionSpec(), PartitionSpec()),
    ("identity", PartitionSpec("x"), PartitionSpec("x")),
    (Scale(2.0), PartitionSpec("x"), PartitionSpec("x")),
    (Slice(0, axis=1), PartitionSpec("x", None, "y"), PartitionSpec("x", "y")),
    (Slice((0, 2), axis=1), PartitionSpec("x", None, "y"), PartitionSpec("x", None, "y")),
    (Reshape((6,)), PartitionSpec(None, None), PartitionSpec()),
]


@pytest.mark.parametrize(("transform", "source", "target"), SPECS)
def test_partitions_follow_the_transform(transform, source, target):
    tie = Tie("a", "b", transform=transform)
    stored = store({"a": source, "b": PartitionSpec("other")}, tie)
    assert stored == {"a": source, "b": None}
    assert view(stored, tie)["b"] == target


def test_shardings_follow_the_transform_and_fit_the_arrays():
    """Oracle: the array that jax places by the viewed sharding has the shards that its devices need."""
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
    shardings = {"a": NamedSharding(mesh, PartitionSpec("x", "y")), "b": NamedSharding(mesh, PartitionSpec())}
    full = view(store(shardings, TURNED), TURNED)
    assert full["b"] == NamedSharding(mesh, PartitionSpec("y", "x"))
    shapes = {
        "a": jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=shardings["a"]),
        "b": jax.ShapeDtypeStruct((3, 2), jnp.float32),
    }
    assert view(store(shapes, TURNED), TURNED)["b"].sharding == full["b"]
    one = SingleDeviceSharding(jax.devices()[0])
    assert view({"a": one, "b": None}, TURNED)["b"] is one


def test_partitions_that_are_not_known_are_errors():
    with pytest.raises(TieError, match=r"tie a -> b: transpose of P.*\('x',\) is not known; write an entry for every"):
        view({"a": PartitionSpec("x"), "b": None}, TURNED)
    with pytest.raises(TieError, match=r"is not known; .* or give the target's partition yourself"):
        view({"a": PartitionSpec("x", None), "b": None}, Tie("a", "b", transform=Reshape((6,))))
    with pytest.raises(TieError, match=r"one leaf is a partition \(P.*\), the other not \(ArrayImpl\)"):
        store({"a": PartitionSpec(), "b": jnp.ones(2)}, Tie("a", "b"))


def keys_and_arrays():
    """Random keys in all forms beside arrays, as in a state with the keys of dropout."""
    keys = jax.random.split(jax.random.key(1), 3)
    table = jnp.arange(6.0).reshape(2, 3)
    return {"a": table, "b": jnp.zeros((3, 2)), "key": jax.random.key(0), "keys": keys, "raw": jax.random.PRNGKey(0)}


def same_keys(found, expected):
    return [np.array_equal(jax.random.key_data(found[name]), jax.random.key_data(expected[name])) for name in ("key", "keys")]


def trained_part(tree):
    return {name: leaf if name in "ab" else None for name, leaf in tree.items()}


def test_random_keys_pass_through():
    tree, optimizer = keys_and_arrays(), optax.adamw(1e-2)
    stored = store(tree, TURNED)
    full = view(stored, TURNED)
    assert same_keys(full, tree) == [True, True]
    assert equal_leaves(full, TURNED) == {"b": True}
    assert_tied(full, TURNED)
    jax.jit(lambda stored: assert_tied(view(stored, TURNED), TURNED))(stored)
    assert [str(tie) for tie in find_ties(full)] == ["tie a -> b"]
    params, state = untie(optimizer, stored, optimizer.init(trained_part(stored)), TURNED)
    assert same_keys(params, tree) == [True, True]
    stored, state = retie(optimizer, params, state, TURNED)
    assert same_keys(stored, tree) == [True, True]
    jax.tree.map(np.testing.assert_array_equal, state, optimizer.init(trained_part(store(tree, TURNED))))


def test_random_keys_can_be_tied():
    tree, tie = keys_and_arrays() | {"other": jax.random.key(5)}, Tie("key", "other")
    assert equal_leaves(tree, tie) == {"other": False}
    with pytest.raises(TieError, match="the values of the two leaves differ"):
        assert_tied(tree, tie)
    full = view(store(tree, tie), tie)
    assert equal_leaves(full, tie) == {"other": True}
    assert_tied(full, tie)
    drawn = jax.random.normal(full["other"], 4)
    np.testing.assert_array_equal(drawn, jax.random.normal(jax.random.key(0), 4))


def test_masks_and_labels_are_stored_with_the_parameters():
    """optax's own masked decay and learning rates of groups, on stored parameters."""
    params = {"a": jnp.ones((2, 3)), "b": jnp.zeros((3, 2)), "c": jnp.ones(3)}
    stored = store(params, TURNED)
    mask, labels = {"a": True, "b": True, "c": False}, {"a": "table", "b": "table", "c": "bias"}
    for ties in (TURNED, resolve(TURNED, params)):
        assert store(mask, ties) == {"a": True, "b": None, "c": False}
        assert view(store(labels, ties), ties) == labels
    decay = optax.add_decayed_weights(0.5, mask=store(mask, TURNED))
    zeros = jax.tree.map(jnp.zeros_like, stored)
    updates, _ = decay.update(zeros, decay.init(stored), stored)
    assert updates["b"] is None
    np.testing.assert_array_equal(updates["a"], 0.5 * params["a"])
    np.testing.assert_array_equal(updates["c"], 0 * params["c"])
    groups = optax.multi_transform({"table": optax.sgd(2.0), "bias": optax.sgd(3.0)}, store(labels, TURNED))
    ones = jax.tree.map(jnp.ones_like, stored)
    updates, _ = groups.update(ones, groups.init(stored), stored)
    np.testing.assert_array_equal(updates["a"], -2 * params["a"])
    np.testing.assert_array_equal(updates["c"], -3 * params["c"])


@pytest.mark.parametrize("labels", [{"a": False, "b": True}, {"a": np.bool_(True), "b": False}, {"a": "frozen", "b": "train"}])
def test_labels_that_differ_are_refused(labels):
    """The source's would decide, and the table not be decayed, or be frozen."""
    message = f"the labels of the two leaves differ, {labels['a']!r} and {labels['b']!r}; give both one label"
    with pytest.raises(TieError, match=re.escape(message)):
        store(labels, Tie("a", "b"))


def test_patterns_match_labels_in_a_tree_of_labels_alone():
    labels = {"layers": {str(layer): {"w": "decayed", "b": "not"} for layer in range(3)}}
    ties = Tie("layers/0/*", "layers/*/*")
    stored = store(labels, ties)
    assert stored["layers"] == {"0": {"w": "decayed", "b": "not"}} | {key: {"w": None, "b": None} for key in "12"}
    assert view(stored, resolve(ties, labels)) == labels
    with pytest.raises(TieError, match=r"one leaf is a label \(str\), the other not"):
        store({"a": "decayed", "b": jnp.ones(2)}, Tie("a", "b"))
