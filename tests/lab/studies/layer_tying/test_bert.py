"""Causal BERT, as in the published code, against `transformers.BertLMHeadModel`.

The published model is that class with its default configuration and GPT-2's vocabulary.
"""

import functools
from pathlib import Path

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import tying
from tiejax.checkpoints.hub import parameter_names
from tiejax.lab.settings import command_line
from tiejax.lab.studies.layer_tying.model import STACK, build_model, initial, make_loss
from tiejax.lab.studies.layer_tying.settings import STUDY, Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models import TABLE_PATHS
from tiejax.training.layered_adamw import LayeredAdamW
from tiejax.training.stack import stack_of

VOCABULARY, CONTEXT, LAYERS, PADDING = 13, 7, 3, 0
PRESET = Path(__file__).parents[4] / "configs" / "layer_tying" / "bert_causal.yaml"
TABLES = [tying.Tie(*TABLE_PATHS)]
INDEPENDENT, TIED = [0, 1, 2], [0, 0, 2]
SMALL = {"architecture": "bert", "layers": LAYERS, "width": 8, "heads": 2, "feed_forward": 20, "context": CONTEXT}


def preset(**changed):
    settings, _ = command_line.parse(Settings, STUDY.command, ["--config", str(PRESET)])
    return Settings(**{**vars(settings), **changed}).resolved()


def stored_and_model(settings, vocabulary, owners):
    """Return stored parameters, about as far from their initial values as after training, and the model."""
    model = build_model(settings, vocabulary)
    params = jax.jit(initial(settings, model))(jax.random.key(0), np.array(owners))
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * rng.normal(size=leaf.shape), jnp.float32), params)
    return tying.store(params, TABLES), model


def tokens(number=0):
    drawn = np.random.default_rng(number).integers(0, VOCABULARY, (2, CONTEXT)).astype(np.int32)
    drawn[:, 3] = PADDING
    return drawn


def by_path(params):
    return flax.traverse_util.flatten_dict(params, sep="/")


def library():
    """Import transformers and torch, or skip the test."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    return transformers, torch


def theirs_with(params, torch, transformers):
    """Return the transformers model with our parameters, one layer per slot; without its cache, which numbers the layers."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=CONTEXT, is_decoder=True, use_cache=False,
    )  # fmt: skip
    theirs = transformers.BertLMHeadModel(config).eval()
    arrays = {path: np.asarray(leaf) for path, leaf in by_path(params).items()}
    state = {}
    for slot in parameter_names.slots(parameter_names.BERT, list(arrays), "bert.", range(LAYERS)):
        state |= dict.fromkeys(slot.names, torch.tensor(parameter_names.view(arrays[slot.path], slot).copy()))
    names = theirs.state_dict().keys()
    theirs.load_state_dict({name: leaf for name, leaf in state.items() if name in names}, strict=True)
    return theirs


def copy_layer(theirs, layer, source, stops):
    """Make a layer use the weights of another; with `stops` it sends them no gradient, as in the published code."""
    stack = theirs.bert.encoder.layer
    if not stops:
        stack[layer] = stack[source]
        return
    for parameter, other in zip(stack[layer].parameters(), stack[source].parameters(), strict=True):
        parameter.data = other.data
        parameter.requires_grad = False


def loss_of(theirs, rows, torch):
    rows = torch.tensor(rows, dtype=torch.long)
    logits = theirs(rows).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))


def batch_of(rows):
    return BlockBatch(jnp.asarray(rows), jnp.ones(len(rows)), jax.random.key(0))


@pytest.mark.parity
@pytest.mark.parametrize(("owner", "stops"), [(INDEPENDENT, False), (TIED, False), (TIED, True)])
def test_logits_loss_and_gradients_match_transformers(owner, stops):
    transformers, torch = library()
    settings = Settings(**SMALL, padding=PADDING, batch_size=2).resolved()
    stored, model = stored_and_model(settings, VOCABULARY, INDEPENDENT)
    theirs = theirs_with(tying.view(stored, TABLES), torch, transformers)
    if owner == TIED:
        copy_layer(theirs, 1, 0, stops)
    reads, sends = jnp.array(owner, jnp.int32), jnp.array([True, not stops, True])

    with torch.no_grad():
        expected = theirs(torch.tensor(tokens(), dtype=torch.long)).logits.numpy()
    with jax.default_matmul_precision("highest"):
        found = jax.jit(functools.partial(model.apply, owner=reads))({"params": tying.view(stored, TABLES)}, tokens())
        loss = make_loss(settings, model, VOCABULARY, 0)
        value, gradient = jax.jit(
            jax.value_and_grad(lambda stored: loss(tying.view(stored, TABLES), batch_of(tokens()), None, reads, sends))
        )(stored)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    library_loss = loss_of(theirs, tokens(), torch)
    library_loss.backward()
    np.testing.assert_allclose(value, library_loss.item(), rtol=1e-5)
    gradients = {name: leaf.grad for name, leaf in theirs.named_parameters() if leaf.grad is not None}
    arrays, compared = {path: np.asarray(leaf) for path, leaf in by_path(gradient).items() if leaf is not None}, set()
    largest = max(leaf.abs().max().item() for leaf in gradients.values())
    for slot in parameter_names.slots(parameter_names.BERT, list(arrays), "bert.", range(LAYERS)):
        ours, name = parameter_names.view(arrays[slot.path], slot), next((n for n in slot.names if n in gradients), None)
        if name is None:  # weights that no layer reads: missing or frozen in transformers
            assert slot.layer == 1
            assert owner == TIED
            assert not ours.any()
            continue
        compared.add(name)
        np.testing.assert_allclose(ours, gradients[name].numpy(), rtol=0, atol=1e-5 * largest, err_msg=name)
    assert compared == set(gradients)
    # As with torch's padding_idx, only the head sends gradient to this row.
    row = gradients["bert.embeddings.word_embeddings.weight"][PADDING]
    assert row.abs().max() > 0


@pytest.mark.parity
def test_training_from_the_published_start_matches_transformers():
    """All layers first train their own weights, though the agent observes copies; then layer 1 becomes a copy of layer 0."""
    transformers, torch = library()
    settings = Settings(**SMALL, padding=PADDING, batch_size=2).resolved()
    stored, model = stored_and_model(settings, VOCABULARY, INDEPENDENT)
    theirs = theirs_with(tying.view(stored, TABLES), torch, transformers)
    rate, decay, clip = 1e-3, 0.01, 1.0
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=rate, weight_decay=decay)
    ours = LayeredAdamW(rate, decay, optax.clip_by_global_norm(clip), STACK)
    loss = make_loss(settings, model, VOCABULARY, 0)

    @jax.jit
    def step(state, rows, wiring):
        def mean(stored):
            return loss(tying.view(stored, TABLES), batch_of(rows), None, wiring.reads, wiring.sends)

        value, grads = jax.value_and_grad(mean)(state.params)
        return ours.update(grads, state, wiring), value

    state, ties = ours.init(stored), tying.start_ties(LAYERS, "told-tied", "published")
    found, expected = [], []
    with jax.default_matmul_precision("highest"):
        for number in range(6):
            if number == 3:
                ties = tying.choose(ties, 1, 0, "published")
                copy_layer(theirs, 1, 0, stops=True)
            state, value = step(state, tokens(number), tying.wiring(ties, "full", "owner", "published"))
            found.append(float(value))
            optimizer.zero_grad()
            library_loss = loss_of(theirs, tokens(number), torch)
            library_loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            optimizer.step()
            expected.append(library_loss.item())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(set(np.round(expected, 2))) > 3  # the steps change the loss


@pytest.mark.parity
def test_configuration_is_the_default_model_of_transformers():
    transformers, torch = library()
    config = transformers.BertConfig(vocab_size=50_257, is_decoder=True)
    with torch.device("meta"):
        theirs = transformers.BertLMHeadModel(config)
    settings = preset()
    model = build_model(settings, config.vocab_size)
    assert isinstance(model.encoder.dropout, float)
    ours = {
        "hidden_size": model.width, "num_hidden_layers": model.encoder.layers, "num_attention_heads": model.encoder.heads,
        "intermediate_size": model.encoder.feed_forward, "hidden_act": model.encoder.activation,
        "max_position_embeddings": model.max_positions, "type_vocab_size": model.token_types, "pad_token_id": model.padding,
    }  # fmt: skip
    assert ours == {name: getattr(config, name) for name in ours}
    assert {model.norm_epsilon, model.encoder.norm_epsilon} == {config.layer_norm_eps}
    stds = {model.embedding_std, model.kernel_std, model.encoder.kernel_std, model.encoder.residual_std}
    assert stds == {config.initializer_range}
    drops = {model.encoder.dropout, model.embedding_dropout}
    assert drops == {config.hidden_dropout_prob} == {config.attention_probs_dropout_prob}
    assert not model.encoder.hidden_dropout
    assert model.head_activation == config.hidden_act

    arrays = by_path(jax.eval_shape(initial(settings, model), jax.random.key(0), np.arange(settings.layers)))
    assert {leaf.dtype for leaf in arrays.values()} == {np.dtype(jnp.bfloat16)}
    names = dict(theirs.named_parameters(remove_duplicate=False))
    found = {}
    for slot in parameter_names.slots(parameter_names.BERT, list(arrays), "bert.", range(settings.layers)):
        # Only shapes matter: a broadcast scalar.
        shape = parameter_names.view(np.broadcast_to(np.int8(0), arrays[slot.path].shape), slot).shape
        found |= {name: shape for name in slot.names if name in names}
    assert found == {name: tuple(leaf.shape) for name, leaf in names.items()}
    assert sum(leaf.numel() for leaf in theirs.parameters()) == 124_690_513


def test_configuration_has_the_published_ties():
    settings = preset()
    assert (settings.ties, settings.gradient, settings.reward, settings.dtype) == (
        "published", "owner", "clipped-ppl", "bfloat16",
    )  # fmt: skip
    ties = tying.start_ties(settings.layers, settings.start, settings.ties)
    assert ties.observation.tolist() == [0] * 12
    assert ties.trains.all()
    assert ties.owner.tolist() == list(range(12))


@pytest.mark.parametrize(("changed", "expected"), [({}, 0.02), ({"initial_std": 0.08}, 0.08)])
def test_initial_values_are_berts(changed, expected):
    settings = Settings(architecture="bert", layers=4, width=64, heads=2, context=40, padding=5, **changed).resolved()
    params = jax.jit(initial(settings, build_model(settings, 500)))(jax.random.key(0), np.arange(4))
    stack = stack_of(params, STACK)
    kernels = [stack[name]["kernel"] for name in ("qkv", "out", "feed_forward_in", "feed_forward_out")]
    for drawn in (*kernels, params["head"]["dense"]["kernel"], params["embed"]["embedding"], params["positions"]["embedding"]):
        assert np.asarray(drawn).std() == pytest.approx(expected, rel=0.05)
    for norm in (params["norm"], params["head"]["norm"], stack["attention_norm"], stack["feed_forward_norm"]):
        assert (np.asarray(norm["scale"]) == 1).all()
        assert not np.asarray(norm["bias"]).any()
    for zero in (params["head"]["bias"], params["head"]["dense"]["bias"], params["embed"]["embedding"][5]):
        assert not np.asarray(zero).any()
    assert params["types"]["embedding"].shape == (2, 64)
    assert params["embed"]["embedding"][4].any()
