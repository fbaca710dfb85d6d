"""Ties found in a tree (shared, equal and transposed arrays), selected by functions, and converted from tied keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.tying import Tie, TieError, find_ties, tie_between, ties_of_keys

A = np.arange(6.0).reshape(2, 3)


def test_one_array_object_in_two_leaves_is_a_tie_for_any_values():
    shared = np.zeros(3)
    assert find_ties({"a": shared, "b": np.zeros(3), "c": shared}) == [Tie("a", "c")]


def test_equal_arrays_and_transposes_are_ties():
    tree = {"a": A, "b": A.copy(), "c": A.T.copy(), "d": A + 1, "e": A.astype(np.float32), "f": jnp.float32(A.T)}
    assert find_ties(tree) == [Tie("a", "b"), Tie("a", "c", transform="transpose"), Tie("e", "f", transform="transpose")]
    assert find_ties(tree, equal=False) == []


def test_stacks_are_transposed_in_their_last_two_axes():
    stack = np.arange(24.0).reshape(2, 3, 4)
    assert find_ties([stack, stack.swapaxes(1, 2).copy()]) == [Tie("0", "1", transform="transpose")]


def test_arrays_equal_by_chance_are_not_tied():
    tree = {"ones": np.ones((2, 2)), "scale": np.ones((2, 2)), "count": np.int32(3), "number": np.int32(3), "none": None}
    assert find_ties(tree) == []
    keys = {"a": jax.random.key(0), "b": jax.random.key(0)}
    assert find_ties(keys) == []


def test_nan_is_equal_to_the_same_nan():
    odd = np.array([np.nan, 1.0])
    assert find_ties([odd, odd.copy()]) == [Tie("0", "1")]


def test_nan_alone_is_one_repeated_value():
    assert find_ties([np.full(3, np.nan), np.full(3, np.nan)]) == []


def test_selector_functions():
    tree = {"a": [A, A], "b": 1.0}
    assert tie_between(tree, lambda t: t["a"][0], lambda t: t["a"][1], gradient="source") == Tie(
        "a/0", "a/1", gradient="source"
    )
    with pytest.raises(
        TieError, match="target: expected a function that selects one leaf, got list; the leaves are a/0, a/1, b"
    ):
        tie_between(tree, lambda t: t["b"], lambda t: t["a"])


def test_keys_of_the_transformers_library():
    assert ties_of_keys({"lm_head.weight": "model.embed_tokens.weight"}) == [Tie("model/embed_tokens/weight", "lm_head/weight")]
    (tie,) = ties_of_keys({"head.kernel": "emb.embedding"}, transform="transpose")
    assert tie == Tie("emb/embedding", "head/kernel", transform="transpose")
    with pytest.raises(TieError, match="expected the name of a tensor, got the pattern"):
        ties_of_keys({r"layers\.\d+\.weight": "a"})


@pytest.mark.parity
def test_tensors_of_torch_are_refused():
    """An empty list would say that nothing is tied."""
    import torch

    shared = torch.ones(2, 3)
    message = r"b is a torch\.Tensor, not an array of numpy or jax; convert the leaves first"
    with pytest.raises(TieError, match=message):
        find_ties({"a": np.ones(2), "b": shared, "c": shared})
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(TieError, match=r"\w+ is a torch\.Parameter"):
        find_ties(dict(layer.named_parameters()))
    table = layer.weight.detach().numpy()
    assert find_ties({"a": table, "b": layer.weight.detach().numpy()}) == [Tie("a", "b")]


def test_scalars_of_numpy_and_shapes_are_no_foreign_arrays():
    assert find_ties({"a": np.float32(1), "b": jax.ShapeDtypeStruct((2,), np.float32), "c": 1.0}) == []
