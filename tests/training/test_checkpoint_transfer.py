"""The transfer of a restored checkpoint from the first process to the others: values, dtypes and errors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.training.checkpoint import CheckpointMismatch, pack, unpack
from tiejax.training.members import EnsembleState
from tiejax.training.step import TrainState
from tiejax.tying.errors import TieError


class Pair(NamedTuple):
    one: object
    other: object


def state():
    params = {
        "embed": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "tied": None,
        "pair": Pair(jnp.float32(0.1), (None, jnp.zeros((0, 4), jnp.int8))),
    }
    return Pair(params, [jnp.array([True, False]), jnp.uint32(2**32 - 1), np.full((2, 2), np.nan)])


RECORDS = {
    "loss": {"step": np.arange(3, dtype=np.int32), "value": np.array([[0.1], [np.nan], [np.inf]])},
    "empty": {"distance": np.zeros((0, 2, 3), np.float32), "half": np.arange(3, dtype=jnp.bfloat16)},
    "none": {},
}


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("records", [RECORDS, {}])
def test_states_and_records_are_transferred_bitwise(records):
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state())
    found = unpack(pack((state(), records)), like)
    assert_same(found, (state(), records))
    assert isinstance(found[0], Pair)
    assert isinstance(found[0].one["pair"], Pair)
    found[1].get("loss", {}).get("value", np.zeros(1))[...] = 0  # received arrays are writable


def test_ensemble_states_are_transferred():
    params = {"embed": jnp.ones((2, 3)), "head": None}
    whole = EnsembleState(TrainState(params, optax.adam(1e-3).init(params)), jnp.int32(7))
    assert_same(unpack(pack((whole, RECORDS)), whole), (whole, RECORDS))


def test_missing_checkpoint_is_transferred_as_none():
    assert unpack(pack(None), state()) is None


@pytest.mark.parametrize("kind", [CheckpointMismatch, TieError, PermissionError, MemoryError])
def test_known_errors_keep_their_type(kind):
    with pytest.raises(kind, match=r"^checkpoint 3 has \u202e other ties$") as error:
        unpack(pack(kind("checkpoint 3 has \u202e other ties")), state())
    assert type(error.value) is kind


def test_other_errors_are_runtime_errors_with_their_name():
    with pytest.raises(RuntimeError, match=r"^the first process: KeyError: 'step'$"):
        unpack(pack(KeyError("step")), state())


def test_pickled_code_is_not_executed():
    """Bytes that are not a packed answer raise an error; they are never unpickled."""
    with pytest.raises(ValueError, match="pickled"):
        unpack(b"cos\nsystem\n(S'true'\ntR.", state())
