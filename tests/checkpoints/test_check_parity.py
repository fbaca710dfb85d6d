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
