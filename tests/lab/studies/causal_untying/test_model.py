"""Sizes, schedule and losses of the models."""

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from gpt2_names import named

from tiejax.lab.comparison.arms import Change
from tiejax.lab.studies.causal_untying import plan
from tiejax.lab.studies.causal_untying.model import (
    Objective,
    _excess,
    build_model,
    held_out,
    optimizer_of,
    schedule_of,
    size_of,
)
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.models import counts
from tiejax.pretraining.loss import Head
from tiejax.text import planted_pairs
from tiejax.text.planted_pairs import CHOICES, Planting

SETTINGS = Settings(corpus=["x"], vocab_size=60, layers=2, width=16, heads=4, context=8, out="out").resolved()
ARMS = {arm.name: arm for arm in SETTINGS.arms}


def leaves_of(name):
    model = build_model(SETTINGS, 60, ARMS[name])
    objective = Objective(model, np.zeros(60, np.int32), 1)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(params)), params


@pytest.mark.parametrize("name", ["tied", "never-equal", "tied-wide"])
def test_parameters_are_those_of_the_model(name):
    number, params = leaves_of(name)
    once = params["head"]["embedding"].size if ARMS[name].tied else 0
    assert size_of(SETTINGS, 60, ARMS[name]).parameters == number - once


def test_the_wide_model_has_the_parameters_of_the_untied_one():
    """At 4 layers of width 128: within 1 %, 160 wide."""
    study = Settings(corpus=["x"], layers=4, width=128).resolved()
    wide, untied = (size_of(study, 4096, ARMS[name]) for name in ("tied-wide", "never-equal"))
    assert wide.width == 160
    assert wide.parameters == pytest.approx(untied.parameters, rel=0.001)
    assert untied.parameters == 2 * 4096 * 128 + 128 * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128


@pytest.mark.slow
def test_the_deep_model_has_the_parameters_of_the_untied_one():
    """At the size of the study a table has 1.3 times the parameters of a layer: one more layer, and wider feed-forward ones."""
    study = Settings(corpus=["x"]).resolved()
    deep, untied = (size_of(study, 1024, plan.Arm(name, tied, deep=tied)) for name, tied in (("deep", True), ("never", False)))
    assert (deep.layers, deep.width, untied.layers) == (3, 64, 2)
    assert deep.parameters == pytest.approx(untied.parameters, rel=0.001)
    params = build_model(study, 1024, plan.Arm("deep", True, deep=True)).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert sum(sizes) - 1024 * 64 == deep.parameters  # with both tables


def test_gpt2_has_its_published_number_of_parameters():
    """124,439,808, the number of the released model."""
    assert counts.gpt2(50_257, 12, 768, 3072, 1024, tied=True) == 124_439_808


def test_the_learning_rate_is_constant_at_every_fork():
    rate = schedule_of(300, cosine=False)
    at = {step: float(rate(jnp.int32(step))) for step in (0, 5, 6, 50, 100, 200, 239, 240, 270, 299)}
    assert at == pytest.approx({0: 1 / 6, 5: 1, 6: 1, 50: 1, 100: 1, 200: 1, 239: 1, 240: 1, 270: 0.5, 299: 1 / 60})


def test_a_longer_run_begins_as_the_others_do():
    """Its rate falls from step 360 of 450 on."""
    rate, longer = schedule_of(300, cosine=False), schedule_of(300, cosine=False, horizon=Fraction(3, 2))
    assert [float(longer(jnp.int32(step))) for step in range(240)] == [float(rate(jnp.int32(step))) for step in range(240)]
    at = {step: float(longer(jnp.int32(step))) for step in (240, 359, 360, 405, 449)}
    assert at == pytest.approx({240: 1, 359: 1, 360: 1, 405: 0.5, 449: 1 / 90})


CHANGES = [(Change(), 2.0, 2.0), (Change(rate=4.0), 2.0, 8.0), (Change(new="source", rate=4.0), 8.0, 2.0)]


@pytest.mark.parametrize(("change", "of_input", "of_output"), CHANGES)
def test_tables_have_a_learning_rate_of_their_own(change, of_input, of_output):
    """Each leaf is updated by optax's AdamW at its own rate; in the first of 50 steps the schedule is 1."""
    optimizer = optimizer_of(SETTINGS, 50, dataclasses.replace(ARMS["tied"], change=change))
    rates = {"embed/embedding": of_input, "head/embedding": of_output, "block/kernel": 0.5, "block/bias": 0.5}
    rng = np.random.default_rng(0)
    params, grads = (traverse_util.unflatten_dict({path: rng.normal(size=(3, 2)) for path in rates}, "/") for _ in range(2))
    state = optimizer.init(params)._replace(rates=jnp.array([0.5, 2.0]))
    updates, _ = optimizer.update(grads, state, params)
    for path, rate in rates.items():
        one, gradient, found = (traverse_util.flatten_dict(tree, sep="/")[path] for tree in (params, grads, updates))
        plain = optax.adamw(rate, 0.9, 0.95, 1e-8, weight_decay=0.1 if path == "block/kernel" else 0.0)
        expected, _ = plain.update(gradient, plain.init(one), one)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_the_input_table_of_the_factorised_model_has_half_the_width():
    arm = next(arm for arm in plan.arms_of(SETTINGS.forks, ["factorised"]) if arm.factorised)
    objective = Objective(build_model(SETTINGS, 60, arm), np.zeros(60, np.int32), 1)
    params = objective.init(jax.random.key(0))
    assert params["embed"]["embedding"].shape == (60, 8)
    assert params["head"]["embedding"].shape == (60, 16)
    assert size_of(SETTINGS, 60, arm).parameters == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert set(objective.record(params, jnp.zeros((2, 8), int))) == {"loss", "finite"}


def test_the_cosine_falls_to_0():
    rate = schedule_of(300, cosine=True)
    assert [float(rate(jnp.int32(step))) for step in (6, 153, 300)] == pytest.approx([1, 0.5, 0], abs=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_are_those_of_transformers(tied):
    """In float64, for a model whose parameters are about as far from their initial values as after training."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = build_model(SETTINGS, 60, ARMS["never-equal"])
    objective = Objective(model, np.zeros(60, np.int32), 1)
    tokens = np.random.default_rng(0).integers(0, 60, (3, 8))
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        first = objective.init(jax.random.key(0))
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * rng.normal(size=leaf.shape)), first)
        if tied:
            params["head"]["embedding"] = params["embed"]["embedding"]
        loss, grads = jax.value_and_grad(objective.mean)(params, jnp.asarray(tokens))
        ours = {name: np.asarray(leaf) for name, leaf in named(grads, range(2)).items()}
        head = np.asarray(grads["head"]["embedding"])
        given = named(params, range(2)) | {"lm_head.weight": np.asarray(params["head"]["embedding"])}
    assert head.dtype == np.float64
    sizes = {"vocab_size": 60, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 4}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **drop, tie_word_embeddings=tied, attn_implementation="eager")
    theirs = transformers.GPT2LMHeadModel(config).double()
    theirs.load_state_dict({name: torch.tensor(leaf) for name, leaf in given.items()}, strict=True)
    inputs = torch.tensor(tokens)
    logits = theirs(inputs).logits[:, :-1]  # with labels=..., its loss would be computed in float32
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 60), inputs[:, 1:].reshape(-1))
    expected.backward()
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=1e-12)
    of_theirs = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
    if tied:  # torch adds the gradients of both uses
        ours["transformer.wte.weight"] = ours["transformer.wte.weight"] + head
    else:
        np.testing.assert_allclose(head, of_theirs.pop("lm_head.weight"), atol=1e-12)
    for name, gradient in of_theirs.items():
        np.testing.assert_allclose(ours[name], gradient, atol=1e-12, err_msg=name)


@pytest.mark.slow
def test_sums_by_bucket_are_those_of_the_logits():
    objective = Objective(build_model(SETTINGS, 60, ARMS["never-equal"]), np.arange(60, dtype=np.int32) % 3, 3)
    params = objective.init(jax.random.key(1))
    blocks = np.random.default_rng(0).integers(0, 60, (5, 8))
    text = Text(None, blocks, blocks, objective.bucket, ["all"], 0.0)
    count, nats = (objective.sums(params, held_out(text, 2))[name] for name in ("count", "nats"))
    logits = np.asarray(objective.model.apply({"params": params}, jnp.asarray(blocks)), float)[:, :-1]
    each = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, blocks[:, 1:, None], -1)[..., 0]
    expected = [each[blocks[:, 1:] % 3 == bucket].sum() for bucket in range(3)]
    np.testing.assert_allclose(nats, expected, rtol=1e-5)
    np.testing.assert_allclose(count, [(blocks[:, 1:] % 3 == bucket).sum() for bucket in range(3)])


def test_validation_blocks_are_spread_over_the_split():
    blocks = np.arange(10)[:, None] * np.ones(4, int)
    text = Text(None, blocks, blocks, np.zeros(10, int), ["all"], 0.0)
    tokens, weight, _ = held_out(text, 2, most=5)
    assert tokens[..., 0].ravel().tolist() == [0, 2, 4, 6, 8, 0]
    assert weight.ravel().tolist() == [1, 1, 1, 1, 1, 0]


PLANTED = Planting(20, {"holding": (1, 2), "constant": (3, 4), "contextual": (5, 6)}, (7, 8), 2, ((9, 10),))
ENDS = np.arange(20) == 0


def planted_text(rng):
    """Blocks of 12 tokens with markers, twins and ciphers."""
    marked = planted_pairs.with_markers(PLANTED, rng.integers(0, 20, 600), ENDS, 1.0, rng)
    blocks = marked[: len(marked) // 12 * 12].reshape(-1, 12)
    return planted_pairs.write(PLANTED, blocks, ENDS, rng)


def test_an_optimal_model_has_no_excess_loss():
    """States are random, as wide as there are places; least squares give the output table with the known log-probabilities.

    The logits of a certain choice, which would be infinite, are equal instead.
    """
    blocks = planted_text(np.random.default_rng(3))
    made = planted_pairs.choices(PLANTED, blocks, ENDS)
    places = blocks[:, 1:].size
    states = np.random.default_rng(4).normal(size=(places, places))
    wanted = np.zeros((places, PLANTED.vocabulary))
    first, second, p = (values[:, 1:].ravel() for values in made[1:])
    certain = (p == 0) | (p == 1)
    safe = np.where(certain, 0.5, p)
    wanted[np.arange(places), first], wanted[np.arange(places), second] = np.log(1 - safe), np.log(safe)
    table = np.linalg.lstsq(states, wanted, rcond=None)[0].T
    kind = made.kind[:, 1:].ravel()
    with jax.enable_x64(True):
        flat = planted_pairs.Choices(*(jnp.asarray(values[:, 1:].ravel()) for values in made))
        excess = np.asarray(_excess(Head(jnp.asarray(table)), jnp.asarray(states), flat))
        worse = np.asarray(_excess(Head(jnp.asarray(table * 0)), jnp.asarray(states), flat))
    chosen = (kind >= 0) & ~certain
    assert {CHOICES[kind] for kind in np.unique(kind[chosen])} == {"holding", "constant", "contextual", "reverse"}
    np.testing.assert_allclose(excess[chosen], 0, atol=1e-9)
    entropy = -(p * np.log(safe) + (1 - p) * np.log(1 - safe))
    np.testing.assert_allclose(worse[chosen], np.log(2) - entropy[chosen], atol=1e-9)
    np.testing.assert_allclose(worse[certain & (kind >= 0)], np.log(2))


@pytest.mark.slow
def test_excess_losses_are_summed_by_kind():
    """Of a model with a bias of the logits, from its logits."""
    blocks = planted_text(np.random.default_rng(5))
    settings = dataclasses.replace(SETTINGS, context=12)
    model = build_model(settings, PLANTED.vocabulary, plan.Arm("biased", False, bias=True))
    objective = Objective(model, np.zeros(PLANTED.vocabulary, np.int32), 1)
    params = objective.init(jax.random.key(2))
    params["head"]["bias"] = jax.random.normal(jax.random.key(3), (PLANTED.vocabulary,))
    text = Text(None, blocks, blocks, objective.bucket, ["all"], 0.0, PLANTED, ENDS)
    sums = objective.sums(params, jax.tree.map(jnp.asarray, held_out(text, 4)))
    logits = np.asarray(model.apply({"params": params}, jnp.asarray(blocks)), float)[:, :-1]
    kind, first, second, p = (values[:, 1:] for values in planted_pairs.choices(PLANTED, blocks, ENDS))
    margin = np.take_along_axis(logits, second[..., None], -1) - np.take_along_axis(logits, first[..., None], -1)
    q = 1 / (1 + np.exp(-margin[..., 0]))
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.nan_to_num(p * np.log(p / q)) + np.nan_to_num((1 - p) * np.log((1 - p) / (1 - q)))
    for number in range(len(CHOICES)):
        np.testing.assert_allclose(sums["excess"][number], divergence[kind == number].sum(), rtol=2e-4)
        assert sums["choices"][number] == (kind == number).sum()


@pytest.mark.slow
def test_distances_of_pairs_are_recorded():
    objective = Objective(build_model(SETTINGS, 60, ARMS["never-equal"]), np.zeros(60, np.int32), 1, np.array([[1, 2], [5, 3]]))
    params = objective.init(jax.random.key(1))
    recorded = objective.record(params, jnp.zeros((2, 8), int))
    for field, name in (("pair_input", "embed"), ("pair_output", "head")):
        table = np.asarray(params[name]["embedding"])
        np.testing.assert_allclose(recorded[field], [np.linalg.norm(table[1] - table[2]), np.linalg.norm(table[5] - table[3])])
