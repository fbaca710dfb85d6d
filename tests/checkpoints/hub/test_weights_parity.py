"""Loading and saving weights against the transformers library: either reads what the other wrote, with equal logits."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.checkpoints.hub.arrays import read
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.weights import load, save
from tiejax.models import bert
from tiejax.models.language_model import LanguageModel
from tiejax.models.shapes import Shape
from tiejax.models.transformer import Transformer
from tiejax.text import tokenizer as tokenization

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
# One thread: matrices this small gain nothing from more, which would compete with other tests for cores.
torch.set_num_threads(1)

VOCABULARY, POSITIONS, LENGTH = 29, 16, 12
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}
ENCODER = SMALL | {"max_position_embeddings": POSITIONS, "type_vocab_size": 3, "initializer_range": 0.3}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 12, "n_layer": 3, "n_head": 3, "n_positions": POSITIONS, "initializer_range": 0.3}
# name -> (class of the configuration, its fields, class without a head, class with one)
FAMILIES = {
    "bert": ("BertConfig", ENCODER, "BertModel", "BertForMaskedLM"),
    "bert-tanh-gelu": (
        "BertConfig",
        ENCODER | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
        "BertModel",
        "BertForMaskedLM",
    ),
    "bert-with-sentences": ("BertConfig", ENCODER, "BertModel", "BertForPreTraining"),
    "rembert": (
        "RemBertConfig",
        ENCODER | {"input_embedding_size": 8, "output_embedding_size": 14},
        "RemBertModel",
        "RemBertForMaskedLM",
    ),
    "albert": (
        "AlbertConfig",
        ENCODER | {"embedding_size": 8, "num_hidden_groups": 3, "hidden_act": "gelu"},
        "AlbertModel",
        "AlbertForMaskedLM",
    ),
    "albert-one-group": ("AlbertConfig", ENCODER | {"embedding_size": 8}, "AlbertModel", "AlbertForMaskedLM"),
    "albert-two-groups": (
        "AlbertConfig",
        ENCODER | {"embedding_size": 12, "num_hidden_groups": 2},
        "AlbertModel",
        "AlbertForMaskedLM",
    ),
    "gpt2": ("GPT2Config", GPT2, "GPT2Model", "GPT2LMHeadModel"),
    "gpt2-narrow": ("GPT2Config", GPT2 | {"n_inner": 10, "activation_function": "gelu"}, "GPT2Model", "GPT2LMHeadModel"),
}


def random_model(name, head=True, tied=True, seed=0):
    """A model of the library with random parameters, including biases and norms."""
    config, fields, bare, with_head = FAMILIES[name]
    config = getattr(transformers, config)(**fields, tie_word_embeddings=tied)
    model = getattr(transformers, with_head if head else bare)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def inputs(causal):
    """Tokens, token types and an attention mask, for rows of several lengths padded at the end."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (4, LENGTH))
    types = np.zeros_like(tokens) if causal else rng.integers(0, 3, (4, LENGTH))
    lengths = np.array([LENGTH, LENGTH, 7, 1])
    return tokens, types, (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)


def theirs(model, tokens, types, mask):
    """The library's logits, or its hidden states without a head."""
    causal = model.config.model_type == "gpt2"
    given = {} if causal else {"token_type_ids": torch.tensor(types)}
    with torch.no_grad():
        output = model(torch.tensor(tokens), attention_mask=torch.tensor(mask), **given)
    logits = [output.get(name) for name in ("logits", "prediction_logits", "last_hidden_state")]
    return next(values for values in logits if values is not None).numpy()


def ours(model, params, tokens, types, mask):
    method = None if "head" in params else "encode"
    types = None if model.token_types is None else jnp.asarray(types)

    def apply(params, tokens, mask):
        return model.apply({"params": params}, tokens, segments=mask, token_types=types, method=method)

    return np.asarray(jax.jit(apply)(params, jnp.asarray(tokens), jnp.asarray(mask)))


def assert_near(found, expected, mask):
    """Compare outputs at all positions except padding, whose encoding is arbitrary."""
    found, expected = found[mask == 1], expected[mask == 1]
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def same_logits(loaded, model):
    tokens, types, mask = inputs(loaded.model.token_types is None)
    assert_near(ours(loaded.model, loaded.params, tokens, types, mask), theirs(model, tokens, types, mask), mask)


def same_state(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def library_loads(folder, kind, **options):
    """Load a folder with the library, and assert that no tensor is missing or unexpected."""
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values()), info
    return model.eval()


@pytest.mark.parametrize(("tied", "shards"), [(True, "one file"), (False, "several")])
@pytest.mark.parametrize("name", FAMILIES)
def test_checkpoints_of_the_library(tmp_path, name, tied, shards):
    model = random_model(name, tied=tied)
    size = {"max_shard_size": "5KB"} if shards == "several" else {}
    model.save_pretrained(tmp_path / "theirs", **size)
    assert (tmp_path / "theirs" / "model.safetensors").is_file() == (shards == "one file")
    loaded = load(tmp_path / "theirs")
    assert loaded.tied == (tied and name != "rembert")
    assert loaded.vocabulary == VOCABULARY
    same_logits(loaded, model)
    save(tmp_path / "ours", loaded.model, loaded.params, loaded.tied, loaded.origin, max_shard_bytes=5000)
    same_state(library_loads(tmp_path / "ours", type(model).__name__), model)
    before, after = (json.loads((tmp_path / part / "config.json").read_text()) for part in ("theirs", "ours"))
    assert before == after


@pytest.mark.parametrize("name", FAMILIES)
def test_checkpoints_without_a_head(tmp_path, name):
    model = random_model(name, head=False)
    model.save_pretrained(tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    assert "head" not in loaded.params
    assert not loaded.tied
    same_logits(loaded, model)
    if "gpt2" not in name:
        tokens, types, mask = inputs(False)
        states = ours(loaded.model, loaded.params, tokens, types, mask)[:, 0]
        pooled = np.tanh(states @ loaded.params["pooler"]["kernel"] + loaded.params["pooler"]["bias"])
        with torch.no_grad():
            given = {"attention_mask": torch.tensor(mask), "token_type_ids": torch.tensor(types)}
            assert np.abs(pooled - model(torch.tensor(tokens), **given).pooler_output.numpy()).max() <= 1e-5
    save(tmp_path / "ours", loaded.model, loaded.params, loaded.tied, loaded.origin)
    same_state(library_loads(tmp_path / "ours", type(model).__name__), model)


def random_params(model, tied, seed=0):
    """Random parameters of a model of tiejax, with one table if it is tied."""
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.2 * rng.normal(size=leaf.shape).astype(np.float32), params)
    if tied:
        params["head"]["embedding"] = params["embed"]["embedding"]
    return params


def causal():
    encoder = Transformer(3, 12, 3, 20, "gelu_tanh", identical_layers=False, norm_first=True, causal=True)
    return LanguageModel(VOCABULARY, 12, encoder, max_positions=POSITIONS)


def encoder(*widths):
    return bert.build(Shape(*widths, layers=3, heads=3), VOCABULARY, POSITIONS, token_types=3)


# name -> (our model, tied, the library's class)
OURS = {
    "coupled": (lambda: encoder(12, 12, 12), True, "BertForMaskedLM"),
    "factorised": (lambda: encoder(8, 8, 12), True, "AlbertForMaskedLM"),
    "decoupled": (lambda: encoder(8, 18, 12), False, "RemBertForMaskedLM"),
    "decoupled at equal width": (lambda: encoder(12, 12, 12), False, "RemBertForMaskedLM"),
    "causal, tied": (causal, True, "GPT2LMHeadModel"),
    "causal, untied": (causal, False, "GPT2LMHeadModel"),
}


@pytest.mark.parametrize("name", OURS)
def test_library_loads_our_models(tmp_path, name):
    build, tied, kind = OURS[name]
    model, tokens = build(), inputs(build is causal)
    params = random_params(model, tied)
    save(tmp_path / "ours", model, params, tied, max_shard_bytes=5000)
    assert_near(ours(model, params, *tokens), theirs(library_loads(tmp_path / "ours", kind), *tokens), tokens[2])


@pytest.mark.parametrize("name", ["coupled", "factorised", "decoupled"])
def test_library_loads_encoders_without_their_top_layer(tmp_path, name):
    build, tied, kind = OURS[name]
    tokens = inputs(False)
    params = bert.drop_layers(bert.discard_head(random_params(build(), tied)), 1)
    save(tmp_path / "ours", build(), params, tied)
    found = library_loads(tmp_path / "ours", kind.replace("ForMaskedLM", "Model"), add_pooling_layer=False)
    assert found.config.num_hidden_layers == 2
    expected = build()
    expected = expected.clone(encoder=expected.encoder.clone(layers=2))
    assert_near(ours(expected, params, *tokens), theirs(found, *tokens), tokens[2])


def test_layers_are_dropped_from_a_checkpoint_of_the_library(tmp_path):
    model = random_model("albert-one-group")
    model.save_pretrained(tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    save(tmp_path / "ours", loaded.model, bert.drop_layers(loaded.params, 1), loaded.tied, loaded.origin)
    # It no longer shares layers, and computes the same as the library's model with one layer fewer.
    found = library_loads(tmp_path / "ours", "AlbertForMaskedLM")
    assert (found.config.num_hidden_layers, found.config.num_hidden_groups) == (2, 2)
    model.config.num_hidden_layers = 2
    tokens = inputs(False)
    assert_near(theirs(found, *tokens), theirs(model, *tokens), tokens[2])


def test_library_reads_the_tokenizer(tmp_path):
    tokenizer = tokenization.train_unigram(lambda: ["a cat sat on a mat", "a dog sat on a log"], 40)
    model = bert.build(Shape(12, 12, 12, 1, 3), tokenizer.get_vocab_size(), POSITIONS)
    save(tmp_path / "ours", model, random_params(model, True), True, tokenizer=tokenizer)
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert found("a cat on a log")["input_ids"] == tokenizer.encode("a cat on a log").ids
    assert (found.pad_token, found.mask_token) == ("[PAD]", "[MASK]")
    pad = json.loads((tmp_path / "ours" / "config.json").read_text())["pad_token_id"]
    assert pad == found.pad_token_id


@pytest.mark.slow
def test_rembert_at_its_real_widths(tmp_path):
    """With a tenth of its tokens, since its own tables take 2 GB."""
    vocabulary = 25_030
    model = transformers.RemBertForMaskedLM(transformers.RemBertConfig(vocab_size=vocabulary, num_hidden_layers=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and norms, which start at 0 or 1
                parameter += 0.1 * torch.randn(parameter.shape)
    tokens = np.random.default_rng(0).integers(0, vocabulary, (2, 6))
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    given = tokens, np.zeros_like(tokens), mask
    expected, number = theirs(model, *given), sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(tmp_path / "theirs", max_shard_size="100MB")

    loaded = load(tmp_path / "theirs")
    assert sum(leaf.size for leaf in jax.tree.leaves(loaded.params)) == number
    assert_near(ours(loaded.model, loaded.params, *given), expected, mask)
    save(tmp_path / "ours", loaded.model, loaded.params, loaded.tied, loaded.origin, max_shard_bytes=10**8)
    origin = open_checkpoint(tmp_path / "theirs").tensors
    found = open_checkpoint(tmp_path / "ours").tensors
    assert found.keys() == origin.keys()
    for name in origin:
        ((_, one),), ((_, other),) = read([origin[name]]), read([found[name]])
        assert one.tobytes() == other.tobytes(), name
