"""Every family, made by the library at a small size, tied and untied: what it saves agrees with what it says."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from tiejax.surgery.check import checked  # noqa: E402

pytestmark = pytest.mark.parity

FAMILIES = [
    *("bert", "roberta", "xlm-roberta", "albert", "electra", "deberta-v2", "rembert", "modernbert"),
    *("gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "falcon", "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("qwen2", "qwen3", "phi", "olmo2", "smollm3", "cohere2", "mamba", "t5", "mt5", "bart"),
]
SMALL = {
    "vocab_size": 40,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "input_embedding_size", "word_embed_proj_dim"), 16),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "output_embedding_size"), 24
    ),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    "attention_types": [[["global"], 1]],
    "num_local_experts": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Both tie whatever they are told: T5 from version 5 of the library on, and RemBERT never.
ALWAYS, NEVER = ("t5", "mt5"), ("rembert",)


def saved(name, tied, folder):
    usual = transformers.AutoConfig.for_model(name)
    small = {
        key: value for key, value in SMALL.items() if hasattr(usual, key) and (name, key) != ("falcon", "head_dim")
    }  # which it computes
    config = transformers.AutoConfig.for_model(name, **small, tie_word_embeddings=tied)
    kinds = (MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)
    kind = next(kind[type(config)] for kind in kinds if type(config) in kind)
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_library_saves_agrees(tmp_path, name, tied):
    folder = saved(name, tied, tmp_path / "c")
    one = checked(folder)
    assert one.answer == "agrees", one
    assert one.family is not None
    is_tied = (tied or name in ALWAYS) and name not in NEVER
    assert one.stored.startswith("one table" if is_tied else "two"), one


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma3_text", "bart", "mamba"])
def test_a_flag_that_is_turned_disagrees(tmp_path, name):
    for tied in (True, False):
        folder = saved(name, tied, tmp_path / str(tied))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": not tied}))
        one = checked(folder)
        assert one.answer == "disagrees", one
        assert f"to {str(tied).lower()} in config.json" in one.edit


def test_what_is_said_of_version_5_of_the_library(tmp_path):
    """Two different tables under a flag that says tied: both are kept."""
    folder = saved("llama", False, tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert any("transformers 5 keeps both" in line for line in checked(folder).follows)
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    # And the output table alone, under a flag that says tied, is taken for both.
    tensors = load_file(folder / "model.safetensors")
    head = tensors["lm_head.weight"]
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert any("transformers 5 takes it for both" in line for line in checked(folder).follows)
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert torch.equal(model.model.embed_tokens.weight, head)
