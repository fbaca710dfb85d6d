"""Small models of every family, saved by the transformers library, tied and untied: flag and tables agree."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import saved  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.diagnose.tables import find_tables  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import open_checkpoint  # noqa: E402

pytestmark = pytest.mark.parity

FAMILIES = [
    *("bert", "roberta", "xlm-roberta", "albert", "electra", "deberta-v2", "rembert", "modernbert"),
    *("gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("qwen2", "qwen3", "phi", "olmo2", "smollm3", "cohere2", "mamba", "t5", "mt5", "bart"),
]
# Families that ignore the flag: T5 is always tied from version 5 of the library on, RemBERT never.
ALWAYS, NEVER = ("t5", "mt5"), ("rembert",)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", FAMILIES)
def test_saved_models_agree(tmp_path, name, tied):
    folder = saved(name, tied, tmp_path / "c")
    one = check_folder(folder)
    # Version 4 has one table for the encoder and the decoder of an untied BART, which are filled with different numbers here.
    assert one.answer == ("cannot say" if (name, tied) == ("bart", False) else "agrees"), one
    assert one.family is not None
    is_tied = (tied or name in ALWAYS) and name not in NEVER
    assert one.stored.startswith("one table" if is_tied else "two"), one
    tables = find_tables(open_checkpoint(folder))  # as a diagnosis does
    assert tables.family == one.family
    assert tables.input.shape[0] == 40
    assert (tables.output is None) == is_tied


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma3_text", "bart", "mamba"])
def test_inverted_flag_disagrees(tmp_path, name):
    for tied in (True, False):
        folder = saved(name, tied, tmp_path / str(tied))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": not tied}))
        one = check_folder(folder)
        assert one.answer == "disagrees", one
        assert f"to {str(tied).lower()} in config.json" in one.edit


@pytest.mark.parametrize(
    ("type_", "kind"),
    [("bart", "BartModel"), ("bart", "BartForSequenceClassification"), ("mbart", "MBartModel")],
)
def test_encoder_and_decoder_without_a_head(tmp_path, type_, kind):
    """A flag that says untied needs three tables, of which the library initialises those that are missing."""
    sizes = ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    config = transformers.AutoConfig.for_model(type_, vocab_size=40, d_model=16, **dict.fromkeys(sizes, 1))
    for saved_tied, flag, answer in ((True, True, "agrees"), (True, False, "disagrees"), (False, False, "agrees")):
        config.tie_word_embeddings = saved_tied
        folder = tmp_path / f"{saved_tied}{flag}"
        getattr(transformers, kind)(config).save_pretrained(folder)
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | {"tie_word_embeddings": flag}))
        missing = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)[1]["missing_keys"]
        one = check_folder(folder)
        assert (one.answer, bool(missing)) == (answer, answer == "disagrees"), one
        assert answer == "agrees" or "encoder.embed_tokens.weight is missing" in one.reason


@pytest.mark.parametrize("tied", [True, False])
def test_text_model_without_a_part_of_its_own(tmp_path, tied):
    """Configurations of Qwen2-VL in which the settings of the text model stand at the top."""
    text = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2}
    given = {**text, "num_key_value_heads": 2, "vision_config": vision, "tie_word_embeddings": tied}
    flat = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", **given}
    folder = tmp_path / "c"
    transformers.Qwen2VLForConditionalGeneration(transformers.Qwen2VLConfig(**given)).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(flat))
    _, info = transformers.Qwen2VLForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    one = check_folder(folder)
    assert (one.answer, one.stored.startswith("one table")) == ("agrees", tied), one
    assert not info["missing_keys"]


def test_consequences_in_version_5_of_the_library(tmp_path):
    """Two different tables under a flag that says tied: the library keeps both."""
    folder = saved("llama", False, tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert any("transformers 5 keeps both" in line for line in check_folder(folder).follows)
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    # The output table alone, under a flag that says tied: the library uses it for both roles.
    tensors = load_file(folder / "model.safetensors")
    head = tensors["lm_head.weight"]
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert any("transformers 5 uses it for both" in line for line in check_folder(folder).follows)
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert torch.equal(model.model.embed_tokens.weight, head)
