"""What the first process read, on its way to the others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax.training.checkpoint import CheckpointMismatch
from tiejax.training.ensemble import EnsembleState
from tiejax.training.hand_over import packed, unpacked
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
    "nothing yet": {"distance": np.zeros((0, 2, 3), np.float32)},
}


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("records", [RECORDS, {}])
def test_states_and_records_arrive_in_every_bit(records):
    found = unpacked(packed((state(), records)), jax.eval_shape(state))
    assert_same(found, (state(), records))
    assert isinstance(found[0], Pair)
    assert isinstance(found[0].one["pair"], Pair)
    found[1].get("loss", {}).get("value", np.zeros(1))[...] = 0  # what arrives can be written to


def test_states_of_an_ensemble_arrive():
    params = {"embed": jnp.ones((2, 3)), "head": None}
    whole = EnsembleState(TrainState(params, optax.adam(1e-3).init(params)), jnp.int32(7))
    assert_same(unpacked(packed((whole, RECORDS)), whole), (whole, RECORDS))


def test_that_there_is_none_arrives():
    assert unpacked(packed(None), state()) is None


@pytest.mark.parametrize("kind", [CheckpointMismatch, TieError, PermissionError, MemoryError])
def test_errors_arrive_by_kind(kind):
    with pytest.raises(kind, match=r"^checkpoint 3 has \u202e other ties$") as error:
        unpacked(packed(kind("checkpoint 3 has \u202e other ties")), state())
    assert type(error.value) is kind


def test_other_errors_arrive_with_their_name():
    with pytest.raises(RuntimeError, match=r"^the first process: KeyError: 'step'$"):
        unpacked(packed(KeyError("step")), state())


def test_what_is_no_answer_runs_nothing():
    """A pickle that would run code is not even looked at."""
    with pytest.raises(ValueError, match=r"Expecting value|codec|decode|Extra data"):
        unpacked(b"cos\nsystem\n(S'true'\ntR.", state())
