"""Checkpoints whose head reads another table than the first one, or whose flag changes more than their tables."""

import functools
import itertools
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.hub.architectures import known  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import CONFIG, WEIGHTS, open_checkpoint  # noqa: E402
from tiejax.checkpoints.hub.errors import CheckpointError  # noqa: E402
from tiejax.checkpoints.hub.families import FLAG  # noqa: E402
from tiejax.checkpoints.hub.stored import stored_tables  # noqa: E402
from tiejax.checkpoints.rewrite.fix import fix  # noqa: E402
from tiejax.checkpoints.rewrite.tie import tie  # noqa: E402
from tiejax.checkpoints.rewrite.untie import untie  # noqa: E402

pytestmark = pytest.mark.parity

TOKENS = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PART = {
    **TOKENS,
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 2},
}
BART = {
    **TOKENS,
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 0, "forced_eos_token_id": None},
}


def t5gemma(tied):
    config = transformers.T5GemmaConfig(encoder=PART, decoder=PART, vocab_size=40, tie_word_embeddings=tied)
    return transformers.T5GemmaForConditionalGeneration(config)


def bart(tied):
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**BART, tie_word_embeddings=tied))


def marian(tied):
    config = transformers.MarianConfig(
        **BART, decoder_vocab_size=40, share_encoder_decoder_embeddings=False, tie_word_embeddings=tied
    )
    return transformers.MarianMTModel(config)


def switch(tied):
    small = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "num_experts": 2}
    config = transformers.SwitchTransformersConfig(**small, **TOKENS, tie_word_embeddings=tied)
    return transformers.SwitchTransformersForConditionalGeneration(config)


def imagegpt(tied):
    small = {"vocab_size": 41, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = transformers.ImageGPTConfig(**small, tie_word_embeddings=tied)
    return transformers.ImageGPTForCausalImageModeling(config)


def saved(make, tied, folder):
    torch.manual_seed(0)
    model = make(tied)
    for value in model.parameters():  # a table of zeros would hide a wrong one
        torch.nn.init.normal_(value, std=0.3)
    model.save_pretrained(folder)
    return folder


def loaded(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    (kind,) = config.architectures
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    return model.eval()


def logits(model):
    tokens = torch.arange(3, 9)[None]
    more = {} if model.config.model_type == "imagegpt" else {"decoder_input_ids": tokens + 1}
    with torch.no_grad():
        return model(tokens, **more).logits


def test_the_head_of_t5gemma_reads_the_table_of_the_decoder(tmp_path):
    folder = saved(t5gemma, True, tmp_path / "tied")
    assert check_folder(folder).answer == "agrees"
    untie(folder, tmp_path / "untied")
    assert check_folder(tmp_path / "untied").answer != "disagrees"  # version 4 reads the flag of another part
    assert torch.equal(logits(loaded(folder)), logits(loaded(tmp_path / "untied")))
    tie(tmp_path / "untied", tmp_path / "again")
    assert torch.equal(logits(loaded(folder)), logits(loaded(tmp_path / "again")))


def test_a_head_equal_to_the_table_of_the_encoder_is_not_taken_for_tied(tmp_path):
    folder = saved(t5gemma, False, tmp_path / "untied")
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.out_proj.weight"] = tensors["model.encoder.embed_tokens.weight"].clone()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    assert stored_tables(open_checkpoint(folder)).relation == "differ"
    with pytest.raises(CheckpointError):
        tie(folder, tmp_path / "tied")


@pytest.mark.parametrize("tied", [True, False])
def test_a_setting_that_the_map_does_not_know(tmp_path, tied):
    folder = saved(marian, tied, tmp_path / "marian")
    one = check_folder(folder)
    assert one.answer == "cannot say"
    assert "MarianMTModel, whose share_encoder_decoder_embeddings is false, is not known" in one.reason
    with pytest.raises(CheckpointError, match="share_encoder_decoder_embeddings is false"):
        (untie if tied else tie)(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [switch, imagegpt])
def test_a_flag_that_changes_more_than_the_tables(tmp_path, make):
    """With the same tables, the logits of a tied and an untied model differ, or the tables do not fit."""
    tied, untied = (loaded(saved(make, tied, tmp_path / str(tied))) for tied in (True, False))
    table, head = tied.get_output_embeddings().weight, untied.get_output_embeddings().weight
    if table.shape == head.shape:
        missing = untied.load_state_dict({**tied.state_dict()}, strict=False)
        assert not missing.unexpected_keys
        assert not torch.allclose(logits(tied), logits(untied))
    with pytest.raises(CheckpointError, match=r"cannot be untied: .*(scale of logits|another shape)"):
        untie(tmp_path / "True", tmp_path / "out")
    with pytest.raises(CheckpointError, match="cannot be tied"):
        tie(tmp_path / "False", tmp_path / "out")
    (tmp_path / "False" / CONFIG).write_bytes((tmp_path / "True" / CONFIG).read_bytes())
    if table.shape == head.shape:  # a flag that says untied would scale the logits
        assert check_folder(tmp_path / "False")[2::5] == ("disagrees", None)  # no edit
        with pytest.raises(CheckpointError, match=r"needs a decision: .*scale of logits"):
            fix(tmp_path / "False", tmp_path / "out")


ZAMBA = {
    **{"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "mamba_d_state": 8},
    **{"n_mamba_heads": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "num_mem_blocks": 1},
    **{"mamba_dt_rank": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "use_mamba_kernels": False, "chunk_size": 8},
    **{"attention_hidden_size": 32, "attention_head_dim": 16, "adapter_rank": 4},
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
}


def zamba(version, tied):
    config = getattr(transformers, f"Zamba{version}Config")(**ZAMBA, tie_word_embeddings=tied)
    return getattr(transformers, f"Zamba{version}ForCausalLM")(config)


@pytest.mark.parametrize("version", ["", "2"])
def test_a_flag_that_makes_blocks_of_layers_one(tmp_path, version):
    """Version 5 of the library initialises what a flag that says untied makes separate and the file stores once."""
    tied, untied = (saved(functools.partial(zamba, version), flag, tmp_path / str(flag)) for flag in (True, False))
    assert check_folder(tied).answer == check_folder(untied).answer == "agrees"
    assert loaded(untied)
    tensors = load_file(tied / WEIGHTS)
    config = json.loads((tied / CONFIG).read_text())
    head = tensors["model.embed_tokens.weight"] + 1
    for name, flag in (("flag", False), ("two", True)):
        (tmp_path / name).mkdir()
        save_file(tensors | {"lm_head.weight": head}, tmp_path / name / WEIGHTS, {"format": "pt"})
        (tmp_path / name / CONFIG).write_text(json.dumps(config | {FLAG: flag}))
    kind = getattr(transformers, *config["architectures"])
    _, info = kind.from_pretrained(tmp_path / "flag", output_loading_info=True)
    one = check_folder(tmp_path / "flag")
    assert one.answer == "cannot say"
    assert any(f"in version 5: {name} is missing" in one.reason for name in info["missing_keys"])
    assert check_folder(tmp_path / "two")[2::5] == ("disagrees", None)  # no edit
    for command, folder in ((untie, "True"), (tie, "False"), (tie, "flag"), (tie, "two"), (fix, "flag"), (fix, "two")):
        with pytest.raises(CheckpointError, match=r"which layers share a block|versions of the transformers library differ"):
            command(tmp_path / folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["ZambaForCausalLM", "Zamba2ForCausalLM", "LlamaForCausalLM"])
def test_blocks_that_the_map_names_are_those_of_the_library(name):
    from architectures.rows import block_of

    one = known()[name]
    assert (block_of(getattr(transformers, name)), one.scaled) == (one.blocks.get("5", ""), bool(one.blocks))


def test_tables_of_encoder_and_decoder_that_are_missing(tmp_path):
    folder = saved(bart, False, tmp_path / "bart")
    assert "are one tensor in this version" in check_folder(folder).reason  # version 4
    tensors = load_file(folder / WEIGHTS)
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"):
        del tensors[name]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    _, info = transformers.BartForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert "model.encoder.embed_tokens.weight" in info["missing_keys"]
    assert check_folder(folder).answer != "agrees"
    with pytest.raises(CheckpointError):
        fix(folder, tmp_path / "out")


COMPOSITES = ["SmolVLM", "Idefics3", "LlavaNext", "Qwen3VL", "Mistral3", "Gemma3"]


@pytest.mark.parametrize("name", COMPOSITES)
def test_flags_at_two_levels(tmp_path, name):
    """All states of both flags, for a file with one table and with two, against the class built from each configuration."""
    from architectures.small_models import build, save

    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    one, states = known()[kind.__name__], (None, True, False)
    built = {both: build(kind, True, states=dict(zip(("", "text_config"), both, strict=True))).tied
             for both in itertools.product(states, states)}  # fmt: skip
    for stored_tied in (True, False):
        folder = tmp_path / str(stored_tied)
        save(build(kind, stored_tied), folder)
        usual = json.loads((folder / CONFIG).read_text())
        for both, tied in built.items():
            parts = [{key: value for key, value in part.items() if key != FLAG} for part in (usual, usual["text_config"])]
            top, text = (part | ({} if flag is None else {FLAG: flag}) for part, flag in zip(parts, both, strict=True))
            (folder / CONFIG).write_text(json.dumps(top | {"text_config": text}))
            found = check_folder(folder)
            if set(both) == {True, False}:
                assert found.answer != "agrees"  # other loaders read the other level
            elif len({one.tied(version, both) for version in one.flag}) > 1:
                assert found.answer == "cannot say"
            else:
                assert found.answer == ("agrees" if tied == stored_tied else "disagrees"), (both, found)
