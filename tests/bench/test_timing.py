"""Repeated measurements, and training on for so many steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiejax import training, tying
from tiejax.bench.timing import TimedEnsemble, spread


def test_spread_is_median_and_range():
    assert spread([4.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert spread([1, 2]) == {"median": 1.5, "min": 1.0, "max": 2.0}


def test_every_call_trains_on_where_the_last_one_ended():
    """With records so dense that the steps of one call need several chunks."""

    def loss(params, batch, key):
        value = jnp.sum(params["first"] * params["second"])
        return value, {"loss": value}

    ensemble = training.Ensemble(
        init=lambda key: {"first": jnp.ones(2), "second": jnp.ones(2)},
        sample=lambda seed_key, step, fed: step,
        loss=loss,
        optimizer=optax.sgd(0.01),
        ties=[tying.Tie("first", "second")],
        arm_ties=np.array([[False], [True]]),
        steps=1000,
        recorders={"record": training.Recorder(1, lambda params, batch, seed_key, step: {"seen": jnp.asarray(step)})},
        records_per_chunk=4,
    )
    timed = TimedEnsemble(ensemble, [0, 1, 2])
    assert timed.compile_s > 0
    assert timed.memory_bytes > 0
    for steps, cursor in ((3, 3), (10, 13), (1, 14)):
        seconds, worked_s = timed.train(steps)
        assert 0 < worked_s <= seconds
        assert int(jax.device_get(timed._placed.cursor)) == cursor
