"""Stored parameters that have been through a format without `None`: `view` puts the keys of targets back."""

import flax.core
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.tying import Tie, TieError, store, untie, view

TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)
NESTED = {"embed": {"table": jnp.asarray(TABLE)}, "head": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}
TIE = Tie("embed/table", "head/kernel", transform="transpose")


def without_none(tree):
    """Drop keys that hold None, and then empty dictionaries, as formats of flat tensors do."""
    if not isinstance(tree, dict):
        return tree
    kept = {key: without_none(value) for key, value in tree.items() if value is not None}
    return {key: value for key, value in kept.items() if not isinstance(value, dict) or value}


@pytest.mark.parametrize("bias", [True, False], ids=["a key", "a whole dictionary"])
def test_nested_dictionaries(bias):
    params = NESTED if bias else NESTED | {"head": {"kernel": NESTED["head"]["kernel"]}}
    loaded = without_none(store(params, TIE))
    assert ("head" in loaded) == bias
    full = view(loaded, TIE)
    assert jax.tree.structure(full) == jax.tree.structure(params)
    np.testing.assert_array_equal(full["head"]["kernel"], TABLE.T)
    frozen = view(flax.core.freeze(loaded), TIE)
    assert isinstance(frozen, flax.core.FrozenDict)
    assert jax.tree.structure(frozen) == jax.tree.structure(flax.core.freeze(params))


def test_flat_dictionaries():
    flat = flax.traverse_util.flatten_dict(NESTED, sep="/")
    full = view(without_none(store(flat, TIE)), TIE)
    assert set(full) == set(flat)
    np.testing.assert_array_equal(full["head/kernel"], TABLE.T)


def test_modules_whose_names_contain_slashes():
    """As in Haiku: a module's name, then a parameter's."""
    params = {"model/~/embed": {"w": jnp.asarray(TABLE)}, "model/~/head": {"w": jnp.zeros((2, 3))}}
    tie = Tie("model/~/embed/w", "model/~/head/w", transform="transpose")
    full = view(without_none(store(params, tie)), tie)
    assert jax.tree.structure(full) == jax.tree.structure(params)


def test_names_with_slashes_below_the_first_key():
    """As Haiku's parameters under `params`."""
    params = {"params": {"model/~/embed": {"w": jnp.asarray(TABLE)}, "model/~/head": {"w": jnp.zeros((2, 3))}}}
    tie = Tie("params/model/~/embed/w", "params/model/~/head/w", transform="transpose")
    full = view(without_none(store(params, tie)), tie)
    assert jax.tree.structure(full) == jax.tree.structure(params)


def test_leaves_called_value_are_no_nnx_variables_beside_others():
    params = {"attention": {"query": jnp.ones(2), "key": jnp.zeros(2), "value": jnp.ones(2)}}
    tie = Tie("attention/value", "attention/key")
    full = view(without_none(store(params, tie)), tie)
    assert jax.tree.structure(full) == jax.tree.structure(params)


@pytest.mark.parametrize("pattern", [False, True])
def test_leaves_called_value_whose_siblings_are_missing(pattern):
    """The file holds `attention/value` alone, and `critic/value` has no sibling in the model either."""
    params = {"attention": {"key": jnp.zeros(2), "value": jnp.ones(2)}, "out": jnp.ones(1)}
    tie = Tie("*/value", "*/key") if pattern else Tie("attention/value", "attention/key")
    full = view(without_none(store(params, tie)), tie)
    assert jax.tree.structure(full) == jax.tree.structure(params)
    params = {"critic": {"value": jnp.ones(2)}, "actor": {"logits": jnp.zeros(2), "bias": jnp.ones(1)}}
    full = view(without_none(store(params, Tie("critic/value", "actor/logits"))), Tie("critic/value", "actor/logits"))
    assert jax.tree.structure(full) == jax.tree.structure(params)


def test_variables_of_nnx_beside_other_leaves():
    params = {"params": {name: {"value": jnp.ones(2)} for name in ("emb", "body", "head")}, "step": 3}
    tie = Tie("params/emb/value", "params/head")
    full = view(without_none(store(params, tie)), tie)
    assert jax.tree.structure(full) == jax.tree.structure(params)


def test_keys_that_are_integers():
    params = {"layers": {0: {"w": jnp.ones(2)}, 1: {"w": jnp.zeros(2)}}}
    tie = Tie("layers/0/w", "layers/1/w")
    full = view(without_none(store(params, tie)), tie)
    assert full["layers"][1]["w"].tolist() == [1, 1]


def test_patterns_chains_and_variables_of_nnx():
    params = {f"block_{number}": {"w": {"value": jnp.full(2, number)}} for number in range(3)}
    ties = [Tie("block_1/*", "block_2/*"), Tie("block_0/w", "block_1/w")]
    loaded = without_none(store(params, ties))
    assert set(loaded) == {"block_0"}
    full = view(loaded, [Tie("block_1/w", "block_2/w"), Tie("block_0/w", "block_1/w")])
    assert full["block_2"]["w"]["value"].tolist() == [0, 0]
    assert view(without_none(store(params, ties[1])), ties[1])["block_1"]["w"]["value"].tolist() == [0, 0]
    pattern = Tie("block_0/*", "block_2/*")
    assert view(without_none(store(params, pattern)), pattern)["block_2"]["w"]["value"].tolist() == [0, 0]


def test_untie_after_loading():
    optimizer, loaded = optax.adamw(1e-2), without_none(store(NESTED, TIE))
    params, state = untie(optimizer, loaded, optimizer.init(loaded), TIE)
    assert jax.tree.structure(params) == jax.tree.structure(NESTED)
    assert state[0].mu["head"]["kernel"].shape == (2, 3)


def test_misspelt_targets_are_errors_where_none_is_kept():
    with pytest.raises(TieError, match="no leaf head/kernal; did you mean head/kernel"):
        view(store(NESTED, TIE), Tie("embed/table", "head/kernal", transform="transpose"))
    with pytest.raises(TieError, match=r"no leaf 1; did you mean 0\?"):  # a list cannot be filled
        view([jnp.ones(2)], Tie("0", "1"))
    with pytest.raises(TieError, match=r"tie x/\* -> y/\*: no leaf matches x/\*"):
        view({"a": jnp.ones(2)}, Tie("x/*", "y/*"))
