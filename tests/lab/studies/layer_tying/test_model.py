"""Tests of the model: parity with GPT-2 of transformers, causality, initial values, published parameter counts."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpt2_names import named

from tiejax import tying
from tiejax.lab.settings import command_line
from tiejax.lab.studies.layer_tying.model import STACK, build, build_model, facts_of_model, initial, make_loss
from tiejax.lab.studies.layer_tying.settings import STUDY, Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import TABLE_PATHS
from tiejax.training.stack import stack_of

VOCABULARY, CONTEXT = 13, 7
CONFIGS = Path(__file__).parents[4] / "configs" / "layer_tying"


def settings_of(**changed):
    fields = {"layers": 3, "width": 8, "heads": 2, "context": CONTEXT, "batch_size": 2}
    return Settings(**fields | changed).resolved()


def model_and_params(owner=None, **changed):
    settings = settings_of(**changed)
    model = build_model(settings, VOCABULARY)
    own = np.arange(settings.layers) if owner is None else np.unique(owner)
    params = jax.jit(initial(settings, model))(jax.random.key(0), own)
    # About as far from their initial values as after training, including biases and scales.
    leaves, treedef = jax.tree.flatten(params)
    rng = np.random.default_rng(1)
    drawn = [jnp.asarray(leaf + 0.3 * rng.normal(size=leaf.shape), jnp.float32) for leaf in leaves]
    params = jax.tree.unflatten(treedef, drawn)
    ties = [tying.Tie(*TABLE_PATHS)]
    return model, tying.view(tying.store(params, ties), ties)


def tokens(number=0):
    return np.random.default_rng(number).integers(0, VOCABULARY, (2, CONTEXT)).astype(np.int32)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_parity_with_gpt2_of_transformers(activation):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model, params = model_and_params(activation=activation)
    settings = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=8,
        n_layer=3,
        n_head=2,
        activation_function={"gelu": "gelu", "gelu_tanh": "gelu_new"}[activation],
    )
    theirs = transformers.GPT2LMHeadModel(settings).eval()
    state = named(params, range(3))
    state["lm_head.weight"] = state["transformer.wte.weight"]
    theirs.load_state_dict({name: torch.tensor(leaf) for name, leaf in state.items()}, strict=True)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens(), dtype=torch.long)).logits.numpy()
    found = jax.jit(model.apply)({"params": params}, tokens())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "objective"), [("gpt2", "causal"), ("bert", "causal"), ("bert", "masked")])
def test_causal_models_see_earlier_tokens_and_masked_models_all(architecture, objective):
    model, params = model_and_params(architecture=architecture, objective=objective)
    owner = tying.check_owner([0, 0, 2])

    @jax.jit
    def seen(table):
        """Return the gradient of the logits at the fourth position with respect to the embeddings."""

        def logits(rows):
            used = {**params, "embed": {"embedding": rows}}
            return jnp.sum(jnp.sin(model.apply({"params": used}, jnp.arange(CONTEXT)[None], owner=owner)[0, 3]))

        return jax.grad(logits)(table)

    gradient = np.abs(seen(params["embed"]["embedding"])[:CONTEXT]).sum(-1)
    assert (gradient > 0).tolist() == ([True] * 4 + [False] * 3 if objective == "causal" else [True] * CONTEXT)


@pytest.mark.parametrize(("details", "predictions"), [("own", CONTEXT - 1), ("published", CONTEXT)])
def test_published_details_predict_the_end_token_after_every_block(details, predictions):
    settings, begin = settings_of(details=details), 4
    model, params = model_and_params(details=details)
    assert params["positions"]["embedding"].shape == (predictions + 1, 8)
    ids, every = tokens(), np.arange(3, dtype=np.int32)
    batch = BlockBatch(ids, np.ones(2, np.float32), jax.random.key(0))
    loss = jax.jit(make_loss(settings, model, VOCABULARY, begin), static_argnums=2)
    found = loss(params, batch, None, every, np.ones(3, bool))
    logits = np.asarray(jax.jit(model.apply)({"params": params}, ids), np.float64)
    following = np.concatenate([ids[:, 1:], np.full((2, 1), begin)], axis=1)
    nats = [
        np.log(np.exp(logits[row, position]).sum()) - logits[row, position, following[row, position]]
        for row in range(2)
        for position in range(predictions)
    ]
    assert float(found) == pytest.approx(np.mean(nats), rel=1e-5)


def test_bert_has_as_many_positions_as_the_context_with_published_details():
    _, params = model_and_params(architecture="bert", details="published")
    assert params["positions"]["embedding"].shape == (CONTEXT, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "of_all"), [({}, 0.02), ({"initial_std": 0.08}, 0.08)])
def test_initial_values_are_gpt2s(changed, of_all):
    settings = settings_of(layers=8, width=64, heads=2, **changed)
    params = jax.jit(initial(settings, build_model(settings, 500)))(jax.random.key(0), np.arange(8))
    stack = stack_of(params, STACK)
    expected = {"qkv": of_all, "out": of_all / 4, "feed_forward_in": of_all, "feed_forward_out": of_all / 4}
    for name, std in expected.items():
        assert np.asarray(stack[name]["kernel"]).std() == pytest.approx(std, rel=0.02)
        assert not np.asarray(stack[name]["bias"]).any()
    for name in ("embed", "head", "positions"):
        assert np.asarray(params[name]["embedding"]).std() == pytest.approx(of_all, rel=0.1)
    # Layers are initialised independently.
    assert abs(np.corrcoef(*(np.asarray(stack["qkv"]["kernel"][layer]).ravel() for layer in (0, 1)))[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("file", "parameters"),
    # 12 w^2 + 13 w per layer, the tables of tokens and positions (1,025 with the published details), the final norm; BERT as
    # transformers counts it (test_bert.py).
    [("published_code", 450_944_000), ("paper", 1_557_612_800), ("bert_causal", 124_690_513)],
)
def test_configurations_have_the_published_parameter_counts(file, parameters):
    path = CONFIGS / f"{file}.yaml"
    settings, _ = command_line.parse(Settings, STUDY.command, ["--config", str(path)])
    found = facts_of_model(settings.resolved(), 50_257)
    assert found["parameters_untied"] == parameters


@pytest.mark.slow
def test_half_precision_computation_keeps_weights_and_moments_in_float32():
    """After a step parameters and moments are float32, and the loss equals that of float32 to the precision of bfloat16."""
    losses = {}
    for name in ("float32", "bfloat16"):
        layered = build(settings_of(compute_dtype=name), VOCABULARY, 0, jax.devices()[:1])
        owner = tying.independent(3)
        batch = BlockBatch(tokens().astype(np.uint16), np.ones(2, np.float32), jax.random.key(0))
        wiring = tying.wiring(tying.LayerTies(owner, np.ones(3, bool), owner), "compact", "all", "resolved")
        state, loss = layered.step(layered.start(jax.random.key(0), owner), batch, jax.random.key(0), wiring)
        kinds = {leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)}
        assert kinds == {jnp.dtype("float32")}
        losses[name] = float(loss)
    assert losses["float32"] != losses["bfloat16"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=2**-8)
