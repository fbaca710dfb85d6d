"""The fast engine against the plain engine, and an ensemble of doses against runs of single doses."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from tiejax import training, tying
from tiejax.lab.studies.exor.ensemble import build_ensemble, build_model
from tiejax.lab.studies.exor.settings import Settings
from tiejax.models import multiset


def light(settings):
    """Return the ensemble with a single cheap record: EXor's own recorders dominate compile time."""
    finite = training.Recorder(
        settings.record_every, lambda params, batch, seed_key, step: {"finite": training.all_finite(params)}
    )
    return dataclasses.replace(build_ensemble(settings), recorders={"record": finite})


TABLES = {"table_std": 0.5, "table_decay": 0.3, "table_rate": 2.0, "shared_second_moment": True, "equal_tables": True}


def trained_by_both(arm, variant, **fields):
    """Train both engines with their recorders; assert equal records, and return the settings and the members of both."""
    trained = {}
    for engine in ("plain", "fast"):
        settings = Settings(engine=engine, layers=1, seeds=2, record_every=10, variant=variant, **fields, **arm).resolved()
        ensemble = build_ensemble(settings) if "exact_every" in fields else light(settings)
        trained[engine] = training.train(ensemble, settings.seed_list)
    for name, recorded in trained["plain"].records.items():
        for field, expected in recorded.items():
            np.testing.assert_allclose(trained["fast"].records[name][field], expected, rtol=1e-9, atol=1e-11, err_msg=field)
    return settings, *(trained[engine].members.state.params for engine in ("plain", "fast"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["main", "dh"])
def test_both_engines_record_an_arm_equally(x64, variant):
    trained_by_both({"output_bias": True, "softmax": "asked"}, variant, steps=20, exact_every=10)


@pytest.mark.parametrize(
    ("variant", "arm"),
    [
        ("main", {"output_bias": True}),
        pytest.param("dh", {"softmax": "asked"}, marks=pytest.mark.slow),
        pytest.param("main", TABLES, marks=pytest.mark.slow),
        pytest.param("main", {"softmax": "asked"}, marks=pytest.mark.slow),
        pytest.param("dh", {"output_bias": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_both_engines_train_arms_equally(x64, variant, arm):
    settings, plain, fast = trained_by_both(arm, variant, steps=20)
    for name in ("embed", "head"):
        assert plain[name].keys() == fast[name].keys()
        for leaf, expected in plain[name].items():
            np.testing.assert_allclose(fast[name][leaf], expected, rtol=1e-9, atol=1e-11, err_msg=f"{name}/{leaf}")
    start = light(settings).start(settings.seed_list).state.params
    untied = (np.asarray(start[name]["embedding"][:, 0]) for name in ("embed", "head"))
    assert np.array_equal(*untied) == arm.get("equal_tables", False)
    assert np.abs(np.asarray(plain["head"]["embedding"]) - np.asarray(start["head"]["embedding"])).max() > 1e-3
    assert ("bias" in fast["head"]) == ("output_bias" in arm)
    if "bias" in fast["head"]:
        assert (np.abs(np.asarray(fast["head"]["bias"])) > 1e-6).all()


def test_symbols_that_are_no_outcomes_have_no_bias_to_learn(x64):
    """Their biases have no gradient, and weight decay leaves a bias of 0 at 0."""
    settings = Settings(layers=1, seeds=2, steps=20, record_every=20, output_bias=True, softmax="asked").resolved()
    bias = np.asarray(training.train(light(settings), settings.seed_list).members.state.params["head"]["bias"])
    asked = np.isin(np.arange(bias.shape[-1]), settings.tasks[0].asked)
    assert ((np.abs(bias) > 1e-6).all((0, 1)) == asked).all()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["main", "dh"])
def test_1000_steps_of_both_engines_from_the_same_batches(x64, variant):
    """`main` has more multisets than strings (one column per visit), `dh` has fewer (one column per multiset)."""
    fields = {"seeds": 2, "steps": 1000, "record_every": 250, "exact_every": 250, "variant": variant}
    trained = {}
    for engine in ("plain", "fast"):
        settings = Settings(engine=engine, **fields).resolved()
        trained[engine] = training.train(build_ensemble(settings), settings.seed_list)
    for name, fields in trained["plain"].records.items():
        for field, expected in fields.items():
            np.testing.assert_allclose(trained["fast"].records[name][field], expected, rtol=1e-7, atol=1e-9, err_msg=field)
    plain, fast = (trained[engine].members.state.params for engine in ("plain", "fast"))
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(fast), jax.tree.leaves(plain), strict=True):
        # The gradient of the key bias is zero: AdamW turns rounding errors into arbitrary steps, without effect on the loss.
        seen = np.r_[0:4, 8:12] if "qkv" in str(path) and "bias" in str(path) else np.s_[:]
        np.testing.assert_allclose(one[..., seen], other[..., seen], rtol=0, atol=1e-7, err_msg=str(path))
    start = build_ensemble(settings).start(settings.seed_list).state.params["embed"]["embedding"]
    assert np.abs(np.asarray(plain["embed"]["embedding"]) - np.asarray(start)).max() > 0.01


@pytest.mark.slow
def test_dose_in_an_ensemble_equals_a_run_with_its_distribution():
    """Members (dose, seed) against ensembles with a single distribution: equal batches, losses equal up to rounding."""
    fields = {"seeds": [3, 5], "steps": 60, "record_every": 20, "exact_every": 20}
    settings = Settings(doses=[0.5, 0.9], **fields).resolved()
    conditions, seeds = zip(*settings.seeds_by_condition, strict=True)
    assert (conditions, seeds) == ((0, 0, 1, 1), (3, 5, 3, 5))
    records = training.train(build_ensemble(settings), seeds, conditions=conditions).records
    for number, dose in enumerate(settings.doses):
        alone = Settings(zero=[dose, 1 - dose], one=[0.5, 0.5], **fields).resolved()
        expected = training.train(build_ensemble(alone), alone.seed_list).records
        selected = slice(2 * number, 2 * number + 2)
        for name in ("train_loss", "validation_redrawn_loss", "validation_frozen_loss", "distance_output"):
            np.testing.assert_allclose(records["record"][name][:, selected], expected["record"][name], rtol=1e-5, atol=1e-6)
        for name, values in expected["exact"].items():
            if name != "step":
                np.testing.assert_allclose(records["exact"][name][:, selected], values, rtol=1e-4, atol=1e-5, err_msg=name)
    assert (records["record"]["train_loss"][:, :2] != records["record"]["train_loss"][:, 2:]).all()


@pytest.mark.parametrize("fields", [{}, {"dropout": 0.1}, {"model": "lstm"}, {"model": "mixer"}], ids=str)
def test_settings_and_model_agree_on_the_fast_engine(fields):
    """Settings are checked before JAX is imported, so the rule exists twice."""
    settings = Settings(**fields).resolved()
    try:
        multiset.check(build_model(settings))
        assert settings.engine == "fast"
    except multiset.NotExact:
        assert settings.engine == "plain"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm", [TABLES, {"output_bias": True}, {"softmax": "asked"}, {"gradient_weights": [4.0, 1.0]}], ids=str
)
def test_tied_tables_train_as_one_stored_table(x64, arm):
    """Both leaves of a tie against `view(stored)`, in which there is one table, with one state of the optimizer."""
    settings = Settings(seeds=1, bits=3, layers=1, steps=6, record_every=6, exact_every=6, **arm).resolved()
    ensemble = light(settings)
    found = training.train(ensemble, [0]).members.state.params
    assert np.array_equal(found["embed"]["embedding"][0, 1], found["head"]["embedding"][0, 1])

    ties = ensemble.ties
    stored = tying.store(jax.tree.map(lambda leaf: leaf[0, 1], ensemble.start([0]).state.params), ties)
    (seed_key,) = jax.tree.map(lambda leaf: leaf[0], [training.seed_keys([0])])
    opt_state = ensemble.optimizer.init(stored)

    @jax.jit
    def step(stored, opt_state, number):
        batch = ensemble.sample(seed_key, number, None)
        grads = jax.grad(lambda stored: ensemble.loss(tying.view(stored, ties), batch, None)[0])(stored)
        updates, opt_state = ensemble.optimizer.update(grads, opt_state, stored)
        return optax.apply_updates(stored, updates), opt_state

    for number in range(settings.steps):
        stored, opt_state = step(stored, opt_state, number)
    for name in ("embed", "head"):
        for leaf, expected in stored[name].items():
            if expected is not None:
                np.testing.assert_allclose(found[name][leaf][0, 1], expected, rtol=1e-9, atol=1e-12, err_msg=f"{name}/{leaf}")


@pytest.mark.slow
def test_only_the_ratio_of_gradient_weights_matters(x64):
    """Adam's steps do not depend on the scale of a gradient: (4, 1), renormalised so that both sum to 2, is (1.6, .4)."""
    trained = {}
    for weights in ((4.0, 1.0), (1.6, 0.4), (1.0, 4.0)):
        settings = Settings(
            seeds=1, bits=3, layers=1, steps=20, record_every=20, exact_every=20, gradient_weights=list(weights)
        ).resolved()
        trained[weights] = np.asarray(training.train(light(settings), [0]).members.state.params["embed"]["embedding"])
    np.testing.assert_allclose(trained[4.0, 1.0], trained[1.6, 0.4], rtol=1e-7)
    assert np.abs(trained[4.0, 1.0][0, 1] - trained[1.0, 4.0][0, 1]).max() > 1e-4
    np.testing.assert_array_equal(trained[4.0, 1.0][0, 0], trained[1.0, 4.0][0, 0])  # untied


def test_tables_start_with_the_chosen_deviation():
    start = {std: build_ensemble(Settings(seeds=2, table_std=std).resolved()).start([0, 1]).state.params for std in (1.0, 0.25)}
    np.testing.assert_allclose(start[0.25]["embed"]["embedding"], 0.25 * start[1.0]["embed"]["embedding"], rtol=1e-6)
    for one, other in zip(jax.tree.leaves(start[0.25]["encoder"]), jax.tree.leaves(start[1.0]["encoder"]), strict=True):
        np.testing.assert_array_equal(one, other)
