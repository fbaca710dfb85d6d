"""Phases: the steps at which ties are on, as Python and as traced values."""

import jax.numpy as jnp
import pytest

from tiejax import training


def test_phases():
    def on(phase, until=8):
        single = [phase.on(step) for step in range(until)]
        traced = [bool(training.phases.phases_on([phase], jnp.int32(step))[0]) for step in range(until)]
        assert single == traced
        return "".join("+" if value else "-" for value in single)

    assert on(training.Phase()) == "++++++++"
    assert on(training.Phase(0, 0)) == "--------"
    assert on(training.Phase(0, 3)) == "+++-----"
    assert on(training.Phase(3)) == "---+++++"
    assert on(training.Phase(5, 2)) == "++---+++"
    assert [training.Phase(*steps).starts_equal for steps in ((0, 0), (0, 3), (3,), (5, 2))] == [True, True, False, True]
    with pytest.raises(ValueError, match="from step 3 until step 3"):
        training.Phase(3, 3)
