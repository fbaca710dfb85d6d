"""Every way in which the flag and the stored tables of a checkpoint can agree or disagree."""

import json

import ml_dtypes
import numpy as np
import pytest
from hub_checkpoints import ROWS, checkpoint, values

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.hub.architectures import known
from tiejax.checkpoints.rewrite.untie import untie

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TWO = {EMBED: values(), HEAD: values(seed=1)}
ONE, EQUAL = {EMBED: values()}, {EMBED: values(), HEAD: values()}
SCALED, ALONE = {EMBED: values(), HEAD: 2.5 * values()}, {HEAD: values()}
NEARLY = {EMBED: values(), HEAD: values() + 1e-5 * values(seed=1)}
PADDED = {EMBED: values(), HEAD: np.concatenate([values(), np.zeros((3, 4), np.float32)])}
QUANTISED = {EMBED: values(), "lm_head.qweight": np.ones((2, 2), np.int32), "lm_head.scales": values(2, 2)}
NARROW = {EMBED: values(), HEAD: values(width=6)}


def check_tensors(tmp_path, tensors, tied, **config):
    flag = {} if tied is None else {"tie_word_embeddings": tied}
    return check_folder(checkpoint(tmp_path / "c", tensors, {"model_type": "llama", **flag, **config}))


@pytest.mark.parametrize(
    ("tensors", "tied", "answer", "stored", "edit"),
    [
        (ONE, True, "agrees", "one table", None),
        (ONE, False, "disagrees", "one table", "set tie_word_embeddings to true in config.json, if the model was trained tied"),
        (EQUAL, True, "agrees", "two equal tables", None),
        (EQUAL, False, "agrees", "two equal tables", None),
        (TWO, False, "agrees", "two different tables", None),
        (TWO, True, "disagrees", "two different tables", "set tie_word_embeddings to false in config.json"),
        (SCALED, True, "disagrees", "one a multiple of the other (2.5 times the input)", "set tie_word_embeddings to false"),
        (SCALED, False, "agrees", "(2.5 times the input)", None),
        (NEARLY, True, "disagrees", "two different tables", "set tie_word_embeddings to false"),
        (PADDED, True, "disagrees", "two equal tables, the output 3 rows longer", None),
        (PADDED, False, "agrees", "two equal tables, the output 3 rows longer", None),
        (QUANTISED, True, "cannot say", "a table stored quantised as by GPTQ or AWQ (lm_head.qweight)", None),
        (QUANTISED, False, "cannot say", "a table stored quantised as by GPTQ or AWQ (lm_head.qweight)", None),
        (NARROW, True, "disagrees", "two tables of different shapes", "set tie_word_embeddings to false"),
        (NARROW, False, "agrees", "two tables of different shapes", None),
        (ALONE, True, "disagrees", "the output table alone", "rename lm_head.weight to that of the input table"),
        (ALONE, False, "disagrees", "the output table alone", None),
        ({"other": values()}, True, "cannot say", "no table by a known name", None),
    ],
    ids=range(18),
)
def test_flag_and_file(tmp_path, tensors, tied, answer, stored, edit):
    one = check_tensors(tmp_path, tensors, tied)
    assert one.answer == answer
    assert stored in one.stored
    assert one.says == f"tie_word_embeddings: {str(tied).lower()}"
    assert (one.edit is None) == (edit is None)
    assert edit is None or one.edit.startswith(edit)


def test_default_of_the_family_without_a_flag(tmp_path):
    assert check_tensors(tmp_path, ONE, None).answer == "disagrees"  # the default of Llama is untied
    gemma = check_tensors(tmp_path, ONE, None, model_type="gemma")
    assert (gemma.answer, gemma.family) == ("agrees", "Gemma")
    assert check_tensors(tmp_path, ONE, None, model_type="new").answer == "cannot say"


def test_flag_at_both_levels(tmp_path):
    text = {"model_type": "gemma3_text", "tie_word_embeddings": False}
    two = {f"language_model.{name}": table for name, table in TWO.items()}
    both = check_tensors(tmp_path, two, True, model_type="gemma3", text_config=text)
    assert both.answer == "cannot say"  # versions read different levels
    edit = "set tie_word_embeddings to false at the top level and in text_config in config.json"
    assert both.edit == edit
    inner = check_tensors(tmp_path, two, None, model_type="gemma3", text_config=text | {"tie_word_embeddings": True})
    assert inner.edit == edit


def test_family_that_is_never_tied(tmp_path):
    tensors = {"rembert.embeddings.word_embeddings.weight": values(), "cls.predictions.decoder.weight": values(width=6)}
    assert check_tensors(tmp_path, tensors, True, model_type="rembert").answer == "agrees"
    alone = {"rembert.embeddings.word_embeddings.weight": values()}
    one = check_tensors(tmp_path, alone, True, model_type="rembert")
    assert (one.answer, one.edit) == ("disagrees", None)
    assert "never ties" in one.reason


def test_versions_of_the_library_that_differ(tmp_path):
    """T5: version 4 goes by the flag, version 5 always ties and keeps a second table if there is one."""
    t5, two = {"shared.weight": values()}, {"shared.weight": values(), HEAD: values(seed=1)}
    assert check_tensors(tmp_path, t5, True, model_type="t5").answer == "agrees"
    assert check_tensors(tmp_path, two, False, model_type="t5").answer == "agrees"
    assert check_tensors(tmp_path, two, True, model_type="t5").answer == "disagrees"
    one = check_tensors(tmp_path, t5, False, model_type="t5")
    assert one.answer == "cannot say"
    assert "in version 4: the output table is missing" in one.reason
    assert "in version 5: tied as the configuration says" in one.reason


def test_t5_without_its_shared_table(tmp_path):
    """Version 4 by the flag, version 5 always; 4.50 uses the output table for all, as seen by loading."""
    alone = check_tensors(tmp_path, ALONE, False, model_type="t5")
    assert (alone.answer, alone.edit) == ("disagrees", "rename lm_head.weight to that of the input table (shared.weight)")
    assert alone.reason.startswith("in version 4: the input table is missing; in version 5: the shared table is stored under")
    sides = {f"{side}.embed_tokens.weight": values() for side in ("encoder", "decoder")}
    for shared, said in (({}, True), ({"shared.weight": values()}, False)):
        one = check_tensors(tmp_path, sides | shared | {HEAD: values(seed=1)}, True, model_type="t5")
        assert any(line.startswith("shared.weight is not stored: transformers 4.50") for line in one.follows) == said


def test_table_stored_under_the_name_of_the_output_table(tmp_path):
    """The library stores the one table of a tied OpenAI GPT with two heads as its head."""
    config = {"architectures": ["OpenAIGPTDoubleHeadsModel"]}
    assert check_tensors(tmp_path, ALONE, True, **config).answer == "agrees"
    assert check_tensors(tmp_path, ALONE, False, **config).answer == "disagrees"


def test_equal_after_rounding(tmp_path):
    """A head in bfloat16 beside an input table in float32, or the reverse; rows of padding do not matter."""
    rounded = values().astype(ml_dtypes.bfloat16)
    padded = np.concatenate([rounded, np.ones((3, 4), rounded.dtype)])
    for first, second in ((values(), rounded), (rounded, values()), (values(), padded)):
        one = check_tensors(tmp_path, {EMBED: first, HEAD: second}, True)
        assert one.answer == "cannot say"
        assert "version 4 of the transformers library reads one table, and version 5 two" in one.reason
        assert one.stored.startswith("two tables, equal after rounding to bfloat16")
        assert check_tensors(tmp_path, {EMBED: first, HEAD: second}, False).answer == "agrees"
    other = rounded.copy()
    other[ROWS - 1, 3] += 1
    assert check_tensors(tmp_path, {EMBED: values(), HEAD: other}, True).stored == "two different tables"
    half = values().astype(np.float16)  # of which neither is the other after rounding
    assert check_tensors(tmp_path, {EMBED: half, HEAD: rounded}, True).stored == "two different tables"


@pytest.mark.parametrize(
    ("name", "table", "more"),
    [
        ("SwitchTransformersEncoderModel", "shared.weight", {}),
        ("ProphetNetEncoder", "word_embeddings.weight", {}),
        ("T5GemmaForTokenClassification", "model.encoder.embed_tokens.weight", {"is_encoder_decoder": False}),
    ],
)
def test_an_encoder_alone_lacks_no_table_of_a_decoder(tmp_path, name, table, more):
    assert check_tensors(tmp_path, {table: values()}, False, architectures=[name], **more).answer == "agrees"


def test_not_a_number_equals_itself(tmp_path):
    table = values().astype(np.float16)
    table[1, 2] = np.nan
    assert check_tensors(tmp_path, {EMBED: table.astype(np.float32), HEAD: table}, True).stored == "two equal tables"
    assert check_tensors(tmp_path, {EMBED: table, HEAD: values().astype(np.float32)}, True).stored == "two different tables"


def test_scales_beside_equal_bytes(tmp_path):
    """Equal integers with different scales are not equal tables."""
    table = np.ones((ROWS, 4), np.int8)
    scales = {"model.embed_tokens.weight_scale": values(), "lm_head.weight_scale": values(seed=1)}
    one = check_tensors(tmp_path, {EMBED: table, HEAD: table, **scales}, True)
    assert one.answer == "cannot say"
    assert "quantised with scales" in one.stored


def test_unknown_architecture_with_the_usual_names(tmp_path):
    one = check_tensors(tmp_path, TWO, True, architectures=["NewForCausalLM"], vocab_size=ROWS)
    assert one.answer == "cannot say"
    assert "NewForCausalLM is not known; tensors that may be tables: lm_head.weight [23, 4], model" in one.reason


def test_known_architecture_with_other_names(tmp_path):
    one = check_tensors(tmp_path, {"in": values(), "out": values(seed=1)}, False, vocab_size=ROWS)
    assert one.answer == "cannot say"
    assert "no tensor has the name of a table of llama; tensors that may be: in [23, 4], out [23, 4]" in one.reason


@pytest.mark.parametrize("name", ["ElectraForPreTraining", "FunnelForPreTraining"])
def test_discriminators_predict_no_tokens(tmp_path, name):
    for tied in (True, False):
        assert check_tensors(tmp_path, {"x": values()}, tied, architectures=[name]).answer == "agrees"


def test_encoder_without_a_head(tmp_path):
    one = check_tensors(
        tmp_path, {"embeddings.word_embeddings.weight": values()}, False, model_type="bert", architectures=["BertModel"]
    )
    assert (one.answer, one.edit) == ("agrees", None)


@pytest.mark.parametrize("place", [0, ROWS - 1])
def test_one_differing_value_is_found(tmp_path, place):
    other = values()
    other[place, 3] += 1
    assert check_tensors(tmp_path, {EMBED: values(), HEAD: other}, False).answer == "agrees"
    assert check_tensors(tmp_path, {EMBED: values(), HEAD: other}, True).answer == "disagrees"


def test_different_dtypes_are_compared_by_value(tmp_path):
    exact = values().round().astype(np.float16)
    assert check_tensors(tmp_path, {EMBED: exact, HEAD: exact.astype(np.float32)}, True).answer == "agrees"


def test_shards(tmp_path):
    folder = checkpoint(tmp_path / "c", {EMBED: values()}, {"model_type": "llama"}, file="a.safetensors")
    checkpoint(tmp_path / "c", {HEAD: values()}, {"model_type": "llama", "tie_word_embeddings": True}, file="b.safetensors")
    index = {"weight_map": {EMBED: "a.safetensors", HEAD: "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert check_folder(folder).stored == "two equal tables"


CODES = {"t2u_model.model.decoder.embed_tokens.weight": values(9), "t2u_model.lm_head.weight": values(9, seed=1)}
BIASES = {"cls.predictions.bias": values(ROWS, 1)[:, 0], "cls.predictions.decoder.bias": values(ROWS, 1, seed=1)[:, 0]}
FURTHER = {
    "SeamlessM4TModel": ("shared.weight", HEAD, CODES),
    "NeoMMEForMaskedLM": (
        "model.embed_tokens.word_embeddings.weight",
        HEAD,
        {"model.embed_tokens.embedding_projection.weight": values(4), "unembedding_projection.weight": values(4, seed=1)},
    ),
    "BertForMaskedLM": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", BIASES),
    "BartForConditionalGeneration": (
        "model.shared.weight",
        HEAD,
        {"model.encoder.embed_tokens.weight": values(), "model.decoder.embed_tokens.weight": values(seed=1)},
    ),
}


@pytest.mark.parametrize("two", [False, True], ids=["one table", "two tables"])
@pytest.mark.parametrize("name", FURTHER)
def test_further_tensors_that_the_flag_makes_one(tmp_path, name, two):
    """Under a flag that says tied they must be equal, or only one of them stored.

    Under the other flag they may differ, except in version 4, in which they are one in BERT and BART.
    """
    differing = "cannot say" if name in ("BertForMaskedLM", "BartForConditionalGeneration") else "agrees"
    first, second, (kept, other) = FURTHER[name][0], FURTHER[name][1], FURTHER[name][2].items()
    tables = {first: values()} | ({second: values()} if two else {})
    differ = tables | dict([kept, other])
    one = check_tensors(tmp_path, differ, True, architectures=[name])
    assert one.answer == "disagrees"
    assert other[0] in one.reason
    by_hand = two and name != "SeamlessM4TModel"  # whose untied models read further copies
    assert one.edit.startswith("set tie_word_embeddings to false" if by_hand else "write an untied copy")
    for stored in (dict([kept]), dict([kept]) | {other[0]: kept[1]}):
        assert check_tensors(tmp_path, tables | stored, True, architectures=[name]).answer == "agrees"
    if two:
        separate = {copy: values() for names in known()[name].separate.values() for copy in (known()[name].input[0], *names)}
        assert check_tensors(tmp_path, separate | differ, False, architectures=[name]).answer == differing
    else:  # the edit fixes it
        config = {"architectures": [name], "tie_word_embeddings": True}
        untie(checkpoint(tmp_path / "differ", differ, config), tmp_path / "untied")
        assert check_folder(tmp_path / "untied").answer == differing


@pytest.mark.parametrize(
    ("tensors", "kind", "answer"),
    [
        ({"wte.weight": values(), "h.0.ln_1.weight": values(4, 1)[:, 0]}, "gpt2", "agrees"),
        ({"wte.weight": values(), HEAD: values(seed=1)}, "gpt2", "cannot say"),
        ({"embeddings.word_embeddings.weight": values(), "cls.predictions.bias": values(23, 1)[:, 0]}, "bert", "cannot say"),
    ],
)
def test_version_4_reads_names_without_the_prefix_if_no_head_is_beside_them(tmp_path, tensors, kind, answer):
    one = check_tensors(tmp_path, tensors, HEAD not in tensors, model_type=kind)
    assert one.answer == answer, one
    assert ("although the file has a head" in one.reason) is (answer == "cannot say")
