"""Named streams of random keys."""

import jax

from tiejax.training import stream


def test_streams_are_named_and_separate():
    key = jax.random.key(7)
    data = jax.random.key_data(stream(key, "data"))
    assert (data == jax.random.key_data(stream(key, "data"))).all()
    assert (data != jax.random.key_data(stream(key, "init"))).any()
    assert (data != jax.random.key_data(stream(jax.random.key(8), "data"))).any()
    # The name's CRC-32 is folded in. A change here would change every published run.
    assert data.tolist() == jax.random.key_data(jax.random.fold_in(key, 2918445923)).tolist()
