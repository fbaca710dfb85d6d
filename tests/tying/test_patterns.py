"""Patterns with several targets for one source."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.tying import Tie, TieError, resolve, store, view


def pairs(tie, params):
    return {(one.source, one.target) for one in resolve(tie, params)}


def test_one_source_with_several_targets():
    params = {"embed": jnp.arange(3.0), "head_0": jnp.zeros(3), "head_1": jnp.ones(3), "body": {"head_2": jnp.ones(3)}}
    tie = Tie("embed", "head_*")
    assert pairs(tie, params) == {("embed", "head_0"), ("embed", "head_1")}
    stored = store(params, tie)
    full = view(stored, tie)  # the targets are None now, and are found nevertheless
    assert full["head_1"].tolist() == [0, 1, 2]
    grads = jax.grad(lambda stored: sum(leaf.sum() for leaf in jax.tree.leaves(view(stored, tie))))(stored)
    assert grads["embed"].tolist() == [3, 3, 3]


def test_all_layers_read_the_first_one():
    """A `*` without a counterpart stays within a part of the path: `attention/w` is not taken for layer `1/attention`."""
    layer = {"w": jnp.ones(2), "attention": {"w": jnp.zeros(2)}}
    params = {"layers": [layer, layer, layer]}
    tie = Tie("layers/0/*", "layers/*/*")
    leaves = ("w", "attention/w")
    assert pairs(tie, params) == {(f"layers/0/{leaf}", f"layers/{to}/{leaf}") for to in (1, 2) for leaf in leaves}
    stored = store(params, tie)
    assert len(jax.tree.leaves(stored)) == 2
    np.testing.assert_array_equal(view(stored, tie)["layers"][2]["attention"]["w"], [0, 0])


def test_block_1_star_matches_block_10():
    params = {f"block_{number}": {"w": jnp.full(1, number)} for number in (0, 1, 10)}
    assert pairs(Tie("block_0/w", "block_1*/w"), params) == {("block_0/w", "block_1/w"), ("block_0/w", "block_10/w")}
    assert pairs(Tie("block_0/*", "block_1/*"), params) == {("block_0/w", "block_1/w")}


def test_targets_that_do_not_exist_or_hold_nothing():
    params = {"embed": jnp.ones(2), "head": {"w": jnp.ones(2), "bias": None}}
    with pytest.raises(TieError, match=r"tie embed -> tail_\*: no leaf matches tail_\*; the leaves are embed"):
        store(params, Tie("embed", "tail_*"))
    with pytest.raises(TieError, match=r"head/\* matches head/bias, which is None, as well as arrays; write a narrower"):
        store(params, Tie("embed", "head/*"))
    with pytest.raises(TieError, match=r"the same number of '\*', got 2 and 1; only target may contain more"):
        Tie("a/*/*", "b/*")


def test_values_of_nnx_variables_may_be_left_out():
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.emb = nnx.Embed(7, 3, rngs=rngs)
            self.head_0 = nnx.Linear(3, 7, use_bias=False, rngs=rngs)
            self.head_1 = nnx.Linear(3, 7, use_bias=False, rngs=rngs)

    model, tie = Model(nnx.Rngs(0)), Tie("emb/embedding", "head_*/kernel", transform="transpose")
    full = view(store(model, tie), tie)
    np.testing.assert_array_equal(full.head_1.kernel[...], model.emb.embedding[...].T)


@pytest.mark.parametrize("bias", [jnp.ones(2), None], ids=["arrays", "None"])
def test_patterns_that_match_their_own_targets_end_in_an_error(bias):
    """Written for "encoder/*"; a tree that holds None somewhere is searched for stored targets."""
    layer = {"kernel": jnp.ones((2, 2)), "bias": bias}
    with pytest.raises(TieError, match=r"no leaf encoder_copy_copy/"):
        store({"encoder": layer, "encoder_copy": layer}, Tie("encoder*", "encoder_copy*"))


def test_missing_targets_that_name_further_ones_end_in_an_error():
    """In a tree without None, targets may be missing, so that a target may be the source of another."""
    with pytest.raises(TieError, match="ties match their own targets without end; write narrower patterns"):
        view({"encoder": {"kernel": jnp.ones(2)}}, [Tie("encoder*", "encoder_copy*"), Tie("x", "y")])
