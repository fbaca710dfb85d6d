"""Permanent ties: `store`, `view` and `equal_leaves`."""

import collections
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from autoencoder import LEAVES, TIE, assert_close, autoencoder, reconstruction

from tiejax.tying import (
    Slice,
    Tie,
    TieError,
    equal_leaves,
    store,
    view,
)


def test_targets_of_a_view_read_their_sources():
    params, _ = autoencoder()
    stored = store(params, [TIE])
    assert stored["decoder"]["kernel"] is None
    assert len(jax.tree.leaves(stored)) == len(jax.tree.leaves(params)) - 1
    full = view(stored, [TIE])
    assert full["encoder"]["kernel"] is stored["encoder"]["kernel"]
    np.testing.assert_array_equal(full["decoder"]["kernel"], params["encoder"]["kernel"].T)
    assert jax.tree.structure(full) == jax.tree.structure(params)


def test_identity_view_is_the_same_array():
    params = {"a": jnp.ones(3), "b": jnp.zeros(3), "c": jnp.zeros(2)}
    full = view(store(params, [Tie("a", "b")]), [Tie("a", "b")])
    assert full["b"] is params["a"]


def test_stored_parameters_can_be_donated():
    params, x = autoencoder()
    stored = store(params, [TIE])
    optimizer = optax.adamw(1e-2)

    def step(stored, opt_state, x):
        grads = jax.grad(lambda s: reconstruction(view(s, [TIE]), x))(stored)
        updates, opt_state = optimizer.update(grads, opt_state, stored)
        return optax.apply_updates(stored, updates), opt_state

    expected, _ = jax.jit(step)(stored, optimizer.init(stored), x)
    donated, _ = jax.jit(step, donate_argnums=(0, 1))(jax.tree.map(jnp.copy, stored), optimizer.init(stored), x)
    assert_close(donated, expected, 1e-7)


def test_equal_leaves_compares_bits():
    """NaN equals itself: a member whose loss became non-finite is still tied."""
    params = {"a": np.array([np.nan, 1.0]), "b": np.array([np.nan, 1.0]), "c": np.array([np.nan, 2.0])}
    assert equal_leaves(params, [Tie("a", "b"), Tie("a", "c")]) == {"b": True, "c": False}


def test_equal_leaves_compares_values():
    params, _ = autoencoder()
    assert equal_leaves(params, [TIE]) == {"decoder/kernel": False}
    assert equal_leaves(view(store(params, [TIE]), [TIE]), [TIE]) == {"decoder/kernel": True}


def test_view_rejects_full_parameters():
    with pytest.raises(TieError, match="head/table still holds an array; pass the tree that"):
        view(LEAVES, [Tie("embed/table", "head/table")])


@pytest.mark.parametrize("transform", ["transpose", Slice(1, axis=1), (Slice((0, 2), axis=1), "transpose")])
@pytest.mark.parametrize("form", ["numpy", "flax"])
def test_a_file_of_full_parameters_holds_what_view_returned(tmp_path, transform, form):
    """safetensors writes the memory of an array in the order in which it lies, whatever its strides say."""
    form = importlib.import_module(f"safetensors.{form}")
    stored = {"source": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "target": None}
    full = view(stored, Tie("source", "target", transform=transform))
    form.save_file(full, tmp_path / "full.safetensors")
    read = form.load_file(tmp_path / "full.safetensors")
    expected = {"transpose": stored["source"].transpose(0, 2, 1), Slice(1, axis=1): stored["source"][:, 1]}
    np.testing.assert_array_equal(read["target"], expected.get(transform, stored["source"][:, :2].transpose(0, 2, 1)))


def test_missing_keys_of_a_default_dictionary():
    found = view(collections.defaultdict(list, {"a": jnp.ones(2)}), Tie("a", "b"))
    assert (type(found), found.default_factory, list(found)) == (collections.defaultdict, list, ["a", "b"])
