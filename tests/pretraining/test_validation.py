"""Validation: held-out rows, and losses by bucket against a loop over the slots."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.pretraining.loss import Predicted
from tiejax.pretraining.step_plan import StepPlan
from tiejax.pretraining.validation import Validation, batches_of_epoch, held_out_rows
from tiejax.text.masking import Masking
from tiejax.text.packing import Stream
from tiejax.text.twins import Twins
from tiejax.training.placement import DATA

SIZE, LENGTH, SPECIAL, MASK, BATCHES = 30, 8, (0, 1, 2, 3, 4), 4, 3
BUCKET, BUCKETS = (np.arange(SIZE) // 10).astype(np.int32), 4  # the last bucket is empty
MASKING = Masking(Twins(SIZE, (), (), ()), SPECIAL, MASK, slots=20)


def stream():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, LENGTH + 1, 40)
    return Stream(rng.integers(5, SIZE, lengths.sum()).astype(np.uint16), np.append(0, np.cumsum(lengths)), LENGTH, 0, seed=0)


def plan(rows, mesh):
    return StepPlan(steps=1, rows=rows, slots=20, mesh=mesh, padding=0.0, tokens=0.0)


def predict(params, masked):
    """A model with loss params[target], correct for even targets."""
    return Predicted(params[masked.target], masked.target % 2 == 0)


def measure(held_out, rows, devices):
    validation = Validation(predict, MASKING, held_out, BUCKET, BUCKETS, rows)
    params, key = jnp.linspace(1.0, 2.0, SIZE), jax.random.key(5)
    measured = jax.vmap(lambda _: validation.measure(params, key), axis_name=DATA)(jnp.arange(devices))
    assert all(np.array_equal(values[0], other, equal_nan=True) for values in measured.values() for other in values)
    return {name: np.asarray(values[0], float) for name, values in measured.items()}


def test_held_out_rows_are_the_first_of_the_stream():
    held_out = held_out_rows(stream(), BATCHES, plan(rows=5, mesh=2))
    tokens, segments = stream().rows(0, 15)
    for number in range(BATCHES):
        found = held_out.batch(jnp.int32(number), 0, 6)
        for leaf, wanted in zip(found, (tokens, segments), strict=True):
            np.testing.assert_array_equal(leaf, np.append(wanted[5 * number :][:5], np.zeros((1, LENGTH)), axis=0))
        for leaf, wanted in zip(held_out.batch(jnp.int32(number), jnp.int32(3), 3), found, strict=True):
            np.testing.assert_array_equal(leaf, wanted[3:])


@pytest.mark.parametrize("packed", [True, False])
def test_validation_on_a_whole_split(packed):
    """Each of 40 sentences occurs whole in exactly one row, in batches of 7 rows."""
    whole_split = dataclasses.replace(stream(), packed=packed, multiple=7)
    batches = batches_of_epoch(whole_split, plan(rows=7, mesh=1))
    held_out = held_out_rows(whole_split, batches, plan(rows=7, mesh=1))
    assert packed or batches == 6
    found = []
    for number in range(batches):
        for row, own in zip(*map(np.asarray, held_out.batch(jnp.int32(number), 0, 7)), strict=True):
            found += [row[own == segment].tolist() for segment in range(1, own.max() + 1)]
    ends = stream().offsets
    assert sorted(found) == sorted(stream().ids[low:high].tolist() for low, high in itertools.pairwise(ends))
    # The last batch is not full: 40 sentences are 5 batches of 7 rows and 5 more rows.
    assert packed or (held_out.lengths[-1] > 0).tolist() == [True] * 5 + [False] * 2


@pytest.mark.slow
def test_losses_by_bucket_against_a_loop():
    held_out = held_out_rows(stream(), BATCHES, plan(rows=5, mesh=1))
    counts, nats, right = np.zeros(BUCKETS), np.zeros(BUCKETS), np.zeros(BUCKETS)
    for number in range(BATCHES):
        key = jax.random.fold_in(jax.random.key(5), number)
        tokens, segments = (leaf[number * 5 :][:5] for leaf in stream().rows(0, BATCHES * 5))
        masked = MASKING.visit(jnp.asarray(tokens), jnp.asarray(segments), jnp.arange(5), key)
        for target, weight in zip(np.asarray(masked.target), np.asarray(masked.weight), strict=True):
            counts[BUCKET[target]] += weight
            nats[BUCKET[target]] += weight * (1 + target / (SIZE - 1))
            right[BUCKET[target]] += weight * (target % 2 == 0)
    assert (counts[:3] > 0).all()
    measured = measure(held_out, rows=5, devices=1)
    np.testing.assert_array_equal(measured["bucket_count"], counts)
    np.testing.assert_allclose(measured["bucket_loss"][:3], nats[:3] / counts[:3], rtol=1e-6)
    np.testing.assert_allclose(measured["bucket_accuracy"][:3], right[:3] / counts[:3], rtol=1e-6)
    assert np.isnan(measured["bucket_loss"][3])
    np.testing.assert_allclose(
        [measured["loss"], measured["accuracy"]], [nats.sum() / counts.sum(), right.sum() / counts.sum()]
    )


def test_several_devices_validate_as_one():
    one = measure(held_out_rows(stream(), BATCHES, plan(rows=5, mesh=1)), rows=5, devices=1)
    three = measure(held_out_rows(stream(), BATCHES, plan(rows=5, mesh=3)), rows=2, devices=3)
    assert one.keys() == three.keys()
    for name, values in one.items():
        np.testing.assert_allclose(three[name], values, rtol=1e-6, err_msg=name)
