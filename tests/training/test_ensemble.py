"""The seed ensemble, against a Python loop over single members and against runs with other seeds or settings."""

import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import training, tying
from tiejax.lab.studies.exor.ensemble import build_ensemble, steps_ahead
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.untying.settings import Settings as UntyingSettings
from tiejax.lab.studies.untying.study import build_ensemble as build_untying
from tiejax.training import DrawAhead, SeedKey, TrainState, Vmapped, make_step, seed_keys, stream, train
from tiejax.training.sources import ExampleFeed


def config(**changes):
    settings = {"seeds": 3, "steps": 60, "record_every": 20, "exact_every": 20, **changes}
    return Settings(**settings).resolved()


def run(settings, **options):
    ensemble = build_ensemble(settings)
    return ensemble, train(ensemble, settings.seed_list, **options)


def light(settings):
    """Return an ensemble that records only its training loss and tables: EXor's own recorders dominate compile time."""
    ensemble = build_ensemble(settings)

    def measure(params, batch, seed_key, step):
        tables = {"input": params["embed"]["embedding"], "output": params["head"]["embedding"]}
        return {"train_loss": ensemble.loss(params, batch, None)[0], **tables, "finite": training.all_finite(params)}

    return dataclasses.replace(ensemble, recorders={"record": training.Recorder(settings.record_every, measure)})


def test_arms_of_a_seed_start_equal():
    ensemble = build_ensemble(config())
    params = ensemble.start([0, 1]).state.params
    untied, tied = (jax.tree.map(lambda leaf, v=v: np.asarray(leaf[:, v]), params) for v in (0, 1))
    np.testing.assert_array_equal(tied["head"]["embedding"], untied["embed"]["embedding"])
    assert (untied["head"]["embedding"] != untied["embed"]["embedding"]).all()
    del untied["head"], tied["head"]
    jax.tree.map(np.testing.assert_array_equal, tied, untied)


@pytest.mark.slow
def test_seeds_differ_in_every_random_quantity():
    ensemble = build_ensemble(config(model="lstm", batch_size=50))
    params = ensemble.start([0, 1]).state.params
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        assert (np.asarray(leaf[0]) != np.asarray(leaf[1])).mean() > 0.9, path
    first, second = (
        ensemble.sample(jax.tree.map(lambda leaf: leaf[0], seed_keys([seed])), jnp.int32(0), None) for seed in (0, 1)
    )
    for field in ("tokens", "position", "target"):
        assert (np.asarray(getattr(first, field)) != np.asarray(getattr(second, field))).mean() > 0.1


@pytest.mark.slow
def test_seed_7_alone_is_seed_7_among_32():
    settings = config(seeds=list(range(32)), steps=100, record_every=10, exact_every=100)
    alone = config(seeds=[7], steps=100, record_every=10, exact_every=100)
    ensemble = build_ensemble(settings)
    sample = jax.jit(jax.vmap(lambda seed_key: ensemble.sample(seed_key, jnp.int32(3), None)))
    jax.tree.map(
        lambda one, many: np.testing.assert_array_equal(one[0], many[7]),
        ensemble.start([7]).state,
        ensemble.start(range(32)).state,
    )
    jax.tree.map(
        lambda one, many: np.testing.assert_array_equal(one[0], many[7]),
        sample(seed_keys([7])),
        sample(seed_keys(range(32))),
    )
    many, one = (train(light(own), own.seed_list) for own in (settings, alone))
    losses = one.records["record"]["train_loss"][:, 0], many.records["record"]["train_loss"][:, 7]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert np.ptp(losses[1]) > 0.1


@functools.cache
def five_seeds(at_once=None):
    """Return five trained seeds, `at_once` of them side by side; several chunks, all records."""
    settings = config(seeds=[4, 0, 2, 9, 1], steps=30, record_every=10, exact_every=30)
    ensemble = dataclasses.replace(build_ensemble(settings), members=Vmapped(at_once), records_per_chunk=2)
    return train(ensemble, settings.seed_list)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [3, 2, 7])
def test_members_in_blocks_equal_members_in_one_block(at_once):
    """Five seeds: blocks of three contain one padding copy."""
    one, other = five_seeds(), five_seeds(at_once)
    assert jax.tree.map(np.shape, one.records) == jax.tree.map(np.shape, other.records)
    np.testing.assert_array_equal(one.records["record"]["step"], [0, 10, 20, 30])
    # Biases of attention keys are left out: their gradient is only rounding error.
    (tables, found), (other_tables, other_found) = (
        ([trained.members.state.params[part]["embedding"] for part in ("embed", "head")], trained.records)
        for trained in (one, other)
    )
    jax.tree.map(
        lambda leaf, same: np.testing.assert_allclose(leaf, same, rtol=1e-4, atol=1e-5),
        (tables, found),
        (other_tables, other_found),
    )
    assert int(one.members.cursor) == int(other.members.cursor) == 31


def test_more_seeds_train_with_the_same_program():
    """The loss is traced for the first seed only; another ensemble gives the same numbers."""
    traced = []

    def loss(params, batch, key):
        traced.append(None)
        return jnp.sum((params["w"] - 1) ** 2), {}

    ensemble = training.Ensemble(
        init=lambda key: {"w": jax.random.normal(key, (2,))},
        sample=lambda seed_key, step, fed: None,
        loss=loss,
        optimizer=optax.sgd(0.1),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        recorders={},
        steps=3,
    )
    first, number = train(ensemble, [0]), len(traced)
    second = train(ensemble, [1])
    assert len(traced) == number > 0
    alone = train(dataclasses.replace(ensemble), [1])
    assert len(traced) > number
    values = [np.asarray(trained.members.state.params["w"]) for trained in (first, second, alone)]
    np.testing.assert_array_equal(values[1], values[2])
    assert (values[0] != values[1]).all()


def test_each_step_receives_its_draw():
    """A number grows by the draws of its steps, the seed's condition plus the step; a measure adds 1,000 instead of a draw."""

    def sample(seed_key, step, drawn):
        return jnp.float32(1000) if drawn is None else drawn

    ensemble = training.Ensemble(
        init=lambda key: {"number": jnp.zeros(())},
        sample=sample,
        loss=lambda params, batch, key: (-params["number"] * batch, {}),
        optimizer=optax.sgd(1.0),
        ties=[],
        arm_ties=np.zeros((2, 0), bool),
        steps=11,
        recorders={"record": training.Recorder(5, lambda params, batch, *_: {"sum": params["number"] + batch})},
        source=DrawAhead(lambda seed_key, step: (seed_key.condition + step).astype(jnp.float32), 3),
    )
    records = train(ensemble, [4, 2], conditions=[0, 7]).records["record"]
    steps = records["step"]
    assert steps.tolist() == [0, 5, 10, 11]
    for seed, condition in enumerate((0, 7)):
        wanted = 1000 + steps * (steps - 1) / 2 + condition * steps
        np.testing.assert_array_equal(records["sum"][:, seed], np.stack([wanted, wanted], axis=1))


@pytest.mark.parametrize("how", [{"engine": "fast"}, {"engine": "plain"}, {"batch_size": 20}, {"doses": [0.1, 0.3]}])
def test_batches_drawn_ahead_equal_batches_drawn_by_step(how):
    """Recorders draw their batch themselves, and must get the batch of the step's update."""
    settings = config(**how)
    ensemble = build_ensemble(settings, "gpu")
    condition = len(settings.tasks) - 1
    for seed, step in ((0, 0), (3, 41)):
        seed_key = jax.tree.map(lambda leaf: leaf[0], seed_keys([seed], [condition]))
        drawn = ensemble.source.draw(seed_key, jnp.int32(step))
        batches = (ensemble.sample(seed_key, jnp.int32(step), fed) for fed in (drawn, None))
        jax.tree.map(np.testing.assert_array_equal, *batches)


@pytest.mark.parametrize(
    ("seeds", "how", "steps"),
    [
        (32, {}, 500),
        (1024, {}, 500),
        (32, {"record_every": 20}, 20),
        (8, {"bits": 16}, 2**28 // (4 * 8 * 58981)),
        (8, {"bits": 16, "batch_size": 100}, 2**28 // (4 * 8 * 2 * 58981)),
        (10**5, {"bits": 16}, 1),
    ],
)
def test_steps_ahead_are_limited_by_records_and_memory(seeds, how, steps):
    settings = Settings(**{"seeds": seeds, "record_every": 500, "exact_every": 500, **how}).resolved()
    assert steps_ahead(settings) == steps


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fast", "plain", "lstm"])
def test_members_of_an_accelerator_equal_members_of_a_cpu(x64, engine):
    """The computation chosen for accelerators against that for CPUs, without biases of keys, which have no gradient."""
    how = {"model": "lstm"} if engine == "lstm" else {"engine": engine}
    settings = config(seeds=[4, 0], steps=25, record_every=10, exact_every=20, max_norm=0.5, **how)
    one, other = (
        train(dataclasses.replace(light(settings), **trained_by(settings, platform)), settings.seed_list)
        for platform in ("cpu", "gpu")
    )
    jax.tree.map(
        lambda leaf, same: np.testing.assert_allclose(leaf, same, rtol=1e-9, atol=1e-12),
        ([one.members.state.params[part] for part in ("embed", "head")], one.records),
        ([other.members.state.params[part] for part in ("embed", "head")], other.records),
    )


def trained_by(settings, platform):
    """Return the fields of an ensemble that depend on the platform."""
    ensemble = build_ensemble(settings, platform)
    ahead = platform == "gpu" and settings.model != "lstm"  # an LSTM depends on the order of a batch
    assert isinstance(ensemble.source, DrawAhead) == ahead
    return {name: getattr(ensemble, name) for name in ("sample", "loss", "source", "members")}


def test_default_platform_is_the_backend(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    ensemble = build_ensemble(config())
    assert isinstance(ensemble.source, DrawAhead)
    assert ensemble.members == Vmapped()


@pytest.mark.slow
def test_ties_can_change_between_two_draws(x64):
    """Phases that end at step 7, within the five steps for which batches are drawn at step 5."""
    settings = UntyingSettings(seeds=2, steps=12, record_every=5, exact_every=10, half_period=5, untie_at=[7]).resolved()
    untying = build_untying(settings)
    ahead = build_ensemble(settings, "gpu").source
    assert ahead.steps == 5
    one, other = (
        train(dataclasses.replace(untying, recorders={}, source=source), settings.seed_list) for source in (None, ahead)
    )
    jax.tree.map(np.testing.assert_array_equal, one.members.state.params, other.members.state.params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "word", "platforms"),
    [({"engine": "fast"}, "dot_general", ["cpu", "tpu"]), ({"model": "lstm"}, "while", ["cpu"])],
)
def test_gpu_gradients_have_no_small_products_or_loops(how, word, platforms):
    settings = config(**how)

    def count(platform):
        ensemble = build_ensemble(settings, platform)
        seed_key = jax.tree.map(lambda leaf: leaf[0], seed_keys([0]))
        batch = jax.eval_shape(lambda seed_key: ensemble.sample(seed_key, jnp.int32(0), None), seed_key)
        params = jax.eval_shape(ensemble.init, seed_key.key)
        gradient = jax.jit(jax.grad(lambda params, batch: ensemble.loss(params, batch, None)[0]))
        return gradient.lower(params, batch).as_text().count(f"stablehlo.{word}")

    assert all(count(platform) > 0 for platform in platforms)
    assert count("gpu") == 0


@pytest.mark.parametrize("model", ["transformer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "mixer"))])
def test_ensemble_equals_a_loop_over_single_members(x64, model):
    """Two seeds, tied and untied, against a Python loop without vmap that stores the tied table once."""
    settings = config(seeds=[3, 5], steps=12, record_every=4, exact_every=12, half_period=5, model=model)
    ensemble = light(settings)
    trained = train(ensemble, settings.seed_list)
    losses = trained.records["record"]["train_loss"]
    steps = trained.records["record"]["step"]
    draw, loss, optimizer = jax.jit(ensemble.sample), ensemble.loss, ensemble.optimizer
    for arm, ties in enumerate(([], list(ensemble.ties))):

        @jax.jit
        def start(key, ties=ties):
            stored = tying.store(ensemble.init(key), ties)
            return stored, optimizer.init(stored)

        @jax.jit
        def update(stored, opt_state, batch, ties=ties):
            value, grads = jax.value_and_grad(lambda s: loss(tying.view(s, ties), batch, None)[0])(stored)
            updates, opt_state = optimizer.update(grads, opt_state, stored)
            return value, optax.apply_updates(stored, updates), opt_state

        for place, seed in enumerate(settings.seed_list):
            key = jax.random.key(seed)
            stored, opt_state = start(stream(key, "init"))
            for step in range(settings.steps + 1):
                before = stored
                value, stored, opt_state = update(stored, opt_state, draw(SeedKey(key, jnp.int32(0)), jnp.int32(step), None))
                if step in steps:
                    expected = losses[list(steps).index(step), place, arm]
                    np.testing.assert_allclose(value, expected, rtol=1e-10)
            ours = np.asarray(trained.members.state.params["embed"]["embedding"])[place, arm]
            np.testing.assert_allclose(ours, tying.view(before, ties)["embed"]["embedding"], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_chunks_of_any_length_use_one_compilation():
    settings = config(seeds=2, steps=53, record_every=10, exact_every=30)
    ensemble = build_ensemble(settings)
    members = ensemble.start(settings.seed_list)
    traced = []
    one = ensemble.sample
    object.__setattr__(ensemble, "draw", lambda key, step, fed: traced.append(1) or one(key, step, fed))
    runner = training.compile_ensemble(ensemble, settings.seed_list, members)
    count = len(traced)
    members, records = runner.to_devices(members), []
    for until in (1, 2, 9, 33, 53, 54):
        members, more, _ = runner.advance(members, until)
        records.append(more)
    members = runner.to_host(members)
    assert len(traced) == count
    assert int(members.cursor) == 54
    whole = train(build_ensemble(settings), settings.seed_list)
    for name in ("record", "exact"):
        for field in records[0][name]:
            joined = np.concatenate([part[name][field] for part in records])
            np.testing.assert_array_equal(joined, whole.records[name][field])
    assert whole.records["record"]["step"].tolist() == [0, 10, 20, 30, 40, 50, 53]
    assert whole.records["exact"]["step"].tolist() == [0, 30, 53]
    jax.tree.map(np.testing.assert_array_equal, members.state, whole.members.state)


@pytest.mark.slow
def test_chunks_fit_the_record_buffers():
    settings = config(seeds=1, steps=1000, record_every=2, exact_every=1000)
    ensemble = light(settings)
    assert ensemble.longest_chunk(0) == 2 * (ensemble.records_per_chunk - 1) + 1
    trained = train(ensemble, [0], chunk_s=1e9)
    assert trained.records["record"]["step"].tolist() == [*range(0, 1000, 2), 1000]
    runner = training.compile_ensemble(ensemble, [0], ensemble.start([0]))
    with pytest.raises(ValueError, match="cannot reach"):
        runner.advance(runner.to_devices(ensemble.start([0])), 1001)


@pytest.mark.parametrize(("every", "restart"), [(4, 10), (10, 4), (5, 10), (1, 3), (7, 7), (3, None)])
def test_due_against_a_loop(every, restart):
    """The loop restarts its count in every stretch of `restart` steps."""
    recorder = training.Recorder(every, lambda *_: {}, restart)
    wanted = [step for step in range(200) if (step if restart is None else step % restart) % every == 0]
    assert [step for step in range(200) if recorder.due(step) == step] == wanted
    for place, step in enumerate(wanted[:-9]):
        assert [recorder.due(step, ahead) for ahead in range(9)] == wanted[place : place + 9]
        assert recorder.due(wanted[place + 1] - 1, 2) == wanted[place + 2]
    traced = jax.jit(lambda step: (recorder.due(step), recorder.due(step, 1)))
    for step in (5, 17, 60):
        assert tuple(map(int, traced(jnp.int32(step)))) == (recorder.due(step), recorder.due(step, 1))


def test_restarting_recorder_over_several_chunks():
    """More records than a chunk can buffer, with a shorter interval at the end of a stretch: 0, 4, 8, 10, 14, 18, 20, ...

    Gradient descent on x^2 / 2 at rate .1 from 1: after t updates x is .9^t.
    """
    ensemble = training.Ensemble(
        init=lambda key: {"x": jnp.float32(1)},
        sample=lambda seed_key, step, fed: step,
        loss=lambda params, batch, key: (params["x"] ** 2 / 2, {}),
        optimizer=optax.sgd(0.1),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=33,
        recorders={"record": training.Recorder(4, lambda params, *_: dict(params), restart=10)},
        records_per_chunk=4,
    )
    assert [ensemble.longest_chunk(cursor) for cursor in (0, 5, 10, 31)] == [11, 19, 21, 34]
    found = train(ensemble, [0]).records["record"]
    assert found["step"].tolist() == [0, 4, 8, 10, 14, 18, 20, 24, 28, 30, 33]
    np.testing.assert_allclose(found["x"][:, 0, 0], 0.9 ** found["step"], rtol=1e-5)
    one = train(dataclasses.replace(ensemble, records_per_chunk=1), [0]).records["record"]
    jax.tree.map(np.testing.assert_array_equal, one, found)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": -1}, "expected steps >= 0"),
        ({"records_per_chunk": 0}, "records_per_chunk >= 1"),
        ({"source": ExampleFeed(np.arange(4), 2, window=0)}, "source: expected window >= 1, got 0"),
        ({"source": DrawAhead(lambda *_: {}, 0)}, "source: expected steps >= 1, got 0"),
        (
            {"recorders": {"r": training.Recorder(0, lambda *_: {})}},
            "recorders: r: expected every and restart >= 1, got 0, None",
        ),
    ],
)
def test_numbers_that_no_training_can_have(fields, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(light(config(seeds=1, steps=4)), **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"step": 0.0}, "recorders: r: 'step' is the number of the step"),
        ({"a": {"b": 0.0}}, "recorders: r: expected a dictionary of arrays"),
        ({"a": jax.random.key(0)}, "recorders: r: a is key<fry>, which cannot be stored"),
    ],
)
def test_records_that_no_file_can_hold(fields, words):
    ensemble = light(config(seeds=1, steps=2, record_every=2))
    ensemble = dataclasses.replace(
        ensemble, recorders={"r": training.Recorder(2, lambda *_: jax.tree.map(jnp.asarray, fields))}
    )
    with pytest.raises(ValueError, match=words):
        train(ensemble, [0])


def test_a_record_may_be_a_mapping_of_flax():
    ensemble = light(config(seeds=1, steps=2, record_every=2))
    recorder = training.Recorder(2, lambda params, batch, seed_key, step: flax.core.freeze({"t": step}))
    found = train(dataclasses.replace(ensemble, recorders={"r": recorder}), [0]).records["r"]
    assert found["t"].ravel().tolist() == [0, 0, 2, 2]


def test_random_keys_in_the_state_are_refused():
    noisy = optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1))
    ensemble = dataclasses.replace(light(config(seeds=1, steps=2)), optimizer=noisy)
    with pytest.raises(ValueError, match=r"opt_state.*rng_key of the members is key<fry>, which cannot be stored"):
        train(ensemble, [0])


def test_a_training_is_not_resumed_with_other_recorders(tmp_path):
    ensemble = light(config(seeds=1, steps=20, record_every=4))
    checkpoints = training.Checkpoints(tmp_path / "checkpoints", ensemble.ties, pytest.fail)
    train(ensemble, [0], checkpoints=checkpoints)
    ensemble = dataclasses.replace(ensemble, recorders={"other": training.Recorder(4, lambda *_: {"x": jnp.zeros(())})})
    with pytest.raises(training.CheckpointMismatch, match="belongs to a training with other recorders"):
        train(ensemble, [0], checkpoints=checkpoints, resume=True)
    checkpoints.close()


@pytest.mark.slow
def test_record_of_step_t_follows_t_updates():
    settings = config(seeds=1, steps=3, record_every=1, exact_every=3)
    ensemble, trained = run(settings)
    tables = [np.asarray(ensemble.start([0]).state.params["embed"]["embedding"][0, 0])]
    members = ensemble.start([0])
    for step in range(3):
        state, _ = jax.jit(ensemble.step)(seed_keys([0]), members.state, jnp.int32(step))
        members = members._replace(state=state)
        tables.append(np.asarray(state.params["embed"]["embedding"][0, 0]))
    expected = [np.linalg.norm(table[0] - table[1]) for table in tables]
    np.testing.assert_allclose(trained.records["record"]["distance_input"][:, 0, 0, 0], expected, rtol=1e-6)


@pytest.mark.slow
def test_non_finite_member_does_not_affect_others():
    settings = config(seeds=3)
    ensemble = light(settings)
    healthy = ensemble.start(settings.seed_list)
    state = jax.tree.map(jnp.copy, healthy.state)
    table = state.params["embed"]["embedding"].at[1, 1, 0, 0].set(jnp.nan)
    sick = healthy._replace(state=state._replace(params={**state.params, "embed": {"embedding": table}}), cursor=jnp.int32(0))
    runner = training.compile_ensemble(ensemble, settings.seed_list, healthy)
    after = [runner.advance(runner.to_devices(members), settings.steps + 1) for members in (healthy, sick)]
    others = [(seed, arm) for seed in range(3) for arm in range(2) if (seed, arm) != (1, 1)]
    for seed, arm in others:
        jax.tree.map(
            lambda one, two, at=(seed, arm): np.testing.assert_array_equal(one[at], two[at]),
            after[0][0].state.params,
            after[1][0].state.params,
        )
    finite = after[1][1]["record"]["finite"]
    assert not finite[:, 1, 1].any()
    assert finite[:, [seed for seed, _ in others], [arm for _, arm in others]].all()


@pytest.mark.slow
def test_tied_leaves_stay_bitwise_equal():
    settings = config(steps=200)
    ensemble = light(settings)
    trained = train(ensemble, settings.seed_list)
    params = trained.members.state.params
    np.testing.assert_array_equal(params["embed"]["embedding"][:, 1], params["head"]["embedding"][:, 1])
    ensemble.check(trained.members)
    moved = params["head"]["embedding"].copy()
    moved[0, 1, 0, 0] += 1e-6
    state = trained.members.state._replace(params={**params, "head": {"embedding": moved}})
    with pytest.raises(tying.TieError, match="arm 1 differ"):
        ensemble.check(trained.members._replace(state=state))


def test_clipping_in_the_step_counts_a_tied_pair_once(x64):
    """A clipped step with a switched tie, against optax's clipping on the table stored once."""
    tie = tying.Tie("a", "b")
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([1.0, 2.0]), "c": jnp.array([3.0])}

    def loss(params, batch, key):
        value = jnp.sum(params["a"] * batch) + jnp.sum(params["b"] ** 2) + jnp.sum(params["c"] ** 3)
        return value, {}

    sgd = optax.sgd(0.1)
    step = make_step(loss, sgd, [tie], max_norm=0.5)
    ours, _ = step(TrainState(params, sgd.init(params)), jnp.array([1.0, -1.0]), jax.random.key(0), True)
    stored = tying.store(params, [tie])
    clipped = optax.chain(optax.clip_by_global_norm(0.5), sgd)
    grads = jax.grad(lambda s: loss(tying.view(s, [tie]), jnp.array([1.0, -1.0]), None)[0])(stored)
    updates, _ = clipped.update(grads, clipped.init(stored), stored)
    expected = tying.view(optax.apply_updates(stored, updates), [tie])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), ours.params, expected)


@pytest.mark.slow
def test_an_optimizer_that_would_count_a_tied_pair_twice_is_refused():
    """The commonest recipe clips inside the optimizer; an ensemble of models without ties accepts it."""
    jax.clear_caches()  # of traces in float64 by tests before this one, which jax would reuse
    ensemble = build_ensemble(config())
    clipped = dataclasses.replace(ensemble, optimizer=optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(0.1)))
    refusal = r"tie embed/embedding -> head/embedding: the optimizer's update of .* depends on .*; .* max_norm of Ensemble"
    with pytest.raises(tying.TieError, match=refusal):
        jax.eval_shape(clipped.step, seed_keys([0]), clipped.start([0]).state, jnp.int32(0))
    jax.eval_shape(ensemble.step, seed_keys([0]), ensemble.start([0]).state, jnp.int32(0))


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"dropout": 0.3}, {"optimizer": "adam"}, {"schedule": "constant"}, {"batch_size": 40},
                                    {"weight_decay": 0.0}, {"activation": "relu"}, {"max_norm": 0.1}])  # fmt: skip
def test_every_option_changes_the_trajectory(change):
    base, other = after_20_steps(), after_20_steps(**change)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(other))
    assert (base["embed"]["embedding"] != other["embed"]["embedding"]).any()


@functools.cache
def after_20_steps(**changes):
    """Return the parameters of one seed after 20 steps, enough for the cosine to differ from the constant rate."""
    settings = config(seeds=1, half_period=10, **changes)
    ensemble = build_ensemble(settings)
    state, step = ensemble.start([0]).state, jax.jit(ensemble.step)
    for number in range(20):
        state, _ = step(seed_keys([0]), state, jnp.int32(number))
    return jax.tree.map(np.asarray, state.params)


@pytest.mark.slow
def test_dropout_acts_only_in_training():
    """Validation loss and exact risk at step 0 equal those without dropout; the training loss differs."""
    dropped = run(config(seeds=1, steps=1, record_every=1, exact_every=1, dropout=0.5))[1].records
    plain = run(config(seeds=1, steps=1, record_every=1, exact_every=1, engine="plain"))[1].records
    np.testing.assert_array_equal(dropped["exact"]["cross_entropy"][0], plain["exact"]["cross_entropy"][0])
    np.testing.assert_array_equal(dropped["record"]["validation_frozen_loss"][0], plain["record"]["validation_frozen_loss"][0])
    assert (dropped["record"]["train_loss"][0] != plain["record"]["train_loss"][0]).all()


@pytest.mark.slow
def test_a_short_training_learns():
    """3,000 steps at ten times the default rate take every member below the loss of guessing by frequency."""
    settings = config(seeds=2, steps=3000, record_every=1000, exact_every=3000, learning_rate=5e-3)
    _, trained = run(settings)
    exact = trained.records["exact"]["cross_entropy"][-1, :, :, 0]
    # Guessing each symbol by its frequency alone: ln 2 for the bit, and the entropy of its spelling (.5077 on average).
    assert (exact < 0.6932 + 0.5077 + 0.01).all()
    assert (exact > 0.5077 - 1e-4).all()


def test_gradient_weights_vary_by_arm_and_step():
    """Three arms, against gradient descent on hand-weighted sums of the untied gradients."""
    steps, rate = 3, 0.5

    def init(key):
        return {name: jax.random.normal(stream(key, name), (3,)) for name in ("init", "data")}

    def loss(params, batch, key):
        value = jnp.sum(params["init"] * batch) + jnp.sum(jnp.square(params["data"]))
        return value, {"loss": value}

    def weights(step):
        return jnp.array([[[1.0, 1.0]], [[0.0, 1.0]], [[0.5, 0.25]]]) * jnp.where(step == 2, 2.0, 1.0)

    ensemble = training.Ensemble(
        init=init,
        sample=lambda seed_key, step, fed: jnp.full(3, step + 1.0),
        loss=loss,
        optimizer=optax.sgd(rate),
        ties=[tying.Tie("init", "data")],
        arm_ties=np.array([[False], [True], [True]]),
        steps=steps,
        recorders={},
        gradient_weights=weights,
    )
    params = jax.device_get(train(ensemble, [4]).members.state.params)
    start = jax.device_get(init(stream(jax.random.key(4), "init")))
    for arm, (a, b) in enumerate(((None, None), (0.0, 1.0), (0.5, 0.25))):
        first, second = start["init"], start["data"] if arm == 0 else start["init"]
        for step in range(steps):
            first_grad, second_grad, factor = np.full(3, step + 1.0), 2 * second, 2.0 if step == 2 else 1.0
            if arm:
                first_grad = second_grad = factor * (a * first_grad + b * second_grad)
            first, second = first - rate * first_grad, second - rate * second_grad
        np.testing.assert_allclose(params["init"][0, arm], first, rtol=1e-5)
        np.testing.assert_allclose(params["data"][0, arm], second, rtol=1e-5)


@pytest.mark.slow
def test_exor_gradient_weights_1_0_equal_an_owner_tie():
    """Weights (1, 0) for the uses as input and output table are `Tie(gradient="source")`."""
    asked = light(config(gradient_weights=[1, 0]))
    owner = dataclasses.replace(light(config()), ties=[tying.Tie("embed/embedding", "head/embedding", gradient="source")])
    both, weighed, by_owner = (train(ensemble, [3]).records["record"] for ensemble in (light(config()), asked, owner))
    np.testing.assert_array_equal(weighed["output"], by_owner["output"])
    assert (weighed["output"][-1, 0, 1] != both["output"][-1, 0, 1]).any()
    np.testing.assert_array_equal(weighed["output"][-1, 0, 0], both["output"][-1, 0, 0])
