"""Checkpoints that the transformers library loads with a random table, or not at all: none of them is said to agree."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import saved  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import CONFIG, WEIGHTS  # noqa: E402
from tiejax.checkpoints.hub.errors import CheckpointError  # noqa: E402
from tiejax.checkpoints.rewrite.fix import fix  # noqa: E402
from tiejax.checkpoints.rewrite.tie import tie  # noqa: E402
from tiejax.checkpoints.rewrite.untie import untie  # noqa: E402

pytestmark = pytest.mark.parity
SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def loaded(folder):
    """The model, and the names of the tensors that the file lacks or that no parameter has."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model, info = getattr(transformers, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
    return model, {*info["missing_keys"], *info["unexpected_keys"]}


def change(folder, tensors=lambda found: found, **config):
    save_file(tensors(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})
    found = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in (found | config).items() if value is not ...}))
    return folder


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("prefix", ["policy.", "_forward_module.", "student.module."])
def test_a_prefix_of_all_names(tmp_path, prefix, tied):
    folder = saved("llama", tied, tmp_path / "llama")
    model, _ = loaded(folder)
    change(folder, lambda found: {f"{prefix}{name}": value for name, value in found.items()})
    assert loaded(folder)[1]
    one = check_folder(folder)
    assert one.answer == "disagrees"
    assert f"loaders find no tensor under the prefix {prefix}" in one.reason
    fix(folder, tmp_path / "fixed")
    again, wrong = loaded(tmp_path / "fixed")
    assert not wrong
    assert check_folder(tmp_path / "fixed").answer == "agrees"
    tokens = torch.arange(5)[None]
    assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_another_name_of_the_flag(tmp_path):
    config = transformers.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"], num_key_value_heads=2, pad_token_id=0)
    folder = tmp_path / "lfm2"
    transformers.Lfm2ForCausalLM(config).save_pretrained(folder)
    assert check_folder(folder).answer == "agrees"
    change(folder, tie_embedding=False)
    assert "lm_head.weight" in loaded(folder)[1]
    assert check_folder(folder).answer == "disagrees"
    change(folder, tie_embedding=True, tie_word_embeddings=False)
    assert not loaded(folder)[1]
    assert check_folder(folder).answer == "agrees"
    untie(folder, tmp_path / "untied")
    model, wrong = loaded(tmp_path / "untied")
    assert not wrong
    assert model.lm_head.weight is not model.model.embed_tokens.weight


@pytest.mark.parametrize("kind", ["llama", "gemma", "cohere"])
def test_the_default_of_the_text_model(tmp_path, kind):
    """LLaVA without a flag at either level is tied if its text model is by default."""
    text = transformers.AutoConfig.for_model(kind, **SMALL, head_dim=8, num_key_value_heads=2, pad_token_id=0)
    vision = transformers.CLIPVisionConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(vision_config=vision, text_config=text))
    model.save_pretrained(tmp_path / "llava")
    found = json.loads((tmp_path / "llava" / CONFIG).read_text())
    del found["text_config"]["tie_word_embeddings"]
    found.pop("tie_word_embeddings", None)
    (tmp_path / "llava" / CONFIG).write_text(json.dumps(found))
    again, wrong = loaded(tmp_path / "llava")
    one = check_folder(tmp_path / "llava")
    tied = again.lm_head.weight is again.get_input_embeddings().weight
    assert one.answer == ("disagrees" if wrong else "agrees"), one
    assert f"the default of {kind} is {str(tied).lower()}" in one.says


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tie_word_embeddings": None}, "tie_word_embeddings: expected true or false, got null"),
        ({"transformers_weights": "sub/other.safetensors"}, "transformers_weights"),
    ],
    ids=["null", "other weights"],
)
def test_configurations_that_only_some_loaders_follow(tmp_path, config, words):
    folder = change(saved("gemma", True, tmp_path / "gemma"), **config)
    one = check_folder(folder)
    assert (one.answer, words in one.reason) == ("cannot say", True)
    for command in (untie, fix):
        with pytest.raises(CheckpointError, match=words):
            command(folder, tmp_path / "out")


def test_files_that_are_not_those_of_a_whole_model(tmp_path):
    adapter = saved("llama", True, tmp_path / "adapter")
    (adapter / WEIGHTS).rename(adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "some/base"}))
    pickled = saved("llama", True, tmp_path / "pickled")
    torch.save(load_file(pickled / WEIGHTS), pickled / "pytorch_model.bin")
    (pickled / WEIGHTS).rename(pickled / "model-00001-of-00001.safetensors")
    for folder, words in ((adapter, "is an adapter"), (pickled, "of which loaders read pytorch_model.bin")):
        one = check_folder(folder)
        assert (one.answer, words in one.reason) == ("cannot say", True), one
        with pytest.raises(CheckpointError, match=words):
            fix(folder, tmp_path / "out")


def test_quantised_copies_of_a_table(tmp_path):
    name = "model.encoder.embed_tokens.weight"
    folder = saved("bart", False, tmp_path / "bart")
    tensors = load_file(folder / WEIGHTS)
    for dtype in (torch.float8_e4m3fn, torch.int8):
        save_file(tensors | {name: tensors["model.shared.weight"].to(dtype)}, folder / WEIGHTS, {"format": "pt"})
        one = check_folder(folder)
        assert (one.answer, name in one.stored) == ("cannot say", True)
        with pytest.raises(CheckpointError):
            tie(folder, tmp_path / "out", force=True)


def test_two_spellings_of_one_table(tmp_path):
    folder = change(
        saved("llama", True, tmp_path / "llama"),
        lambda found: found | {"embed_tokens.weight": found["model.embed_tokens.weight"] + 1},
    )
    assert "two spellings of one tensor" in check_folder(folder).reason
    with pytest.raises(CheckpointError, match="two spellings"):
        untie(folder, tmp_path / "out")
