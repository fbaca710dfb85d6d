"""Ties as data: paths, patterns, chains and errors."""

import copy
import dataclasses
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from autoencoder import LEAVES

from tiejax.tying import (
    Cast,
    Functions,
    Reshape,
    Scale,
    Slice,
    Tie,
    TieError,
    resolve,
    store,
    view,
)


def test_patterns_tie_whole_blocks():
    params = {f"block_{k}": {"dense": {"kernel": jnp.full((2, 2), k), "bias": jnp.full(2, k)}} for k in range(3)}
    ties = [Tie("block_0/*", "block_1/*")]
    resolved = {(tie.source, tie.target) for tie in resolve(ties, params)}
    assert resolved == {(f"block_0/dense/{leaf}", f"block_1/dense/{leaf}") for leaf in ("kernel", "bias")}
    full = view(store(params, ties), ties)
    np.testing.assert_array_equal(full["block_1"]["dense"]["bias"], [0, 0])
    np.testing.assert_array_equal(full["block_2"]["dense"]["bias"], [2, 2])


def test_chains_resolve_to_the_stored_leaf():
    params = {name: jnp.arange(6.0).reshape(shape) for name, shape in (("a", (2, 3)), ("b", (3, 2)), ("c", (2, 3)))}
    ties = [Tie("b", "c", "transpose"), Tie("a", "b", "transpose", gradient="source")]
    assert resolve(ties, params) == (Tie("a", "c", "identity", "source"), Tie("a", "b", "transpose", "source"))
    stored = store(params, ties)
    assert [name for name in stored if stored[name] is not None] == ["a"]
    np.testing.assert_array_equal(view(stored, ties)["b"], params["a"].T)
    np.testing.assert_array_equal(view(stored, ties)["c"], params["a"])


def test_lists_and_tuples():
    params = [jnp.ones(2), (jnp.zeros(2), {"w": jnp.full(2, 7.0)})]
    full = view(store(params, [Tie("1/1/w", "0")]), [Tie("1/1/w", "0")])
    np.testing.assert_array_equal(full[0], [7, 7])


@pytest.mark.parametrize(
    ("ties", "words"),
    [
        ([Tie("embed/tabel", "head/table")], ["embed/tabel -> head/table", "no leaf embed/tabel", "embed/table"]),
        ([Tie("embed/table", "head/tabel")], ["no leaf head/tabel", "head/table"]),
        ([Tie("embed/table", "head/bias")], ["embed/table (7, 4) float32", "head/bias (7,) float32"]),
        ([Tie("embed/table", "head/half")], ["embed/table (7, 4) float32", "head/half (7, 4) float16", "cast one"]),
        (
            [Tie("embed/table", "head/table", "transpose")],
            ["embed/table (7, 4)", "after transpose (4, 7)", "head/table (7, 4)", "'identity' fits"],
        ),
        ([Tie("head/bias", "embed/table", "transpose")], ["transpose needs at least 2 axes", "head/bias (7,)"]),
        ([Tie("embed/table", "embed/table")], ["cycle", "embed/table"]),
        ([Tie("embed/table", "head/table"), Tie("head/table", "embed/table")], ["cycle", "embed/table", "head/table"]),
        ([Tie("embed/table", "head/table"), Tie("head/half", "head/table")], ["already reads embed/table"]),
        ([Tie("body/*", "head/*")], ["no leaf matches body/*"]),
    ],
)
def test_errors_name_paths_shapes_and_dtypes(ties, words):
    with pytest.raises(TieError) as error:
        store(LEAVES, ties)
    for word in words:
        assert word in str(error.value)


def test_errors_of_tie_fields():
    for field, value in (("transform", "rotate"), ("gradient", "some")):
        tie = Tie("a", "b")
        # Bypasses the type checks of the tests, which users do not have.
        object.__setattr__(tie, field, value)
        with pytest.raises(TieError, match=f"{field} must be .* got '{value}'"):
            tie.__post_init__()
    with pytest.raises(TieError, match=r"the same number of '\*', got 1 and 0"):
        Tie("a/*", "b")


def test_colliding_paths_are_rejected():
    with pytest.raises(TieError, match="two leaves have the path a/b"):
        resolve([Tie("a/b", "c")], {"a": {"b": np.zeros(1)}, "a/b": np.zeros(1), "c": np.zeros(1)})


@pytest.mark.parametrize(
    "transform",
    ["transpose", Scale(2.0), Cast("bfloat16"), Reshape((2, -1)), Slice((0, 2), axis=1), Functions(np.negative, np.negative),
     ("transpose", Scale(0.5), Slice(1))],
    ids=str,
)  # fmt: skip
def test_ties_as_dictionaries_copies_and_pickles(transform):
    tie = Tie("a", "b", transform, gradient=(1.0, 0.25))
    for again in (Tie(**dataclasses.asdict(tie)), copy.deepcopy(tie), pickle.loads(pickle.dumps(tie))):
        assert (again.source, again.target, again.weights) == ("a", "b", (1.0, 0.25))
        assert again.transform == transform
    with pytest.raises(TieError, match=r"transform must be .*, got \{'factr': 2\}"):
        Tie("a", "b", {"factr": 2})
