"""Fine-tuning: heads by hand, a member alone and against a plain loop, dropped layers, frozen encoders."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import training
from tiejax.models import bert
from tiejax.models.shapes import Shape
from tiejax.training.placement import member_map
from tiejax.transfer.batches import TaskFeed, all_rows, rows_of_batch
from tiejax.transfer.encoding import NO_LABEL, Encoded
from tiejax.transfer.fine_tuning import Objective, Recipe, build_ensemble, start_members
from tiejax.transfer.task_head import head_logits, init_head, mean_of_segments

VOCABULARY, LENGTH, LABELS = 19, 10, 3
SHAPE = Shape(4, 6, 8, 2, 2)
RECIPE = Recipe(epochs=2, weight_decay=0.01, warm_up=0.25, eps=1e-6, max_norm=1.0)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 7, 20)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    label = np.full(offsets[-1], NO_LABEL)
    label[offsets[:-1]] = np.arange(20) % LABELS
    return Encoded(rng.integers(1, VOCABULARY, offsets[-1]), offsets, label, 0)


def feed_of(data):
    return TaskFeed(data, LENGTH, 0, 6, rows_of_batch(data.lengths, 6, LENGTH), window=3)


def encoder(seed, model):
    return bert.discard_head(jax.jit(model.init)(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32))["params"])


def encoders(seeds, model, arms=1):
    each = [encoder(seed, model) for seed in seeds]
    return jax.tree.map(lambda *leaves: np.stack([np.stack([leaf] * arms) for leaf in leaves]), *each)


def test_heads_by_hand(x64):
    rng = np.random.default_rng(1)
    head = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), init_head(jax.random.key(0), "classification", 4, 3, 2))
    states, segments = rng.standard_normal((1, 5, 4)), np.array([[1, 1, 2, 2, 0]])
    classify = head["classifier"]
    pool = head["pooler"]
    first = head_logits(head, "classification", states, segments, "first")[0, 2]
    expected = np.tanh(states[0, 2] @ pool["kernel"] + pool["bias"]) @ classify["kernel"] + classify["bias"]
    np.testing.assert_allclose(first, expected, rtol=1e-12)
    mean = head_logits(head, "classification", states, segments, "mean")[0, 2]
    pooled = np.tanh(states[0, 2:4].mean(0) @ pool["kernel"] + pool["bias"])
    np.testing.assert_allclose(mean, pooled @ classify["kernel"] + classify["bias"], rtol=1e-12)
    np.testing.assert_array_equal(head_logits(head, "classification", states, segments)[0, 2], mean)  # the default
    tags = head_logits({"classifier": classify}, "tagging", states, segments)
    np.testing.assert_allclose(tags, states @ classify["kernel"] + classify["bias"], rtol=1e-12)


def test_layer_mix_by_hand(x64):
    rng = np.random.default_rng(2)
    states = rng.standard_normal((3, 1, 5, 4))
    head = init_head(jax.random.key(0), "layer_mix", 4, 2, 2)
    classify = {"kernel": np.eye(4)[:, :2], "bias": np.zeros(2)}
    mixed = head_logits(head | {"classifier": classify}, "layer_mix", states, np.ones((1, 5), int), "first")
    np.testing.assert_allclose(mixed, states.mean(0)[..., :2], rtol=1e-12)
    weights = {"weights": np.log([1.0, 2.0, 5.0]), "factor": np.float64(3)}
    mixed = head_logits({"classifier": classify, "mix": weights}, "layer_mix", states, np.ones((1, 5), int), "first")
    expected = 3 * (states[0] + 2 * states[1] + 5 * states[2]) / 8
    np.testing.assert_allclose(mixed, expected[..., :2], rtol=1e-12)
    pooled = head_logits({"classifier": classify, "mix": weights}, "layer_mix", states, np.ones((1, 5), int), "mean")
    np.testing.assert_allclose(pooled[0, 0], expected.mean(1)[0, :2], rtol=1e-12)


def test_layer_mix_needs_pooling():
    """By default, every word would get the mean of its sentence."""
    head, states = init_head(jax.random.key(0), "layer_mix", 4, 2, 2), np.ones((3, 1, 5, 4))
    with pytest.raises(ValueError, match=r'^pooling: a layer mix needs "mean" .* or "first" for labels of words$'):
        head_logits(head, "layer_mix", states, np.ones((1, 5), int))


def test_mean_of_segments(x64):
    states = np.arange(10.0).reshape(1, 5, 2)
    means = mean_of_segments(states, np.array([[1, 1, 1, 2, 2]]))
    np.testing.assert_allclose(means[0], [[2, 3]] * 3 + [[7, 8]] * 2)


@pytest.mark.slow
def test_loss_is_the_mean_over_labels(x64, data):
    model = bert.build(SHAPE, VOCABULARY, LENGTH)
    objective = Objective(model, "classification", LABELS)
    rows = feed_of(data).step((0, 0), 0, range(1), 1)
    head = init_head(jax.random.key(1), "classification", 8, LABELS, 2)
    params = {"encoder": encoder(0, model), "head": jax.tree.map(lambda leaf: 20 * leaf, head)}
    loss = jax.jit(jax.vmap(lambda _: objective.loss(params, rows, None), axis_name="data"))(jnp.zeros(1))
    logits = np.asarray(jax.jit(objective.logits)(params, rows, None))
    places = np.argwhere(rows.label != NO_LABEL)
    nats = [-jax.nn.log_softmax(logits[r, c])[rows.label[r, c]] for r, c in places]
    right = [logits[r, c].argmax() == rows.label[r, c] for r, c in places]
    assert len(places) == 6
    np.testing.assert_allclose(loss[0][0], np.mean(nats), rtol=1e-12)
    np.testing.assert_allclose(loss[1]["accuracy"][0], np.mean(right), rtol=1e-12)


@pytest.mark.slow
def test_devices_drop_other_values(data):
    """Two devices with the same rows have losses of two masks, those of one device with keys of their own."""
    objective = Objective(bert.build(SHAPE, VOCABULARY, LENGTH), "classification", LABELS, dropout=0.5)
    rows, key = feed_of(data).step((0, 0), 0, range(1), 1), jax.random.key(3)
    head = jax.tree.map(lambda leaf: 20 * leaf, init_head(jax.random.key(1), "classification", 8, LABELS, 2))
    params = {"encoder": encoder(0, objective.model), "head": head}

    @functools.partial(jax.jit, static_argnums=1)
    def losses(key, devices):
        return jax.vmap(lambda _: objective.loss(params, rows, key)[0], axis_name="data")(jnp.zeros(devices))

    shares = [2 * share for share in losses(key, 2)]
    alone = [losses(jax.random.fold_in(key, device), 1)[0] for device in range(2)]
    np.testing.assert_allclose(shares, alone, rtol=1e-5)
    assert abs(shares[0] - shares[1]) > 1e-3
    logits, label = objective.logits(params, rows, key), jnp.asarray(rows.label)  # outside of any device axis
    asked = label != NO_LABEL
    nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.where(asked, label, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(losses(key, 1)[0], nats[asked].mean(), rtol=1e-5)  # one device uses the key as it is


@pytest.mark.slow
def test_confusion_against_a_loop(data):
    model = bert.build(SHAPE, VOCABULARY, LENGTH)
    objective = Objective(model, "classification", LABELS)
    rows = all_rows(data, LENGTH, 0, 4)
    head = init_head(jax.random.key(1), "classification", 8, LABELS, 2)
    params = {"encoder": encoder(0, model), "head": jax.tree.map(lambda leaf: 20 * leaf, head)}
    expected, logits = np.zeros((LABELS, LABELS), int), jax.jit(objective.logits)
    for batch in zip(*rows, strict=True):
        answers = np.asarray(logits(params, type(rows)(*batch), None)).argmax(-1)
        for r, c in np.argwhere(batch[2] != NO_LABEL):
            expected[batch[2][r, c], answers[r, c]] += 1
    assert expected.sum() == 20
    np.testing.assert_array_equal(jax.jit(objective.confusion)(params, rows), expected)
    both = jax.tree.map(lambda leaf: np.stack([[np.asarray(leaf)] * 2] * 3), params)
    np.testing.assert_array_equal(member_map(objective.confusion)(both, rows), np.stack([[expected] * 2] * 3))


def run(data, seeds, runs, rates, kind="classification", model=None):
    model = model or bert.build(SHAPE, VOCABULARY, LENGTH)
    objective = Objective(model, kind, LABELS, dropout=0.1, pooling="mean")
    start = encoders(seeds, model, rates.shape[1])
    ensemble = build_ensemble(objective, RECIPE, feed_of(data), start)
    members = start_members(objective, seeds, runs, start, rates, ensemble.optimizer)
    return members, training.train(ensemble, seeds, conditions=runs, start=members)


@pytest.mark.slow
def test_member_equals_solo_run(data):
    """The second of 3 seeds at the second of 2 rates, in the ensemble and alone."""
    rates = np.array([[1e-2, 3e-3]] * 3)
    _, together = run(data, [4, 5, 5], [0, 0, 1], rates)
    _, alone = run(data, [5], [0], rates[:1, 1:])
    for one, other in zip(
        jax.tree.leaves(together.members.state.params), jax.tree.leaves(alone.members.state.params), strict=True
    ):
        np.testing.assert_allclose(np.asarray(one)[1, 1], np.asarray(other)[0, 0], atol=1e-6)
    # Another fine-tuning seed gives another run.
    kernel = np.asarray(together.members.state.params["head"]["classifier"]["kernel"])
    assert np.abs(kernel[1, 0] - kernel[2, 0]).max() > 1e-3


@pytest.mark.slow
def test_one_ensemble_trains_several_lists_of_members(data):
    """With other seeds, starts and rates, as ensembles of their own would, by one compiled program."""
    model = bert.build(SHAPE, VOCABULARY, LENGTH)
    objective = Objective(model, "classification", LABELS, dropout=0.1)
    shared = build_ensemble(objective, RECIPE, feed_of(data), encoders([4], model, 1))
    for seed, condition, rate in ((4, 0, 1e-2), (5, 3, 3e-3)):
        rates = np.array([[rate]])
        members = start_members(objective, [seed], [condition], encoders([seed], model, 1), rates, shared.optimizer)
        found = training.train(shared, [seed], conditions=[condition], start=members)
        _, expected = run(data, [seed], [condition], rates, model=model)
        jax.tree.map(np.testing.assert_array_equal, found.members.state.params, expected.members.state.params)
    assert len(shared.programs) == 1
    with pytest.raises(ValueError, match=r"^start: expected members \[seed, arm\] of shape \(2, 1\), got \(1, 1\)$"):
        training.train(shared, [4, 5], start=members)


@pytest.mark.slow
def test_training_equals_a_plain_loop(x64, data):
    """Warm-up over 2 of 8 steps, linear decay to 0; clipping at 1; no weight decay of biases and LayerNorms; no dropout."""
    model = bert.build(SHAPE, VOCABULARY, LENGTH)
    objective = Objective(model, "classification", LABELS)
    feed, rate = feed_of(data), 5e-3
    start = encoders([7], model)
    ensemble = build_ensemble(objective, RECIPE, feed, start)
    assert ensemble.steps == 8
    members = start_members(objective, [7], [0], start, np.array([[rate]]), ensemble.optimizer)
    trained = training.train(ensemble, [7], conditions=[0], start=members)

    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0, 0], members.params)
    mask = jax.tree_util.tree_map_with_path(lambda path, leaf: path[-1].key not in ("bias", "scale"), params)
    schedule = [0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-6), optax.add_decayed_weights(0.01, mask)
    )
    state = jax.jit(optimizer.init)(params)

    def loss(params, rows):
        return jax.vmap(lambda _: objective.loss(params, rows, None)[0], axis_name="data")(jnp.zeros(1))[0]

    @jax.jit
    def update(params, state, rows, rate):
        updates, state = optimizer.update(jax.grad(loss)(params, rows), state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state

    for step in range(8):
        params, state = update(params, state, feed.step((7, 0), step, range(1), 1), rate * schedule[step])
    for one, other in zip(jax.tree.leaves(trained.members.state.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(np.asarray(one)[0, 0], other, atol=2e-8)


@pytest.mark.slow
def test_frozen_encoder_is_unchanged(data):
    start, trained = run(data, [4], [0], np.array([[1e-2]]), kind="layer_mix")
    before, after = start.params, trained.members.state.params
    jax.tree.map(np.testing.assert_array_equal, after["encoder"], jax.tree.map(np.asarray, before["encoder"]))
    assert np.abs(np.asarray(after["head"]["mix"]["weights"])).max() > 1e-4


@pytest.mark.slow
def test_dropped_layers(x64):
    shapes = SHAPE, dataclasses.replace(SHAPE, layers=1)
    model, smaller = (bert.build(shape, VOCABULARY, LENGTH) for shape in shapes)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    tokens = jnp.arange(6)[None]
    below = jax.jit(lambda params: model.apply({"params": params}, tokens, every_layer=True, method="encode")[1])(params)
    kept = jax.jit(lambda params: smaller.apply({"params": params}, tokens, method="encode"))(bert.drop_layers(params, 1))
    np.testing.assert_allclose(kept, below, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^cannot drop 2 of 2 layers; expected 0 to 1$"):
        bert.drop_layers(params, 2)
