"""Finding tables by the names of the families, and the tying flag of configurations."""

import re

import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, refused, values

from tiejax.checkpoints.diagnose.tables import find_tables
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FAMILIES, flag_of, with_flag

STORED = {
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "cls.predictions.bias", True),
    "roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight", "lm_head.bias", True),
    "gpt2": ("wte.weight", "lm_head.weight", None, True),
    "gpt_neox": ("gpt_neox.embed_in.weight", "embed_out.weight", None, False),
    "llama": ("model.embed_tokens.weight", "lm_head.weight", None, False),
    "qwen2": ("model.embed_tokens.weight", "lm_head.weight", None, False),
    "gemma": ("model.embed_tokens.weight", "lm_head.weight", None, True),
    "olmo": ("model.embed_tokens.weight", "lm_head.weight", None, False),
    "t5": ("shared.weight", "lm_head.weight", None, True),
    "modernbert": ("model.embeddings.tok_embeddings.weight", "decoder.weight", "decoder.bias", True),
}


@pytest.mark.parametrize("kind", list(STORED))
def test_tables_are_found_by_the_names_of_their_architecture(tmp_path, kind):
    first, second, bias, ties = STORED[kind]
    tensors = {first: values(), second: values(seed=1), "other.weight": values(6, 6), "position.weight": values(9, 4)}
    if kind == "t5":
        tensors["encoder.embed_tokens.weight"] = values()
    if bias:
        tensors[bias] = np.zeros(ROWS, np.float32)
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": kind})))
    assert (found.input.name, found.output.name, found.bias) == (first, second, bias)
    assert found.flag.tied == ties
    assert found.family is not None


@pytest.mark.parametrize("config", [{"model_type": "new"}, {"model_type": "llama", "architectures": ["NewForCausalLM"]}])
def test_unknown_architecture_is_not_guessed(tmp_path, config):
    """The usual names are not enough: the error names the tensors with one row for each token."""
    tensors = {"model.embed_tokens.weight": values(), "lm_head.weight": values(), "w": values(90, 4)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, config | {"vocab_size": ROWS}))
    shapes = f"lm_head.weight [{ROWS}, 4], model.embed_tokens.weight [{ROWS}, 4];"
    refused(lambda: find_tables(opened), "is not known", shapes, "--input_table", "--output_table")
    found = find_tables(opened, "model.embed_tokens.weight", "lm_head.weight")
    assert (found.family, found.flag.tied, found.bias) == (None, None, None)
    one = find_tables(opened, "model.embed_tokens.weight")
    assert (one.output, one.flag.tied) == (None, None)


@pytest.mark.parametrize("untied", [True, False])
def test_decoder_bias_takes_precedence(tmp_path, untied):
    """The decoder's own bias comes before the one a level up, in either order of storage."""
    bias, own = np.zeros(ROWS, np.float32), "cls.predictions.decoder.bias"
    tensors = {"embeddings.word_embeddings.weight": values(), "cls.predictions.bias": bias}
    tensors |= {"cls.predictions.decoder.weight": values(seed=1)} if untied else {}
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "bert"})
    assert find_tables(open_checkpoint(folder)).bias == "cls.predictions.bias"
    folder = checkpoint(tmp_path / "d", {**tensors, own: bias}, {"model_type": "bert"})
    assert find_tables(open_checkpoint(folder)).bias == own


def test_bias_of_bart_is_a_row(tmp_path):
    tensors = {"model.shared.weight": values(), "final_logits_bias": np.zeros((1, ROWS), np.float32)}
    for shape, found in (((1, ROWS), "final_logits_bias"), ((1, ROWS - 1), None)):
        tensors["final_logits_bias"] = np.zeros(shape, np.float32)
        folder = checkpoint(tmp_path / "c", tensors, {"model_type": "bart"})
        assert find_tables(open_checkpoint(folder)).bias == found


def test_model_types_are_unique():
    types = [kind for family in FAMILIES for kind in family.types]
    assert len(types) == len(set(types))


def test_no_stored_output_table(tmp_path):
    folder = checkpoint(tmp_path / "c", {"model.embed_tokens.weight": values()}, {"model_type": "llama"})
    found = find_tables(open_checkpoint(folder))
    assert (found.output, found.flag.tied, found.head) == (None, False, True)


@pytest.mark.parametrize(
    ("name", "table", "head"),
    [
        ("LlamaForCausalLM", "model.embed_tokens.weight", True),
        ("BertForMaskedLM", "bert.embeddings.word_embeddings.weight", True),
        ("GPT2LMHeadModel", "transformer.wte.weight", True),
        ("T5ForConditionalGeneration", "shared.weight", True),
        ("MarianMTModel", "model.shared.weight", True),
        ("BertModel", "embeddings.word_embeddings.weight", False),
        ("XLMRobertaModel", "embeddings.word_embeddings.weight", False),
        ("LlamaForSequenceClassification", "model.embed_tokens.weight", False),
        ("ElectraForPreTraining", "electra.embeddings.word_embeddings.weight", False),
    ],
)
def test_architectures_that_predict_tokens(tmp_path, name, table, head):
    opened = open_checkpoint(checkpoint(tmp_path / "c", {table: values()}, {"architectures": [name]}))
    assert find_tables(opened).head is head


def test_prefix_of_all_names_of_a_file(tmp_path):
    """As a wrapper for several devices or a compiler writes them."""
    tensors = {"module.model.embed_tokens.weight": values(), "module.lm_head.weight": values(seed=1), "module.x": values(2, 2)}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"})))
    assert (found.input.name, found.output.name) == ("module.model.embed_tokens.weight", "module.lm_head.weight")
    tensors["other.lm_head.weight"] = tensors.pop("module.lm_head.weight")  # of another part of the model
    assert find_tables(open_checkpoint(checkpoint(tmp_path / "d", tensors, {"model_type": "llama"}))).output is None


def test_transposed_output_and_input(tmp_path):
    tensors = {"model.embed_tokens.weight": values().T, "lm_head.weight": values(seed=1).T}
    config = {"model_type": "llama", "vocab_size": ROWS}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, config)))
    assert found.input.transposed
    assert found.output.transposed
    np.testing.assert_array_equal(found.output[2:5], values(seed=1)[2:5])


def test_tables_by_given_names(tmp_path):
    tensors = {"x": values(), "y": values(seed=1), "model.embed_tokens.weight": values(5, 4)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"}))
    found = find_tables(opened, "x", "y")
    assert (found.input.name, found.output.name) == ("x", "y")
    refused(lambda: find_tables(opened, "x", "x"), "--output_table x", "is the input table")
    refused(lambda: find_tables(opened, "x", "z"), "--output_table z", "no such tensor")
    refused(lambda: find_tables(opened, None, "x"), "--output_table x", f"[{ROWS}, 4]", "[5, 4]", "one row per token")


def test_head_of_a_wrong_shape_is_an_error(tmp_path):
    tensors = {"model.embed_tokens.weight": values(), "lm_head.weight": values(ROWS - 1, 4)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"}))
    refused(lambda: find_tables(opened), "lm_head.weight", f"[{ROWS - 1}, 4]", f"[{ROWS}, 4]")


def test_padding_rows_of_the_head_are_ignored(tmp_path):
    tensors = {"model.embed_tokens.weight": values(), "lm_head.weight": values(ROWS + 5, 4, seed=1)}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"})))
    assert found.output.shape == (ROWS, 4)
    np.testing.assert_array_equal(found.output[:], tensors["lm_head.weight"][:ROWS])
    assert any("5 more rows" in note for note in found.notes)


def test_output_table_alone_is_used(tmp_path):
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", {"lm_head.weight": values()}, {"model_type": "llama"})))
    assert (found.input.name, found.output) == ("lm_head.weight", None)
    assert any("Only the output table" in note for note in found.notes)


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (["lm_head.qweight", "lm_head.qzeros"], "as by GPTQ or AWQ (lm_head.qweight)"),
        (["lm_head.weight_packed", "lm_head.weight_scale"], "packed as by compressed-tensors (lm_head.weight_packed)"),
        (["lm_head.weight", "lm_head.weight_scale_inv"], "quantised with scales (lm_head.weight_scale_inv)"),
        (["lm_head.weight", "lm_head.SCB"], "quantised by bitsandbytes (lm_head.SCB)"),
        (["lm_head.weight", "lm_head.weight.absmax", "lm_head.weight.quant_state.bitsandbytes__nf4"], "as nf4 of bitsandbytes"),
        (["lm_head.blocks", "lm_head.scales"], "as mxfp4 blocks with scales (lm_head.blocks)"),
        (["lm_head.base_layer.weight", "lm_head.lora_A.default.weight"], "with a LoRA adapter"),
        (["lm_head.original_module.weight", "lm_head.modules_to_save.default.weight"], "as modules_to_save of an adapter"),
        (["model.embed_tokens.lora_embedding_A.default"], "with a LoRA adapter"),
        (["lm_head.weight"], "as I8 (lm_head.weight)"),
        (["lm_head._weight_qdata", "lm_head._weight_scale"], "in another form (lm_head._weight_qdata)"),  # torchao
        (["lm_head.q_weight"], "in another form (lm_head.q_weight)"),  # EXL2
        (["lm_head.trellis"], "in another form (lm_head.trellis)"),  # EXL3
        (["lm_head.parametrizations.weight.original0"], "in another form (lm_head.parametrizations"),
        (["model.embed_tokens.token_adapter.trainable_tokens_delta.default"], "with trained tokens of an adapter"),
    ],
)
def test_quantised_and_adapted_tables(tmp_path, names, form):
    tensors = {"model.embed_tokens.weight": values()} | dict.fromkeys(names, np.ones((ROWS, 4), np.int8))
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"})))
    assert found.output is None
    assert form in found.form


def test_no_table(tmp_path):
    tensors = {"a.wte.weight": values(), "b.wte.weight": values(seed=1)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "gpt2"}))
    refused(lambda: find_tables(opened), "input table of gpt2", "--input_table", "a.wte.weight", "b.wte.weight")


def test_flag():
    assert flag_of({"model_type": "llama", "tie_word_embeddings": True}).tied is True
    nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "tie_word_embeddings": False}}
    assert flag_of(nested).tied is None
    assert flag_of(nested).where.endswith("take differently: untied in version 4, tied in version 5")
    differing = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"tie_word_embeddings": False}}
    assert flag_of(differing).where.endswith("take differently: untied in version 4, tied in version 5")
    unread = {"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "text_config": {"tie_word_embeddings": False}}
    said = "text_config.tie_word_embeddings: false is not read; the default of ernie4_5_vl_moe is true"
    assert flag_of(unread) == (True, said)
    assert flag_of(nested | {"tie_word_embeddings": False}) == (False, "tie_word_embeddings: false")
    assert flag_of({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}).tied is True
    assert flag_of({"model_type": "mt5"}).tied is None
    for value in ("yes", 0, None):
        with pytest.raises(CheckpointError, match=r"tie_word_embeddings: expected true or false, got"):
            flag_of({"tie_word_embeddings": value})


def test_another_name_of_the_flag():
    """LFM2 reads `tie_embedding` too, which counts if both are present."""
    config = {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "tie_embedding": False}
    assert flag_of(config).tied is False
    assert flag_of(config | {"tie_word_embeddings": True}).tied is False
    assert flag_of(with_flag(config, True)).tied is True
    assert flag_of({"model_type": "llama", "tie_embedding": True}).tied is False  # which only LFM2 reads


def test_defaults_of_the_text_model():
    """Without a flag in the text part, its own default counts, whatever type of text model the class usually has."""
    llava = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    for kind, tied in (("llama", False), ("gemma", True), ("cohere", True)):
        assert flag_of(llava | {"text_config": {"model_type": kind}}).tied is tied
    assert flag_of(llava | {"text_config": {"model_type": "of-another-library"}}).tied is None


def test_scales_are_in_the_notes(tmp_path):
    config = {"model_type": "gemma", "final_logit_softcapping": 30.0, "logit_scale": 1.0}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", {"model.embed_tokens.weight": values()}, config)))
    assert any("square root of the width" in note for note in found.notes)
    t5 = find_tables(open_checkpoint(checkpoint(tmp_path / "t5", {"shared.weight": values()}, {"model_type": "t5"})))
    assert any("From version 5 on, the transformers library ties them" in note for note in t5.notes)
    assert [note for note in found.notes if re.search("final_logit_softcapping 30", note) and "logit_scale" not in note]
