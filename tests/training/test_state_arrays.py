"""States as named arrays, and arrays that are refused."""

import numpy as np
import pytest

from tiejax.training.checkpoint import from_arrays, to_arrays
from tiejax.training.step import TrainState

STATE = TrainState({"a": np.arange(3.0), "b": {"c": np.int32(4)}}, (np.ones((2, 2)), None))


def test_a_state_comes_back():
    arrays = to_arrays(STATE, "state") | {"other/0": np.zeros(7)}
    back = from_arrays(arrays, STATE, "state")
    assert back.params["a"].tolist() == [0, 1, 2]
    assert (back.params["b"]["c"], back.opt_state[1], back.use_states) == (4, None, None)
    np.testing.assert_array_equal(back.opt_state[0], np.ones((2, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state/0": np.arange(4.0)}, r"state/0: expected float64 \(3,\), got float64 \(4,\)"),
        ({"state/0": np.arange(3, dtype=np.float32)}, r"state/0: expected float64 \(3,\), got float32 \(3,\)"),
    ],
)
def test_other_arrays_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(to_arrays(STATE, "state") | change, STATE, "state")


def test_a_missing_array_is_refused():
    arrays = to_arrays(STATE, "state")
    del arrays["state/2"]
    with pytest.raises(ValueError, match=r"state/2: .*got nothing"):
        from_arrays(arrays, STATE, "state")
