"""Loading and saving weights without the transformers library: slots by hand, bitwise round trips, and refusals."""

import json

import flax.traverse_util
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hub_checkpoints import checkpoint, refused
from hub_weights import CONFIGS, HEADS, LAYERS, POSITIONS, TYPES, VOCABULARY, WIDTH, tensors

from tiejax.checkpoints.hub import arrays
from tiejax.checkpoints.hub.arrays import read
from tiejax.checkpoints.hub.checkpoint import INDEX, open_checkpoint
from tiejax.checkpoints.hub.weights import load, save
from tiejax.models import bert
from tiejax.models.language_model import LanguageModel
from tiejax.models.lstm import BidirectionalLSTM
from tiejax.models.shapes import Shape
from tiejax.models.transformer import Transformer
from tiejax.text.tokenizer import train_unigram

FAMILIES = list(CONFIGS)


def stored(folder):
    return dict(read(open_checkpoint(folder).tensors.values()))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


def saved_again(tmp_path, loaded, **options):
    save(tmp_path / "again", loaded.model, loaded.params, loaded.tied, loaded.origin, **options)
    return stored(tmp_path / "again")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def tokens():
    return jnp.arange(POSITIONS)[None]


# Which tensor fills which array, and in which orientation.


def test_query_key_and_value_are_one_map(tmp_path):
    for kind, names in {
        "bert": [f"bert.encoder.layer.1.attention.self.{part}" for part in ("query", "key", "value")],
        "albert": [f"albert.encoder.albert_layer_groups.1.albert_layers.0.attention.{p}" for p in ("query", "key", "value")],
    }.items():
        written = tensors(kind)
        qkv = load(checkpoint(tmp_path / kind, written, CONFIGS[kind])).params["encoder"]["layers"]["qkv"]
        for part, name in enumerate(names):
            columns = slice(part * WIDTH, (part + 1) * WIDTH)
            np.testing.assert_array_equal(qkv["kernel"][1][:, columns], written[f"{name}.weight"].T)
            np.testing.assert_array_equal(qkv["bias"][1][columns], written[f"{name}.bias"])
    written = tensors("gpt2")
    qkv = load(checkpoint(tmp_path / "gpt2", written, CONFIGS["gpt2"])).params["encoder"]["layers"]["qkv"]
    np.testing.assert_array_equal(qkv["kernel"][2], written["transformer.h.2.attn.c_attn.weight"])


def test_slots_of_rembert(tmp_path):
    written = tensors("rembert", pooler=True)
    loaded = load(checkpoint(tmp_path / "c", written, CONFIGS["rembert"]))
    for path, (name, transposed) in {
        "embed/embedding": ("rembert.embeddings.word_embeddings.weight", False),
        "types/embedding": ("rembert.embeddings.token_type_embeddings.weight", False),
        "norm/scale": ("rembert.embeddings.LayerNorm.weight", False),
        "projection/kernel": ("rembert.encoder.embedding_hidden_mapping_in.weight", True),
        "head/embedding": ("cls.predictions.decoder.weight", False),
        "head/bias": ("cls.predictions.decoder.bias", False),
        "head/dense/kernel": ("cls.predictions.dense.weight", True),
        "head/norm/bias": ("cls.predictions.LayerNorm.bias", False),
        "pooler/kernel": ("rembert.pooler.dense.weight", True),
    }.items():
        found = flax.traverse_util.flatten_dict(loaded.params, sep="/")[path]
        np.testing.assert_array_equal(found, written[name].T if transposed else written[name])
    layers = loaded.params["encoder"]["layers"]
    inner = "rembert.encoder.layer.2.intermediate.dense.weight"
    np.testing.assert_array_equal(layers["feed_forward_in"]["kernel"][2], written[inner].T)
    assert (loaded.family, loaded.tied, loaded.vocabulary) == ("RemBERT", False, VOCABULARY)
    assert loaded.owner.tolist() == [0, 1, 2]


def test_shared_layers_of_albert_are_copied(tmp_path):
    config = CONFIGS["albert"] | {"num_hidden_groups": 2}
    written = tensors("albert", groups=2)
    loaded = load(checkpoint(tmp_path / "c", written, config))
    assert loaded.owner.tolist() == [0, 0, 2]  # 3 layers over 2 groups: int(layer / 1.5)
    scale = loaded.params["encoder"]["layers"]["attention_norm"]["scale"]
    for layer, group in enumerate([0, 0, 1]):
        name = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0.attention.LayerNorm.weight"
        np.testing.assert_array_equal(scale[layer], written[name])
    assert_same(saved_again(tmp_path, loaded), written)
    assert config_of(tmp_path / "again") == config

    scale[1] += 1  # as if training had changed one layer
    save(tmp_path / "apart", loaded.model, loaded.params, loaded.tied, loaded.origin)
    assert config_of(tmp_path / "apart")["num_hidden_groups"] == LAYERS
    np.testing.assert_array_equal(load(tmp_path / "apart").params["encoder"]["layers"]["attention_norm"]["scale"], scale)


# Loading a folder and saving it again.


@pytest.mark.parametrize("shard", [None, 600])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", FAMILIES)
def test_folder_round_trip_is_bitwise(tmp_path, kind, tied, shard):
    written = tensors(kind, tied=tied)
    config = CONFIGS[kind] | {"tie_word_embeddings": tied}
    loaded = load(checkpoint(tmp_path / "c", written, config))
    assert loaded.tied == (tied and kind != "rembert")
    assert (loaded.params["head"]["embedding"] is loaded.params["embed"]["embedding"]) == loaded.tied
    assert_same(saved_again(tmp_path, loaded, **({"max_shard_bytes": shard} if shard else {})), written)
    assert (tmp_path / "again" / INDEX).is_file() == bool(shard)
    assert config_of(tmp_path / "again") == config
    # Shards load to the same parameters.
    assert_same(flat(load(tmp_path / "again").params), flat(loaded.params))


def flat(params):
    return {path: np.asarray(leaf) for path, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}


def test_shards_respect_the_size_limit(tmp_path):
    loaded = load(checkpoint(tmp_path / "c", tensors("bert"), CONFIGS["bert"]))
    saved_again(tmp_path, loaded, max_shard_bytes=600)
    index = json.loads((tmp_path / "again" / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    sizes = {}
    for name, array in stored(tmp_path / "again").items():
        sizes[index["weight_map"][name]] = sizes.get(index["weight_map"][name], 0) + array.nbytes
    assert max(sizes.values()) <= 600
    assert sum(sizes.values()) == index["metadata"]["total_size"]


@pytest.mark.parametrize("prefix", ["", None])
@pytest.mark.parametrize("kind", FAMILIES)
def test_folder_without_a_head(tmp_path, kind, prefix):
    bare = {"bert": "BertModel", "rembert": "RemBertModel", "albert": "AlbertModel", "gpt2": "GPT2Model"}[kind]
    written = tensors(kind, head=False, pooler=kind != "gpt2", prefix=prefix)
    loaded = load(checkpoint(tmp_path / "c", written, CONFIGS[kind] | {"architectures": [bare]}))
    assert "head" not in loaded.params
    assert ("pooler" in loaded.params) == (kind != "gpt2")
    assert not loaded.tied
    assert_same(saved_again(tmp_path, loaded), written)
    states = jax.eval_shape(lambda params: loaded.model.apply(params, tokens(), method="encode"), {"params": loaded.params})
    assert states.shape == (1, POSITIONS, WIDTH)


def test_tied_gpt2_without_a_prefix_and_with_constants(tmp_path):
    constants = {f"h.{layer}.attn.bias": np.ones((1, 1, 8, 8), np.uint8) for layer in range(LAYERS)}
    written = tensors("gpt2", prefix="") | constants
    loaded = load(checkpoint(tmp_path / "c", written, CONFIGS["gpt2"]))
    assert loaded.tied
    assert_same(saved_again(tmp_path, loaded), written)


def test_old_names_and_tensors_of_other_tasks_are_kept(tmp_path):
    written = tensors("bert", pooler=True) | {
        "bert.embeddings.position_ids": np.arange(POSITIONS)[None],
        "cls.seq_relationship.weight": np.ones((2, WIDTH), np.float16),
        "classifier.bias": np.zeros(3, np.float32),
    }
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, former in old.items():
        written = {name.replace(new, former): array for name, array in written.items()}
    loaded = load(checkpoint(tmp_path / "c", written, CONFIGS["bert"]))
    np.testing.assert_array_equal(loaded.params["norm"]["scale"], written["bert.embeddings.LayerNorm.gamma"])
    assert_same(saved_again(tmp_path, loaded), written)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes(tmp_path, dtype):
    written = tensors("bert", tied=False, dtype=dtype)
    config = CONFIGS["bert"] | {"tie_word_embeddings": False, "torch_dtype": np.dtype(dtype).name}
    loaded = load(checkpoint(tmp_path / "c", written, config))
    ours = np.float64 if dtype == np.float64 else np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded.params)} == {np.dtype(ours)}
    assert_same(saved_again(tmp_path, loaded), written)
    assert config_of(tmp_path / "again") == config
    if dtype != np.float64:  # trained values are not rounded
        loaded.params["norm"]["scale"] += np.float32(1e-6)
        save(tmp_path / "trained", loaded.model, loaded.params, loaded.tied, loaded.origin)
        assert_same(flat(load(tmp_path / "trained").params), flat(loaded.params))
        assert config_of(tmp_path / "trained")["dtype"] == "float32"


# Tying is judged by the tensors.


@pytest.mark.parametrize("flag", [True, False])
def test_flag_is_not_trusted(tmp_path, flag):
    written = tensors("bert", tied=False)
    different = load(checkpoint(tmp_path / "different", written, CONFIGS["bert"] | {"tie_word_embeddings": flag}))
    assert not different.tied
    written["cls.predictions.decoder.weight"] = written["bert.embeddings.word_embeddings.weight"]
    equal = load(checkpoint(tmp_path / "equal", written, CONFIGS["bert"] | {"tie_word_embeddings": flag}))
    assert equal.tied
    for name, loaded in {"different": different, "equal": equal}.items():
        save(tmp_path / f"{name} again", loaded.model, loaded.params, loaded.tied, loaded.origin)
        assert_same(stored(tmp_path / f"{name} again"), stored(tmp_path / name))
        assert config_of(tmp_path / f"{name} again")["tie_word_embeddings"] == loaded.tied


def test_rembert_is_never_tied(tmp_path):
    written = tensors("rembert")
    sizes = {"input_embedding_size": 4, "output_embedding_size": 4, "tie_word_embeddings": True}
    written["cls.predictions.decoder.weight"] = written["rembert.embeddings.word_embeddings.weight"]
    written["cls.predictions.dense.weight"] = written["cls.predictions.dense.weight"][:4]
    for name in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias"):
        written[f"cls.predictions.{name}"] = written[f"cls.predictions.{name}"][:4]
    loaded = load(checkpoint(tmp_path / "c", written, CONFIGS["rembert"] | sizes))
    assert not loaded.tied
    assert_same(saved_again(tmp_path, loaded), written)


def test_bias_is_the_one_the_library_adds(tmp_path):
    written = tensors("bert", tied=False)
    loaded = load(checkpoint(tmp_path / "c", written, CONFIGS["bert"]))
    np.testing.assert_array_equal(loaded.params["head"]["bias"], written["cls.predictions.decoder.bias"])
    # Equal biases change together; an unequal one stays.
    loaded.params["head"]["bias"] += 1
    assert_same(saved_again(tmp_path, loaded), written | {"cls.predictions.decoder.bias": loaded.params["head"]["bias"]})
    written["cls.predictions.bias"] = written["cls.predictions.decoder.bias"]
    loaded = load(checkpoint(tmp_path / "equal", written, CONFIGS["bert"]))
    loaded.params["head"]["bias"] += 1
    save(tmp_path / "moved", loaded.model, loaded.params, loaded.tied, loaded.origin)
    for name in ("cls.predictions.bias", "cls.predictions.decoder.bias"):
        np.testing.assert_array_equal(stored(tmp_path / "moved")[name], written[name] + 1)


def test_tie_broken_by_training(tmp_path):
    loaded = load(checkpoint(tmp_path / "c", tensors("bert"), CONFIGS["bert"]))
    loaded.params["head"]["embedding"] = loaded.params["embed"]["embedding"] + 1
    save(tmp_path / "cut", loaded.model, loaded.params, False, loaded.origin)
    again = load(tmp_path / "cut")
    assert not again.tied
    assert_same(flat(again.params), flat(loaded.params))
    assert config_of(tmp_path / "cut")["tie_word_embeddings"] is False


# Saving a model and loading it again.


def encoder(embed_in, embed_out, **fields):
    return bert.build(Shape(embed_in, embed_out, WIDTH, LAYERS, HEADS), VOCABULARY, POSITIONS, TYPES, **fields)


def causal():
    transformer = Transformer(LAYERS, WIDTH, HEADS, 9, "gelu_tanh", identical_layers=False, norm_first=True, causal=True)
    return LanguageModel(VOCABULARY, WIDTH, transformer, max_positions=POSITIONS)


def random_params(model, tied):
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    if tied:
        params["head"]["embedding"] = params["embed"]["embedding"]
    return params


# name -> (model, tied, the library's class)
OURS = {
    "coupled": (lambda: encoder(WIDTH, WIDTH), True, "BertForMaskedLM"),
    "factorised": (lambda: encoder(4, 4), True, "AlbertForMaskedLM"),
    "decoupled": (lambda: encoder(4, 16), False, "RemBertForMaskedLM"),
    "decoupled at equal width": (lambda: encoder(WIDTH, WIDTH), False, "RemBertForMaskedLM"),
    "causal": (causal, True, "GPT2LMHeadModel"),
    "causal, untied": (causal, False, "GPT2LMHeadModel"),
}


@pytest.mark.parametrize("name", OURS)
def test_model_round_trip_is_bitwise(tmp_path, name):
    build, tied, kind = OURS[name]
    model, params = build(), random_params(build(), tied)
    save(tmp_path / "ours", model, jax.tree.map(jnp.asarray, params), tied)
    config = config_of(tmp_path / "ours")
    assert config["architectures"] == [kind]
    if name == "factorised":
        assert (config["num_hidden_groups"], config["num_hidden_layers"], config["hidden_act"]) == (LAYERS, LAYERS, "gelu")
    loaded = load(tmp_path / "ours")
    assert loaded.tied == tied
    assert_same(flat(loaded.params), flat(params))
    found, expected = (jax.jit(one.apply)({"params": params}, tokens()) for one in (loaded.model, model))
    assert jnp.array_equal(found, expected)


def test_identity_map_is_dropped_and_restored(tmp_path):
    params = random_params(encoder(WIDTH, WIDTH), False)
    save(tmp_path / "ours", encoder(WIDTH, WIDTH), params, False)
    written = stored(tmp_path / "ours")
    np.testing.assert_array_equal(written["rembert.encoder.embedding_hidden_mapping_in.weight"], np.eye(WIDTH))
    loaded = load(tmp_path / "ours")
    assert not loaded.model.projected
    assert_same(saved_again(tmp_path, loaded), written)
    written["rembert.encoder.embedding_hidden_mapping_in.bias"][2] = 1e-9
    loaded = load(checkpoint(tmp_path / "other", written, config_of(tmp_path / "ours")))
    assert loaded.model.projected
    assert "projection" in loaded.params


@pytest.mark.parametrize("name", ["coupled", "factorised", "decoupled"])
def test_model_without_head_and_with_fewer_layers(tmp_path, name):
    build, tied, kind = OURS[name]
    params = bert.drop_layers(bert.discard_head(random_params(build(), tied)), 2)
    save(tmp_path / "ours", build(), params, tied)
    config = config_of(tmp_path / "ours")
    assert (config["num_hidden_layers"], config["architectures"]) == (1, [kind.replace("ForMaskedLM", "Model")])
    assert_same(flat(load(tmp_path / "ours").params), flat(params))


def test_checkpoint_saved_without_its_head(tmp_path):
    loaded = load(checkpoint(tmp_path / "c", tensors("bert"), CONFIGS["bert"]))
    save(tmp_path / "gone", loaded.model, bert.discard_head(loaded.params), False, loaded.origin)
    assert config_of(tmp_path / "gone")["architectures"] == ["BertModel"]
    assert_same(stored(tmp_path / "gone"), tensors("bert", head=False))


def test_tokenizer_is_written_with_its_special_tokens(tmp_path):
    tokenizer = train_unigram(lambda: ["a cat sat on a mat", "a dog sat on a log"], 40)
    model = bert.build(Shape(WIDTH, WIDTH, WIDTH, 1, 2), tokenizer.get_vocab_size(), POSITIONS)
    save(tmp_path / "ours", model, random_params(model, True), True, tokenizer=tokenizer)
    assert (tmp_path / "ours" / "tokenizer.json").read_text() == tokenizer.to_str(pretty=True)
    assert config_of(tmp_path / "ours")["pad_token_id"] == tokenizer.token_to_id("[PAD]")
    special = json.loads((tmp_path / "ours" / "tokenizer_config.json").read_text())
    assert special["mask_token"] == "[MASK]"


# Checkpoints that cannot be loaded.


def set_config(**values):
    def spoil(written, config):
        config |= values

    return spoil


def without(name):
    def spoil(written, config):
        del written[name]

    return spoil


def put(name, array):
    def spoil(written, config):
        written[name] = array

    return spoil


def other_family(written, config):
    config["model_type"] = "llama"


NORM = "bert.encoder.layer.1.output.LayerNorm.weight"
UNREADABLE = {
    "another family": ("bert", other_family, "config.json", "llama", "BERT (bert)", "RemBERT", "ALBERT", "GPT-2 (gpt2)"),
    "no family": ("bert", lambda written, config: config.pop("model_type"), "config.json", "model_type is None"),
    "relative positions": ("bert", set_config(position_embedding_type="relative_key"), "relative_key", "absolute"),
    "a decoder": ("bert", set_config(is_decoder=True), "is_decoder is True", "False"),
    "activation": ("bert", set_config(hidden_act="mish"), "hidden_act: expected one of gelu, ", "relu", "got 'mish'"),
    "inner groups": ("albert", set_config(inner_group_num=2), "inner_group_num is 2", "only 1"),
    "groups": ("albert", set_config(num_hidden_groups=5), "more groups (5) than layers (3)"),
    "scaled attention": ("gpt2", set_config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
    "no number": ("bert", set_config(hidden_size="6"), "hidden_size: expected an integer >= 1, got '6'"),
    "no width": ("gpt2", set_config(n_embd=None), "n_embd: expected an integer >= 1, got None"),
    "no layers": ("bert", set_config(num_hidden_layers=0), "num_hidden_layers: expected an integer >= 1, got 0"),
    "epsilon": ("bert", set_config(layer_norm_eps=-1.0), "layer_norm_eps: expected a number above 0, got -1.0"),
    "heads": ("bert", set_config(num_attention_heads=4), "4 heads do not divide the width 6"),
    "heads by default": (
        "gpt2",
        lambda written, config: config.pop("n_head"),
        "12 heads do not divide",
        "by default: ",
        "n_head 12",
    ),
    "no input table": (
        "bert",
        without("bert.embeddings.word_embeddings.weight"),
        "no tensor",
        "word_embeddings",
        "input table",
    ),
    "no tensor": ("bert", without(NORM), f"no tensor {NORM}", "BERT"),
    "fewer layers": ("bert", set_config(num_hidden_layers=4), "no tensor bert.encoder.layer.3."),
    "more layers": ("bert", set_config(num_hidden_layers=2), "bert.encoder.layer.2.", "is not part of the"),
    "half a head": ("bert", without("cls.predictions.transform.dense.bias"), "no tensor cls.predictions.transform.dense.bias"),
    "no bias": ("bert", without("cls.predictions.bias"), "no tensor cls.predictions.decoder.bias"),
    "no output table": ("rembert", without("cls.predictions.decoder.weight"), "no tensor cls.predictions.decoder.weight"),
    "shape": ("bert", put(NORM, np.ones(5, np.float32)), "model.safetensors", NORM, "[5]", "config.json", "[6]"),
    "vocabulary": ("gpt2", set_config(vocab_size=12), "wte.weight is [11, 6]", "[12, 6]"),
    "integers": ("bert", put(NORM, np.ones(6, np.int8)), "model.safetensors", NORM, "I8", "quantised"),
    "cross-attention": (
        "gpt2",
        put("transformer.h.0.crossattention.c_attn.weight", np.ones((6, 12), np.float32)),
        "is not part of the",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_checkpoints(tmp_path, name):
    kind, spoil, *words = UNREADABLE[name]
    written, config = tensors(kind), dict(CONFIGS[kind])
    spoil(written, config)
    folder = checkpoint(tmp_path / "c", written, config)
    refused(lambda: load(folder), str(folder), *words)


def test_damaged_folders(tmp_path):
    folder = checkpoint(tmp_path / "c", tensors("bert"), CONFIGS["bert"])
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole, text = weights.read_bytes(), config.read_text()
    weights.write_bytes(whole[:-9])
    refused(lambda: load(folder), "model.safetensors", "truncated")
    weights.rename(folder / "pytorch_model.bin")
    refused(lambda: load(folder), "pytorch_model.bin", "pickle")
    weights.write_bytes(whole)
    config.write_text(text[:-2])
    refused(lambda: load(folder), "config.json", "invalid JSON")


# Models that cannot be saved.


def unlike(**fields):
    return lambda: encoder(WIDTH, WIDTH).clone(**fields)


def transformer(**fields):
    def build():
        model = encoder(WIDTH, WIDTH)
        return model.clone(encoder=model.encoder.clone(**fields))

    return build


UNWRITABLE = {
    "LSTM": (lambda: LanguageModel(VOCABULARY, WIDTH, BidirectionalLSTM(1, WIDTH, 4)), "BidirectionalLSTM", "Transformer"),
    "pre-LN encoder": (transformer(norm_first=True), "BERT", "norm_first False", "has True"),
    "no positions": (unlike(max_positions=None), "max_positions True", "has False"),
    "no types": (unlike(token_types=None), "token_types"),
    "other activations": (unlike(head_activation="relu"), "head_activation gelu", "relu"),
    "other epsilons": (unlike(norm_epsilon=1e-5), "norm_epsilon"),
    "causal encoder": (transformer(causal=True), "GPT-2", "norm_first True"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_unsupported_models(tmp_path, name):
    build, *words = UNWRITABLE[name]
    refused(lambda: save(tmp_path / "ours", build(), random_params(build(), True), True), str(tmp_path / "ours"), *words)
    assert not list(tmp_path.iterdir())


def test_parameters_that_do_not_fit_the_model(tmp_path):
    model = encoder(4, 4)
    params, target = random_params(model, True), tmp_path / "ours"
    refused(lambda: save(target, model, jax.tree.map(lambda leaf: leaf[None], params), True), "embed/embedding", "[1, 11, 4]")
    refused(lambda: save(target, model, params | {"extra": {"bias": np.ones(1)}}, True), "have extra/bias")
    refused(lambda: save(target, model, {key: params[key] for key in params if key != "types"}, True), "lack types/embedding")
    cut = params | {"head": params["head"] | {"embedding": params["head"]["embedding"] + 1}}
    refused(lambda: save(target, model, cut, True), "embed/embedding", "head/embedding", "tied", "differ")
    refused(lambda: save(target, encoder(4, 5), random_params(encoder(4, 5), False), True), "ALBERT", "head_width 4", "has 5")
    assert not list(tmp_path.iterdir())


def test_folder_appears_atomically(tmp_path, monkeypatch):
    model, params, target = encoder(4, 4), random_params(encoder(4, 4), True), tmp_path / "deep" / "ours"
    calls = []

    def fail(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return write(*args, **options)

    write = arrays.save_file
    monkeypatch.setattr(arrays, "save_file", fail)
    with pytest.raises(OSError, match="No space left") as error:
        save(target, model, params, True, max_shard_bytes=600)
    assert error.value.filename == str(target)
    assert len(calls) == 3
    assert not target.parent.exists()  # created for the folder
    monkeypatch.undo()

    left = target.parent / "incomplete-ours"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"of a process that was killed, or of a user")
    save(target, model, params, True)
    assert sorted(path.name for path in target.parent.iterdir()) == ["incomplete-ours", "ours"]
    before = stored(target)
    refused(lambda: save(target, model, params, True), str(target), "already exists")
    assert_same(stored(target), before)
