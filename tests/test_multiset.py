"""The fast engine against the plain one. Oracles: the Flax model on sequences, loops over every visit, and chi-squared."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_exor_data import arm, every_visit

from tiejax import models, training
from tiejax.models import multiset
from tiejax.models.transformer import ACTIVATIONS
from tiejax.studies.exor import batches as exor_batches
from tiejax.studies.exor import multisets as exor_multisets
from tiejax.studies.exor import study as experiment
from tiejax.studies.exor import task as exor

BATCH = 9


@st.composite
def cases(draw):
    """A model, random weights for it, and random sequences with one mask each, somewhere."""
    heads = draw(st.sampled_from([1, 2, 3]))
    encoder = models.Transformer(
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.integers(-(-4 // heads), 5)),  # of fewer than 4 features, LayerNorm leaves next to no gradient
        heads=heads,
        feed_forward=draw(st.integers(1, 9)),
        activation=draw(st.sampled_from(sorted(ACTIVATIONS))),
        identical_layers=draw(st.booleans()),
    )
    vocabulary, length = draw(st.integers(3, 9)), draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Some symbols are frequent, some never occur.
    tokens = rng.choice(vocabulary - 1, size=(BATCH, length), p=rng.dirichlet(np.full(vocabulary - 1, 0.5)))
    position = rng.integers(0, length, BATCH)
    target = tokens[np.arange(BATCH), position]
    tokens[np.arange(BATCH), position] = vocabulary - 1
    batch = exor_batches.Batch(*(jnp.asarray(part, jnp.int32) for part in (tokens, position, target)))
    return models.LanguageModel(vocabulary, encoder.width, encoder), batch, rng


def random_weights(model, batch, rng, scale=1.0):
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch.tokens, batch.position)["params"])
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), shapes)


def plain_loss(model, params, batch):
    return training.masked_lm_loss(
        lambda params, batch, key: model.apply({"params": params}, batch.tokens, batch.position), params, batch, None
    )


def fast_loss(model, params, batch):
    multisets = exor_multisets.count(batch, model.vocabulary)
    return training.asked_loss(multiset.logits(model, params, multisets.counts, model.vocabulary - 1), multisets.asked)


def assert_equal_with_gradients(model, params, batch, tolerance):
    (plain, fast) = (
        jax.jit(jax.value_and_grad(functools.partial(loss, model), has_aux=True))(params, batch)
        for loss in (plain_loss, fast_loss)
    )
    np.testing.assert_allclose(fast[0][0], plain[0][0], rtol=tolerance)
    np.testing.assert_allclose(fast[0][1]["accuracy"], plain[0][1]["accuracy"], rtol=1e-6)
    (_, plain_grads), (_, fast_grads) = plain, fast
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(fast_grads), jax.tree.leaves(plain_grads), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(scale, 1e-9), err_msg=str(path))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(cases())
def test_loss_and_gradients_are_the_plain_models(case):
    model, batch, rng = case
    with jax.enable_x64(True):
        assert_equal_with_gradients(model, random_weights(model, batch, rng), batch, 1e-12)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(cases())
def test_loss_and_gradients_are_the_plain_models_in_float32(case):
    model, batch, rng = case
    assert_equal_with_gradients(model, random_weights(model, batch, rng, scale=0.5), batch, 1e-5)


def test_absent_symbols_with_huge_scores_take_nothing_away(x64):
    """A softmax over all symbols, instead of those that occur, would underflow here: scores differ by thousands."""
    model = models.LanguageModel(6, 4, models.Transformer(layers=2, width=4, heads=1, feed_forward=3))
    tokens = jnp.array([[0, 1, 5], [2, 2, 5], [5, 3, 3]], jnp.int32)
    batch = exor_batches.Batch(tokens, jnp.array([2, 2, 0], jnp.int32), jnp.array([0, 1, 2], jnp.int32))
    params = random_weights(model, batch, np.random.default_rng(3))
    params["embed"]["embedding"] = params["embed"]["embedding"].at[4].mul(1e4)  # symbol 4 never occurs
    found, expected = (jax.jit(functools.partial(loss, model))(params, batch)[0] for loss in (fast_loss, plain_loss))
    assert np.isfinite(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    grads = jax.jit(jax.grad(lambda params: fast_loss(model, params, batch)[0]))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert (np.asarray(grads["embed"]["embedding"][4]) == 0).all()


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        (models.Mixer(1, 3, 3), "the Mixer sees the order"),
        (models.BidirectionalLSTM(1, 4, 3), "the BidirectionalLSTM sees the order"),
        (models.Transformer(1, 4, 1, 3, dropout=0.1), "dropout treats equal symbols differently"),
        (models.Transformer(2, 4, 1, 3, stack_size=1), "owner vector"),
    ],
)
def test_what_is_no_function_of_the_multiset_is_refused(encoder, reason):
    with pytest.raises(multiset.NotExact, match=reason):
        multiset.encode(models.LanguageModel(7, 4, encoder), {}, jnp.ones((7, 1)), 6)


@pytest.mark.parametrize("arm_name", ["main", "dh"])
def test_1000_steps_of_both_engines_from_the_same_batches(x64, arm_name):
    """`main` has more multisets than strings, one column a visit; `dh` has fewer, one column a multiset."""
    settings = {"seeds": 2, "steps": 1000, "record_every": 250, "exact_every": 250, "arm": arm_name}
    trained = {}
    for engine in ("plain", "fast"):
        config = experiment.Config(engine=engine, **settings).resolved()
        trained[engine] = training.train(experiment.build_ensemble(config), config.seed_list)
    for name, fields in trained["plain"].records.items():
        for field, expected in fields.items():
            np.testing.assert_allclose(trained["fast"].records[name][field], expected, rtol=1e-7, atol=1e-9, err_msg=field)
    plain, fast = (trained[engine].members.state.params for engine in ("plain", "fast"))
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(fast), jax.tree.leaves(plain), strict=True):
        # The gradient of a key's bias is exactly zero: AdamW turns its rounding into steps of any size, and no loss sees them.
        seen = np.r_[0:4, 8:12] if "qkv" in str(path) and "bias" in str(path) else np.s_[:]
        np.testing.assert_allclose(one[..., seen], other[..., seen], rtol=0, atol=1e-7, err_msg=str(path))
    start = experiment.build_ensemble(config).start(config.seed_list).state.params["embed"]["embedding"]
    assert np.abs(np.asarray(plain["embed"]["embedding"]) - np.asarray(start)).max() > 0.01


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=70), st.integers(0, 2))
def test_an_alias_table_gives_back_its_probabilities(weights, more):
    probability = np.array(weights) / sum(weights)
    cells = 2 << (len(weights) - 1).bit_length() << more
    own, other = exor_multisets.alias_table(probability, cells)
    size = 2**32 // cells
    words = np.zeros(cells)
    for cell in range(cells):  # every word of a cell below `own` means the cell itself
        words[cell] += int(own[cell])
        words[other[cell]] += size - int(own[cell])
    assert words.sum() == 2**32
    np.testing.assert_allclose(words[: len(weights)], probability * 2**32, rtol=0, atol=1)
    assert (words[len(weights) :] == 0).all()


@pytest.mark.parametrize("cells", [3, 4])
def test_an_alias_table_needs_a_power_of_two_that_suffices(cells):
    with pytest.raises(ValueError, match="power of two"):
        exor_multisets.alias_table(np.full(5, 0.2), cells)


def outcome_of(tokens, target):
    return tuple(sorted(tokens)), target


TASKS = [arm("main"), arm("no-dh", 5), exor.EXor(4, (0.2, 0.3, 0.5), (0.6, 0.0, 0.4))]


@pytest.mark.parametrize("task", TASKS, ids=["main", "no-dh", "three spellings"])
def test_the_joint_distribution_is_that_of_every_visit(task):
    """Exact expected frequencies of (multiset, target) by a loop over every visit, against 600 batches of each sampler."""
    rows = exor.split(task.bits)["train"]
    expected = collections.Counter()
    for context, _, target, weight in every_visit(task, rows):
        expected[outcome_of(context, target)] += weight
    likely = [outcome for outcome, share in expected.items() if share > 0]
    assert abs(sum(expected.values()) - 1) < 1e-12

    steps, key = 600, jax.random.key(5)
    ours = exor_multisets.MultisetSampler([task], rows)
    plain = exor_batches.Sampler(task, rows)
    keys = training.stream(key, "data"), training.stream(key, "order")
    for draw in (lambda step: ours.batch(*keys, step, jnp.int32(0)), lambda step: plain.batch(*keys, step)):
        batches = jax.jit(jax.vmap(draw))(jnp.arange(steps, dtype=jnp.int32))
        seen = collections.Counter(
            outcome_of(tokens, target)
            for tokens, target in zip(
                np.asarray(batches.tokens).reshape(-1, task.length).tolist(),
                np.asarray(batches.target).ravel().tolist(),
                strict=True,
            )
        )
        assert set(seen) <= set(likely)
        total = steps * len(rows)
        observed = np.array([seen[outcome] for outcome in likely], float)
        wanted = np.array([expected[outcome] for outcome in likely]) * total
        rare = wanted < 10
        if rare.any():
            observed, wanted = (np.append(values[~rare], values[rare].sum()) for values in (observed, wanted))
        assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("name", "bits", "size"), [("main", 7, None), ("dh", 7, None), ("main", 8, None), ("main", 7, 40)])
def test_both_forms_of_a_batch_are_one_batch(name, bits, size):
    task = arm(name, bits)
    rows = exor.split(bits)["train"]
    sampler = exor_multisets.MultisetSampler([task], rows, size)
    keys = jax.random.key(1), jax.random.key(2)
    for step in range(3):
        batch = sampler.batch(*keys, jnp.int32(step), jnp.int32(0))
        multisets = sampler.multisets(*keys, jnp.int32(step), jnp.int32(0))
        visits = len(batch.target)
        assert visits == (size or len(rows))
        assert multisets.counts.shape[1] == min(visits, exor.count_contexts(task, ordered=False))
        expected, found = collections.Counter(), collections.Counter()
        for tokens, target in zip(np.asarray(batch.tokens), np.asarray(batch.target), strict=True):
            expected[tuple(np.bincount(tokens, minlength=task.vocabulary)), int(target)] += 1
        for counts, asked in zip(np.asarray(multisets.counts).T, np.asarray(multisets.asked).T, strict=True):
            for target in np.flatnonzero(asked):
                found[tuple(counts.astype(int)), int(target)] += round(float(asked[target]) * visits)
        assert found == expected


def test_strings_with_too_many_outcomes_are_visited_and_counted():
    task = exor.EXor(9, (0.2, 0.3, 0.5), (0.3, 0.3, 0.4))
    assert exor.most_outcomes(task) > exor.MAX_OUTCOMES
    rows = exor.split(9)["train"]
    sampler = exor_multisets.MultisetSampler([task], rows)
    keys = jax.random.key(1), jax.random.key(2), jnp.int32(4), jnp.int32(0)
    batch, multisets = sampler.batch(*keys), sampler.multisets(*keys)
    expected = [np.bincount(tokens, minlength=task.vocabulary) for tokens in np.asarray(batch.tokens)]
    np.testing.assert_array_equal(np.asarray(multisets.counts).T, expected)
    np.testing.assert_array_equal(np.argmax(multisets.asked, axis=0), batch.target)
    with pytest.raises(ValueError, match="more than the 1024"):
        exor_multisets.MultisetSampler([task, task], rows)


def test_tasks_of_one_sampler_share_their_symbols():
    with pytest.raises(ValueError, match="same symbols"):
        exor_multisets.MultisetSampler([arm("main"), arm("dh")], exor.split(7)["train"])


@pytest.mark.parametrize("bits", [3, 7, 9])
def test_the_number_of_outcomes_is_that_of_a_count(bits):
    task = exor.EXor(bits, (0.5, 0.5), (0.1, 0.9))
    known = exor.contexts(task, ordered=False)
    zeros = np.isin(known.tokens, (0, 1)).sum(1) + (known.bit == 0)
    by_kind = np.bincount(zeros, weights=(known.target > 0).sum(1))
    assert exor.most_outcomes(task) == by_kind.max()


def test_a_dose_in_an_ensemble_is_the_run_with_its_distribution():
    """EnsembleState of (dose, seed) against ensembles that know one distribution only: batches bitwise, losses to rounding."""
    settings = {"seeds": [3, 5], "steps": 60, "record_every": 20, "exact_every": 20}
    config = experiment.Config(doses=[0.5, 0.9], **settings).resolved()
    conditions, seeds = zip(*config.members, strict=True)
    assert (conditions, seeds) == ((0, 0, 1, 1), (3, 5, 3, 5))
    records = training.train(experiment.build_ensemble(config), seeds, conditions=conditions).records
    for number, dose in enumerate(config.doses):
        alone = experiment.Config(zero=[dose, 1 - dose], one=[0.5, 0.5], **settings).resolved()
        expected = training.train(experiment.build_ensemble(alone), alone.seed_list).records
        of_dose = slice(2 * number, 2 * number + 2)
        for name in ("train_loss", "validation_redrawn_loss", "validation_frozen_loss", "distance_output"):
            np.testing.assert_allclose(records["record"][name][:, of_dose], expected["record"][name], rtol=1e-5, atol=1e-6)
        for name, values in expected["exact"].items():
            if name != "step":
                np.testing.assert_allclose(records["exact"][name][:, of_dose], values, rtol=1e-4, atol=1e-5, err_msg=name)
    assert (records["record"]["train_loss"][:, :2] != records["record"]["train_loss"][:, 2:]).all()


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.1}, {"model": "lstm"}, {"model": "mixer"}], ids=str)
def test_the_configuration_and_the_model_refuse_alike(settings):
    """The configuration is checked before jax is there to build a model: two places, one rule."""
    config = experiment.Config(**settings).resolved()
    try:
        multiset.check(experiment.build_model(config))
        assert config.engine == "fast"
    except multiset.NotExact:
        assert config.engine == "plain"
