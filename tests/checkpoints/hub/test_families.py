"""Finding tables by the names of the families, and the tying flag of configurations."""

import re

import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, refused, values

from tiejax.checkpoints.diagnose.tables import find_tables
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.families import FAMILIES, flag_of

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
@pytest.mark.parametrize("known", [True, False])
def test_tables_are_found_by_their_usual_names(tmp_path, kind, known):
    """With an unknown `model_type`, the names of all families are tried."""
    first, second, bias, ties = STORED[kind]
    tensors = {first: values(), second: values(seed=1), "other.weight": values(6, 6), "position.weight": values(9, 4)}
    if kind == "t5" and known:  # with an unknown family, both would be candidates
        tensors["encoder.embed_tokens.weight"] = values()
    if bias:
        tensors[bias] = np.zeros(ROWS, np.float32)
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": kind if known else "new"})))
    assert (found.input.name, found.output.name, found.bias) == (first, second, bias)
    assert found.flag.tied == (ties if known else None)
    assert (found.family is None) == (not known)


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
    ("name", "head"),
    [
        ("LlamaForCausalLM", True),
        ("BertForMaskedLM", True),
        ("GPT2LMHeadModel", True),
        ("T5ForConditionalGeneration", True),
        ("BertModel", False),
        ("XLMRobertaModel", False),
        ("LlamaForSequenceClassification", False),
    ],
)
def test_architectures_that_predict_tokens(tmp_path, name, head):
    config = {"model_type": "llama", "architectures": [name]}
    assert find_tables(open_checkpoint(checkpoint(tmp_path / "c", {"embed_tokens.weight": values()}, config))).head is head


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


@pytest.mark.parametrize("name", ["lm_head.qweight", "model.lm_head.weight_packed"])
def test_quantised_head_is_found(tmp_path, name):
    tensors = {"model.embed_tokens.weight": values(), name: np.ones((2, 2), np.int32)}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "llama"})))
    assert (found.output, found.quantised) == (None, True)


def test_several_and_no_candidates(tmp_path):
    tensors = {"a.wte.weight": values(), "b.wte.weight": values(seed=1)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors, {"model_type": "gpt2"}))
    refused(lambda: find_tables(opened), "several", "input", "--input_table", "a.wte.weight", "b.wte.weight")
    opened = open_checkpoint(checkpoint(tmp_path / "d", {"in.weight": values(), "w": values(3, 3)}))
    refused(lambda: find_tables(opened), "no tensor", "--input_table", f"in.weight [{ROWS}, 4]")
    tensors = {"wte.weight": values(), "lm_head.weight": values(seed=1), "two.lm_head.weight": values(seed=2)}
    opened = open_checkpoint(checkpoint(tmp_path / "e", tensors, {"model_type": "gpt2"}))
    refused(lambda: find_tables(opened), "several", "output", "--output_table")


def test_flag():
    assert flag_of({"model_type": "llama", "tie_word_embeddings": True}).tied is True
    nested = {"model_type": "seen", "text_config": {"model_type": "gemma3_text", "tie_word_embeddings": False}}
    assert flag_of(nested) == (False, "text_config.tie_word_embeddings: false")
    assert flag_of({"model_type": "seen", "text_config": {"model_type": "gemma3_text"}}).tied is True
    assert flag_of({"model_type": "mt5"}).tied is None
    assert flag_of({"tie_word_embeddings": "yes"}).tied is None


def test_scales_are_in_the_notes(tmp_path):
    config = {"model_type": "gemma", "final_logit_softcapping": 30.0, "logit_scale": 1.0}
    found = find_tables(open_checkpoint(checkpoint(tmp_path / "c", {"embed_tokens.weight": values()}, config)))
    assert any("square root of the width" in note for note in found.notes)
    t5 = find_tables(open_checkpoint(checkpoint(tmp_path / "t5", {"shared.weight": values()}, {"model_type": "t5"})))
    assert any("From version 5 on, the transformers library ties them" in note for note in t5.notes)
    assert [note for note in found.notes if re.search("final_logit_softcapping 30", note) and "logit_scale" not in note]
