"""The map of architectures that ships with the package; test_architectures_parity.py compares it with the library itself."""

import json
from pathlib import Path

import pytest
from architectures.merge import described, in_page

from tiejax.checkpoints.hub import architectures
from tiejax.checkpoints.hub.architectures import architecture_of, known

DOCS = Path(__file__).parents[3] / "docs" / "checkpoints_details.md"


def test_page_is_rendered_from_the_map():
    content = json.loads((Path(architectures.__file__).parent / architectures.FILE).read_text())
    assert in_page(DOCS.read_text(), described(content)) == DOCS.read_text()


@pytest.mark.parametrize(
    ("name", "first", "second", "ties"),
    [
        ("GPT2LMHeadModel", "transformer.wte.weight", "lm_head.weight", "by flag"),
        ("BertForMaskedLM", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "by flag"),
        ("WhisperForConditionalGeneration", "model.decoder.embed_tokens.weight", "proj_out.weight", "by flag"),
        ("BioGptForCausalLM", "biogpt.embed_tokens.weight", "output_projection.weight", "by flag"),
        ("XLMWithLMHeadModel", "transformer.embeddings.weight", "pred_layer.proj.weight", "by flag"),
        ("OpenAIGPTLMHeadModel", "transformer.tokens_embed.weight", "lm_head.weight", "by flag"),
        ("CTRLLMHeadModel", "transformer.w.weight", "lm_head.weight", "by flag"),
        ("RwkvForCausalLM", "rwkv.embeddings.weight", "head.weight", "by flag"),
        ("RemBertForMaskedLM", "rembert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "never"),
    ],
)
def test_tables_whose_names_were_read_in_the_source_of_the_library(name, first, second, ties):
    one = known()[name]
    assert (one.input[0], one.output[0]) == (first, second)
    assert one.only(ties)


@pytest.mark.parametrize(
    "name", ["ElectraForPreTraining", "FunnelForPreTraining", "BertModel", "LlamaForSequenceClassification"]
)
def test_classes_that_predict_no_tokens(name):
    assert known()[name].output == ()


@pytest.mark.parametrize("name", ["BertGenerationDecoder", "GPT2DoubleHeadsModel", "MarianMTModel", "SeamlessM4Tv2Model"])
def test_classes_that_predict_tokens_although_their_names_do_not_say_so(name):
    assert known()[name].output


def test_lookup():
    assert architecture_of({"architectures": ["GPT2LMHeadModel"], "model_type": "new"}).name == "GPT2LMHeadModel"
    assert architecture_of({"architectures": ["New"], "model_type": "gpt2"}) is None  # a class of someone's own
    assert architecture_of({"architectures": ["New", 3, "BertModel"]}).name == "BertModel"
    assert architecture_of({"model_type": "gpt2"}).output == ("lm_head.weight",)
    assert architecture_of({"model_type": "bigbird_pegasus"}) is None  # one class is never tied, the other by the flag
    assert architecture_of({"model_type": "encoder-decoder"}) is None  # of any two models
    assert architecture_of({"model_type": ["gpt2"]}) is None
    assert architecture_of({}) is None
