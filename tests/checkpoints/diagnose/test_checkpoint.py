"""The diagnosis of checkpoints: flag and stored tables, similar and unrelated tables, degenerate tables, real models."""

import json
import warnings
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy import linalg, stats
from two_tables import NAMES, TOKENS, make, pair, results_of

from tiejax.checkpoints.diagnose.checkpoint import COMPARED, Fact, norm_facts
from tiejax.checkpoints.diagnose.tables import Ranked
from tiejax.checkpoints.diagnose.verdict import agreement, verdict
from tiejax.checkpoints.hub.families import flag_of
from tiejax.geometry.ranks import frequency_ranks
from tiejax.lab import diagnose
from tiejax.lab.studies.diagnosis import checkpoint_page


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("fact", ["untied", "equal", "absent"])
def test_flag_and_fact(tmp_path, fact, flag):
    first, second = pair()
    tensors = {NAMES[0]: first}
    if fact != "absent":
        tensors[NAMES[1]] = first.copy() if fact == "equal" else second
    if flag is None:  # a model that nothing is known about: the user names the tables
        given = dict(zip(("input_table", "output_table"), tensors, strict=False))
        results, _ = results_of(make(tmp_path / "c", tensors, model_type="new"), **given)
        assert "does not say" in agreement(results)
    else:
        results, _ = results_of(make(tmp_path / "c", tensors, model_type="llama", tie_word_embeddings=flag))
        says = {
            ("untied", True): "disagrees: loaders that trust the flag drop the stored output table",
            ("untied", False): "agrees: untied as the configuration says.",
            ("equal", True): "agrees: tied as the configuration says.",
            ("equal", False): "agrees: untied as the configuration says, but equal",
            ("absent", True): "agrees: tied as the configuration says.",
            ("absent", False): "disagrees: the output table is missing, so that loaders initialise one at random",
        }
        assert says[fact, flag] in agreement(results)
    assert results["fact"] == fact
    compared = {name: results[name] is not None for name in COMPARED}  # a tied checkpoint has nothing to compare
    assert set(compared.values()) == {fact == "untied"}
    first_line = verdict(results)[0]
    assert ("tied" in first_line or flag is not True) if fact != "untied" else "untied" in first_line


def test_values_of_fact_are_documented():
    for text in (diagnose.__doc__, (Path(__file__).parents[3] / "docs" / "diagnose.md").read_text()):
        for name in (*get_args(Fact), *COMPARED):
            assert f"`{name}`" in text


def test_one_differing_row_makes_them_untied(tmp_path):
    first, _ = pair()
    second = first.copy()
    second[17, 2] += 2**-10
    results, _ = results_of(make(tmp_path / "c", dict(zip(NAMES, (first, second), strict=True))))
    assert (results["fact"], results["differing_rows"], results["standing"]) == ("untied", 1, "near")
    assert results["alignment"]["identity"] == pytest.approx(1, abs=1e-5)
    assert results["neighbours"]["estimate"] > 0.95


def test_unrelated_tables_are_apart_and_rotated_tables_near(tmp_path):
    first, _ = pair(600, 8)
    unrelated = np.random.default_rng(5).normal(size=(600, 8)).astype(np.float32)
    rotated = first @ linalg.qr(unrelated[:8])[0].astype(np.float32)
    for name, second, standing in (("u", unrelated, "apart"), ("r", rotated, "near")):
        results, _ = results_of(make(tmp_path / name, dict(zip(NAMES, (first, second), strict=True))), sample=200)
        assert results["standing"] == standing
        low, high = results["neighbours"]["interval"]
        assert low <= results["neighbours"]["estimate"] <= high
    assert results["alignment"]["procrustes"] == pytest.approx(1, abs=1e-5)
    assert abs(results["alignment"]["identity"]) < 0.9


def test_transposed_table_of_another_width(tmp_path):
    first, second = pair()
    tensors = {NAMES[0]: first[:, :3], NAMES[1]: second.T}
    results, arrays = results_of(make(tmp_path / "c", tensors))
    assert results["tables"]["output"]["transposed"]
    assert results["alignment"]["identity"] is None
    assert results["canonical"]["number"] == 3
    np.testing.assert_allclose(arrays["norm_output"], np.linalg.norm(second, axis=1), rtol=1e-5)


EDGES = {
    "output of zeros": (pair()[0], np.zeros((40, 4), np.float32), None),
    "three tokens": (np.zeros((3, 4), np.float32), np.eye(3, 4, dtype=np.float32), None),
    "one column": (pair(width=1)[0], pair(width=1)[1], None),
    "one token in the corpus": (*pair(len(TOKENS)), "the the"),
}


@pytest.mark.parametrize("name", list(EDGES))
def test_degenerate_tables(tmp_path, name):
    first, second, text = EDGES[name]
    options = {}
    if text:
        (tmp_path / "t.txt").write_text(text)
        options["corpus"] = str(tmp_path / "t.txt")
    results, arrays = results_of(make(tmp_path / "c", dict(zip(NAMES, (first, second), strict=True)), tokens=TOKENS), **options)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert len(checkpoint_page.plot_all(results, arrays)) == 2
    assert len(verdict(results)) >= 5
    if name == "output of zeros":
        assert results["alignment"]["identity"] is None
        assert results["neighbours"]["estimate"] == 0


SIZES = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

T5 = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}

SPECIAL = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}

MODELS = {
    "BertForMaskedLM": ("BertConfig", SIZES),
    "RobertaForMaskedLM": ("RobertaConfig", SIZES),
    "ModernBertForMaskedLM": ("ModernBertConfig", SIZES | SPECIAL | {"cls_token_id": 0, "sep_token_id": 2}),
    "GPT2LMHeadModel": ("GPT2Config", {"vocab_size": 40, "n_embd": 8, "n_layer": 1, "n_head": 2} | SPECIAL),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "LlamaForCausalLM": ("LlamaConfig", SIZES),
    "Qwen2ForCausalLM": ("Qwen2Config", SIZES),
    "GemmaForCausalLM": ("GemmaConfig", SIZES | {"head_dim": 4, "num_key_value_heads": 2}),
    "OlmoForCausalLM": ("OlmoConfig", SIZES | SPECIAL),
    "T5ForConditionalGeneration": ("T5Config", T5),
}

FAMILY = {
    "BertForMaskedLM": "BERT",
    "RobertaForMaskedLM": "RoBERTa",
    "ModernBertForMaskedLM": "ModernBERT",
    "GPT2LMHeadModel": "GPT-2",
    "GPTNeoXForCausalLM": "NeoX (Pythia)",
    "LlamaForCausalLM": "Llama",
    "Qwen2ForCausalLM": "Qwen",
    "GemmaForCausalLM": "Gemma",
    "OlmoForCausalLM": "OLMo",
    "T5ForConditionalGeneration": "T5",
}


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of these libraries at import
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
    return torch, transformers


@pytest.mark.parity
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_models_of_the_transformers_library(library, tmp_path, name, tied):
    """Tables, tying and flag agree with the library's model, and the family's default with its configuration class."""
    torch, transformers = library
    kind, sizes = MODELS[name]
    default = getattr(transformers, kind)(**sizes).tie_word_embeddings
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, kind)(**sizes, tie_word_embeddings=tied))
    if name.startswith("T5") and not tied:  # version 5 ties T5 whatever the flag says
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn(40, 8))
    first, second = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (first is second) == tied
    model.save_pretrained(tmp_path / "c")
    results, arrays = results_of(tmp_path / "c", sample=40)
    assert results["family"] == FAMILY[name]
    assert results["fact"] == ("absent" if tied else "untied")
    assert results["check"]["answer"] == "agrees" or name.startswith("T5")  # what the versions of the library do not agree on
    np.testing.assert_allclose(arrays["norm_input"], first.detach().norm(dim=1).numpy(), rtol=1e-5)
    if not tied:
        np.testing.assert_allclose(arrays["norm_output"], second.detach().norm(dim=1).numpy(), rtol=1e-5)
    config = json.loads((tmp_path / "c/config.json").read_text())
    config.pop("tie_word_embeddings")
    (tmp_path / "c/config.json").write_text(json.dumps(config))
    assert flag_of(config).tied == default


@pytest.mark.parity
def test_table_stored_twice_is_tied(library, tmp_path):
    torch, transformers = library
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False))
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "c")
    results, _ = results_of(tmp_path / "c")
    assert results["fact"] == "equal"
    assert results["tables"]["input"]["dtype"] == "bfloat16"
    assert "just untied, or saved under the wrong flag" in agreement(results)


def test_tables_of_different_widths_cannot_be_tied_directly(tmp_path):
    first, second = pair(60, 4)[0], pair(60, 6)[1]
    names = "rembert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    results, _ = results_of(make(tmp_path / "c", dict(zip(names, (first, second), strict=True)), model_type="rembert"))
    first, *more = verdict(results)
    assert first == "They cannot be tied directly: the input table is 4 wide, the output table 6."
    assert not any("would save" in line for line in more)


def test_quantised_head(tmp_path):
    tensors = {NAMES[0]: pair()[0], "lm_head.qweight": np.ones((2, 2), np.int32)}
    results, _ = results_of(make(tmp_path / "c", tensors, model_type="llama"))
    first, *_, last = verdict(results)
    assert first == (
        "There is nothing to compare: a table is stored quantised as by GPTQ or AWQ (lm_head.qweight), and is not read."
    )
    assert "cannot say" in last


@pytest.mark.parametrize("power", [-83, -76, 66])
def test_tables_of_very_small_or_very_large_numbers(tmp_path, power):
    """1e-25, 1e-23 and 1e20: squares of such numbers are not finite or 0 in float32."""
    first, second = pair()
    wanted, _ = results_of(make(tmp_path / "ordinary", dict(zip(NAMES, (first, second), strict=True))))
    tables = [np.ldexp(table, power) for table in (first, second)]
    results, arrays = results_of(make(tmp_path / "c", dict(zip(NAMES, tables, strict=True))))
    assert results["standing"] == wanted["standing"]
    assert results["neighbours"] == wanted["neighbours"]
    assert results["canonical"]["mean"] == pytest.approx(wanted["canonical"]["mean"], abs=1e-5)
    for name in ("identity", "procrustes"):
        assert results["alignment"][name] == pytest.approx(wanted["alignment"][name], abs=1e-5)
    assert results["norms"]["input"]["median"] == pytest.approx(np.ldexp(wanted["norms"]["input"]["median"], power), rel=1e-6)
    checkpoint_page.plot_all(results, arrays)


def characters_read():
    """Return the bytes that this process has read by system calls; pages of mapped files are not among them."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count bytes")
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_equal_tables_are_read_once(tmp_path, zero):
    """Rows are mapped; the comparison of bytes reads them again, and is needed only if 0 and -0 may differ."""
    table = np.random.default_rng(0).normal(size=(2000, 500)).astype(np.float32)
    table[3, 4] = 0.0
    second = table.copy()
    second[3, 4] = zero
    folder = make(tmp_path / "c", dict(zip(NAMES, (table, second), strict=True)), tie_word_embeddings=True)
    before = characters_read()
    results, _ = results_of(folder)
    read = characters_read() - before
    alike = not np.signbit(zero)
    assert results["fact"] == "equal"
    assert results["check"]["answer"] == ("agrees" if alike else "disagrees")
    assert (read < table.nbytes / 4) == alike


@pytest.mark.parametrize("rows", [5, 11, 12, 16, 40])
def test_unrelated_tables_of_few_tokens_are_not_near(tmp_path, rows):
    rng = np.random.default_rng(rows)
    first, second = rng.normal(size=(2, rows, 32)).astype(np.float32)
    if rows == 40:
        first[8:] = second[8:] = 0
    results, _ = results_of(make(tmp_path / "c", dict(zip(NAMES, (first, second), strict=True))))
    assert results["standing"] == ("unclear" if rows == 40 else "apart")
    assert results["neighbours"]["k"] <= max(1, (rows - 1) // 3)
    if rows == 40:
        assert "too few rows" in verdict(results)[0]


def test_norms_and_frequency_with_equal_counts():
    counts = np.ones(500, np.int64)
    counts[:10] = np.arange(11, 1, -1)
    norms = np.linspace(2, 1, 500).astype(np.float32)  # they fall with the id alone
    found = norm_facts(norms, Ranked(frequency_ranks(counts), counts, counts > 0, {}))
    assert found["spearman"] == pytest.approx(stats.spearmanr(norms, -counts).statistic)
    assert abs(found["spearman"]) < 0.25
    assert norm_facts(norms, Ranked(frequency_ranks(counts), counts * 0 + 1, counts > 0, {}))["spearman"] is None
