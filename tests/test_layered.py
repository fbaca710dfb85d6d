"""Training stacks whose ties change: compact storage against full, gradients and moments by hand, compilations counted."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import layer_tying
from tiejax import tying
from tiejax.training.layered import LayeredAdamW, LayeredState, height_of, moved, stack_of, with_stack
from tiejax.training.tying_run import Job, run_job

VOCABULARY, LAYERS = 11, 4


def config(**changed):
    settings = {"layers": LAYERS, "width": 8, "heads": 2, "context": 6, "batch_size": 2, "learning_rate": 0.01, "steps": 8}
    return layer_tying.Config(**settings | changed).resolved()


def batch_of(number, rows=2, context=6):
    tokens = np.random.default_rng(number).integers(0, VOCABULARY, (rows, context)).astype(np.uint16)
    return layer_tying.Batch(tokens, np.ones(rows, np.float32), jax.random.key(number))


def build(**changed):
    return layer_tying.build(config(**changed), VOCABULARY, 0, jax.devices()[0])


@pytest.fixture(scope="module")
def compact():
    return build()


@pytest.fixture(scope="module")
def full():
    return build(storage="full")


def random_choices(number):
    rng = np.random.default_rng(3)
    layers = rng.integers(1, LAYERS, number)
    return [(int(layer), int(rng.integers(0, layer + 1))) for layer in layers]


def trained(layered, storage, choices, moments="copy", gradient="all", steps_between=2):
    """Train through changes of ties; return the state on the host, every layer's as it reads it, and losses and heights."""
    ties = tying.start_ties(LAYERS, "independent", "resolved")
    state, losses, heights = layered.start(jax.random.key(5), ties.owner), [], []
    for number, (layer, choice) in enumerate([(1, 1), *choices]):
        before = ties
        ties = tying.choose(ties, layer, choice, "resolved")
        state = layered.move(state, tying.move(before.owner, ties.owner, storage))
        for extra in range(steps_between):
            uses = tying.uses(ties, storage, gradient, "resolved")
            state, loss = layered.step(state, batch_of(number + extra), jax.random.key(0), uses)
            losses.append(float(loss))
        heights.append(height_of(state.params))
    fetched = layered.fetch(state, ties.owner)
    if storage == "full":
        fetched = jax.tree.map(np.asarray, fetched)
        reads = ties.owner
        stack, of_stack = jax.tree.map(lambda leaf: leaf[reads], (stack_of(fetched.params), fetched.of_stack))
        fetched = LayeredState(with_stack(fetched.params, stack), of_stack, fetched.of_rest)
    return fetched, losses, heights


def largest_difference(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)) for a, b in pairs)


@pytest.mark.parametrize("moments", ["copy", "zero"])
def test_compact_storage_is_full_storage_over_50_steps_of_random_ties(moments, compact, full):
    both = [compact, full] if moments == "copy" else [build(moments="zero"), build(moments="zero", storage="full")]
    choices = random_choices(24)
    own, losses, heights = trained(both[0], "compact", choices)
    whole, losses_of_full, full_heights = trained(both[1], "full", choices)
    assert len(losses) == 50
    assert len(set(heights)) > 2
    assert set(full_heights) == {LAYERS}
    np.testing.assert_allclose(losses, losses_of_full, rtol=1e-6)
    # A key bias has no gradient but rounding noise, which Adam makes steps of.
    for state in (own, whole):
        for stack in (stack_of(state.params), state.of_stack.mu, state.of_stack.nu):
            stack["qkv"]["bias"] = np.delete(stack["qkv"]["bias"], np.s_[8:16], axis=-1)
    assert largest_difference(own, whole) < 1e-5


def test_compilations_are_one_for_a_height_and_none_for_full_storage(compact, full):
    choices = random_choices(24)
    _, _, heights = trained(compact, "compact", choices, steps_between=1)
    before = compact.compilations
    assert set(compact.sizes) == set(heights)
    trained(compact, "compact", choices[::-1], steps_between=1)
    assert set(compact.sizes) == set(heights)
    assert compact.compilations == before
    trained(full, "full", choices, steps_between=1)
    assert full.compilations == 3  # a step, a loss, a move
