"""The adviser from command to page: numbers against numpy, real models of the families, and bad input in one line."""

import importlib
import itertools
import json
import re
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from processes import Ended, assert_refused, tree
from safetensors.numpy import load_file, save_file
from scipy import linalg, stats
from tokenizers import Tokenizer, decoders, models

from tiejax.hub import tokens as hub_tokens
from tiejax.runs.console import Console
from tiejax.settings import command_line
from tiejax.settings.command_line import run_main
from tiejax.studies.diagnosis import study as diagnose
from tiejax.studies.diagnosis import verdict

SCRIPT = Path(diagnose.__file__)
NAMES = "model.embed_tokens.weight", "lm_head.weight"
PieceS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "<b>", "on", "."]


def pair(rows=40, width=4, noise=0.3):
    """Two tables that have a part in common."""
    random = np.random.default_rng(0)
    first = random.normal(size=(rows, width))
    second = first @ random.normal(size=(width, width)) + noise * random.normal(size=(rows, width)) + 0.5
    return first.astype(np.float32), second.astype(np.float32)


def make(folder, tensors, file="model.safetensors", tokens=None, **config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / file)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    if tokens:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return folder


def results_of(folder, **options):
    config = diagnose.Config(checkpoint=str(folder), **options).resolved()
    return diagnose.diagnose(config, Console(quiet=True))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(here, monkeypatch, capsys):
    def run(*argv):
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *argv])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_main(diagnose.main)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


def cosine(x, y):
    return x @ y / linalg.norm(x) / linalg.norm(y)


def test_an_untied_checkpoint_from_command_to_page(here, command):
    """Every number against numpy, in bfloat16 and over two shards; the page needs nothing else and lets no token be markup."""
    first, second = (table.astype(ml_dtypes.bfloat16) for table in pair(len(PieceS)))
    second[2] = 0
    folder = make(here / "c", {NAMES[0]: first}, "a.safetensors", PieceS, architectures=["LlamaForCausalLM"])
    save_file({NAMES[1]: second, "body": np.zeros((3, 5), np.float32)}, folder / "b.safetensors")
    shards = {NAMES[0]: "a.safetensors", NAMES[1]: "b.safetensors", "body": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (here / "text.txt").write_text("The cat sat on the cat. The cats.")
    ended = command("c", "--corpus", "text.txt", "--out", "found")
    assert (ended.status, ended.err) == (0, "")
    assert "report: found/report.html" in ended.out
    results = json.loads((here / "found/results.json").read_text())
    arrays = np.load(here / "found/metrics.npz")
    x, y = first.astype(np.float64), second.astype(np.float64)

    counts = dict(zip(PieceS, [0, 0, 0, 0, 0, 3, 3, 1, 1, 0, 1, 2], strict=True))
    assert arrays["count"].tolist() == list(counts.values())
    assert results["rank"]["tokens"] == 11
    order = np.argsort(arrays["rank"])
    assert [PieceS[one] for one in order][:6] == ["the", "cat", ".", "sat", "##s", "on"]

    assert (results["fact"], results["differing_rows"]) == ("untied", len(PieceS))
    assert results["largest_difference"] == pytest.approx(np.abs(x - y).max(), rel=1e-6)
    assert results["flag"] == {"tied": False, "where": "no tie_word_embeddings; the default of Llama is false"}
    assert results["memory"] == {"parameters": 48, "bytes": 96, "share": 48 / 111}
    norms = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(arrays["norm_input"], norms, rtol=1e-5)
    assert results["norms"]["output"]["zero"] == 1
    seen = np.array(list(counts.values())) > 0
    expected = stats.spearmanr(norms[seen], arrays["rank"][seen]).statistic
    assert results["norms"]["input"]["spearman"] == pytest.approx(expected)
    assert results["norms"]["input"]["unseen_median"] == pytest.approx(np.median(norms[~seen]), rel=1e-5)

    centred_x, centred_y = x - x.mean(0), y - y.mean(0)
    for name, source, target in (("from_input", centred_x, centred_y), ("from_output", centred_y, centred_x)):
        mapped = source @ np.linalg.lstsq(source, target)[0]
        by_token = [cosine(a, b) for a, b in zip(mapped, target, strict=True)]
        np.testing.assert_allclose(arrays[f"cosine_{name}"], by_token, atol=1e-5)
        assert results["alignment"]["least_squares"][name] == pytest.approx(np.mean(by_token), abs=1e-5)
    rotated = centred_x @ linalg.orthogonal_procrustes(centred_x, centred_y)[0]
    expected = np.mean([cosine(a, b) for a, b in zip(rotated, centred_y, strict=True)])
    assert results["alignment"]["procrustes"] == pytest.approx(expected, abs=1e-5)
    assert np.isnan(arrays["cosine_as_is"]).tolist() == [place == 2 for place in range(len(PieceS))]
    assert results["neighbours"]["k"] == 10
    assert results["neighbours"]["queries"] == len(PieceS)

    mean = (arrays["cosine_from_input"] + arrays["cosine_from_output"]) / 2
    by_cosine = sorted(np.flatnonzero(seen), key=lambda token: mean[token])
    apart, near = (results["tokens"][name] for name in ("apart", "near"))
    assert [row["text"] for row in apart] == [PieceS[token] for token in by_cosine[:3]]
    assert [row["id"] for row in near] == by_cosine[::-1][:3]

    page = (here / "found/report.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert page.count("data:image/png;base64,") == 3
    assert verdict.verdict(results)[0] in page
    assert {path.name for path in (here / "found/figures").iterdir()} == {
        f"{name}.{kind}" for name in ("norms", "cosines", "canonical") for kind in ("png", "pdf")
    }


def test_a_tied_checkpoint_from_command_to_page(here, command):
    first, _ = pair(30)
    make(here / "c", {NAMES[0]: first}, tie_word_embeddings=True)
    ended = command("c")
    assert ended.status == 0
    results = json.loads((here / "runs/diagnose/c/results.json").read_text())
    assert (results["fact"], results["memory"]["bytes"], results["memory"]["share"]) == ("absent", first.nbytes, 1.0)
    assert "alignment" not in results
    assert "They are tied: one table is stored" in ended.out
    before = tree(here)
    again = command("c")
    assert_refused(again, "runs/diagnose/c", "finished", "--overwrite", script=SCRIPT)
    assert tree(here) == before
    assert command("c", "--overwrite", "--quiet").out == "report: runs/diagnose/c/report.html\n"


def test_markup_in_a_token_is_text(here):
    from tiejax.studies.diagnosis import checkpoint_page as pages

    first, second = pair(len(PieceS))
    results, arrays = results_of(make(here / "c", dict(zip(NAMES, (first, second), strict=True)), tokens=PieceS))
    assert "<b>" in {row["text"] for side in results["tokens"].values() for row in side}
    facts = {"command": "c", "versions": {}, "python": "3", "devices": [], "git_commit": "x"}
    page = pages.page(results, facts, "", [])
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert arrays["rank"].tolist() == list(range(1, len(PieceS) + 1))


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("fact", ["untied", "equal", "absent"])
def test_flag_and_fact(here, fact, flag):
    first, second = pair()
    tensors = {NAMES[0]: first}
    if fact != "absent":
        tensors[NAMES[1]] = first.copy() if fact == "equal" else second
    config = {} if flag is None else {"tie_word_embeddings": flag}
    results, _ = results_of(make(here / "c", tensors, model_type="new" if flag is None else "llama", **config))
    said = verdict.agreement(results)
    assert results["fact"] == fact
    if flag is None:
        assert "does not say" in said
    elif flag == (fact != "untied"):
        assert "and so it is" in said
    else:
        wrong = {"untied": "replaces the stored output table", "equal": "trains them apart", "absent": "makes one from nothing"}
        assert wrong[fact] in said
    first_line = verdict.verdict(results)[0]
    assert ("tied" in first_line or flag is False) if fact != "untied" else "untied" in first_line


def test_one_row_that_differs_makes_them_untied(here):
    first, _ = pair()
    second = first.copy()
    second[17, 2] += 2**-10
    results, _ = results_of(make(here / "c", dict(zip(NAMES, (first, second), strict=True))))
    assert (results["fact"], results["differing_rows"], results["standing"]) == ("untied", 1, "near")
    assert results["alignment"]["identity"] == pytest.approx(1, abs=1e-5)
    assert results["neighbours"]["estimate"] > 0.95


def test_unrelated_tables_are_apart_and_rotated_ones_near(here):
    first, _ = pair(600, 8)
    unrelated = np.random.default_rng(5).normal(size=(600, 8)).astype(np.float32)
    rotated = first @ linalg.qr(unrelated[:8])[0].astype(np.float32)
    for name, second, standing in (("u", unrelated, "apart"), ("r", rotated, "near")):
        results, _ = results_of(make(here / name, dict(zip(NAMES, (first, second), strict=True))), sample=200)
        assert results["standing"] == standing
        low, high = results["neighbours"]["interval"]
        assert low <= results["neighbours"]["estimate"] <= high
    assert results["alignment"]["procrustes"] == pytest.approx(1, abs=1e-5)
    assert abs(results["alignment"]["identity"]) < 0.9


def test_long_tables_are_scored_on_drawn_tokens(here, monkeypatch):
    folder = make(here / "c", dict(zip(NAMES, pair(900, 6), strict=True)))
    whole, of_all = results_of(folder)
    monkeypatch.setattr(diagnose, "SCORED", 300)
    drawn, arrays = results_of(folder, seed=3)
    assert (whole["alignment"]["scored"], drawn["alignment"]["scored"]) == (900, 300)
    assert len(np.unique(arrays["scored"])) == 300
    np.testing.assert_allclose(arrays["cosine_from_input"], of_all["cosine_from_input"][arrays["scored"]], atol=1e-5)
    expected = of_all["cosine_from_input"].mean()
    assert drawn["alignment"]["least_squares"]["from_input"] == pytest.approx(expected, abs=0.03)
    assert drawn["alignment"]["procrustes"] == pytest.approx(whole["alignment"]["procrustes"], abs=0.03)


def test_tables_of_other_widths_and_transposed(here):
    first, second = pair()
    tensors = {NAMES[0]: first[:, :3], NAMES[1]: second.T}
    results, arrays = results_of(make(here / "c", tensors))
    assert results["tables"]["output"]["transposed"]
    assert results["alignment"]["identity"] is None
    assert results["canonical"]["number"] == 3
    np.testing.assert_allclose(arrays["norm_output"], np.linalg.norm(second, axis=1), rtol=1e-5)


EDGES = {
    "output of zeros": (pair()[0], np.zeros((40, 4), np.float32), None),
    "three tokens": (np.zeros((3, 4), np.float32), np.eye(3, 4, dtype=np.float32), None),
    "one column": (pair(width=1)[0], pair(width=1)[1], None),
    "one token in the corpus": (*pair(len(PieceS)), "the the"),
}


@pytest.mark.parametrize("name", list(EDGES))
def test_degenerate_tables_are_reported_without_a_warning(here, name):
    from tiejax.studies.diagnosis import checkpoint_page as pages

    first, second, text = EDGES[name]
    options = {}
    if text:
        (here / "t.txt").write_text(text)
        options["corpus"] = "t.txt"
    results, arrays = results_of(make(here / "c", dict(zip(NAMES, (first, second), strict=True)), tokens=PieceS), **options)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert len(pages.drawn(results, diagnose.curves_of(results, arrays), arrays)) == 3
    assert len(verdict.verdict(results)) >= 5
    if name == "output of zeros":
        assert results["alignment"]["identity"] is None
        assert results["neighbours"]["estimate"] == 0


# Tokens.


def test_texts_of_byte_level_tokens(tmp_path):
    tokens = ["Ġthe", "Ċ", "Ã©", "ĠÃ", "a"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    tokens = hub_tokens.find_tokens(tmp_path)
    assert [hub_tokens.text_of(tokens, place) for place in range(6)] == ["␣the", "\\n", "é", "ĠÃ", "a", ""]
    with pytest.raises(ValueError, match="merges"):
        hub_tokens.count_tokens(tokens, ["a"], 5)


def test_texts_of_sentence_tokens(tmp_path):
    tokenizer = Tokenizer(models.BPE({"▁the": 0, "cat": 1}, []))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokens = hub_tokens.find_tokens(tmp_path)
    assert [hub_tokens.text_of(tokens, place) for place in range(2)] == ["␣the", "cat"]


def test_merges_and_long_documents_are_counted_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_tokens, "CHARACTERS", 5)
    monkeypatch.setattr(hub_tokens, "TOGETHER", 3)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ċ": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokens = hub_tokens.find_tokens(tmp_path)
    seen = []
    counts = hub_tokens.count_tokens(tokens, ["ab\nb\nabab\naab\n" * 10, "", "b"], 6, seen.append)
    assert counts.tolist() == [10, 11, 40, 40, 0, 0]
    assert seen[-1] == 101


def test_cased_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in ["[UNK]", "The", "the"]))
    for lower, expected in ((True, [0, 0, 2]), (False, [0, 1, 1])):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
        assert hub_tokens.count_tokens(hub_tokens.find_tokens(tmp_path), ["The the"], 3).tolist() == expected


def test_damaged_tokenizer_is_a_warning_unless_it_is_needed(here, command):
    folder = make(here / "c", dict(zip(NAMES, pair(), strict=True)))
    (folder / "tokenizer.json").write_text("{}")
    (here / "t.txt").write_text("words")
    results, _ = results_of(folder)
    assert results["tokens"]["apart"][0]["text"] == ""
    assert_refused(command("c", "--corpus", "t.txt"), "tokenizer.json", script=SCRIPT)


# Bad input, through the command. "c" is sound, with 12 tokens and their vocabulary.


def break_index(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"t": "model-1-of-2.safetensors"}}')


def cut(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def not_finite(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors[NAMES[1]][7, 1] = np.inf
    save_file(tensors, folder / "model.safetensors")


def our_run(folder):
    (folder / "config.yaml").write_text("seeds: 3\n")
    (folder / "checkpoints").mkdir()


def nothing(folder):
    pass


BAD = {
    "nothing": (nothing, "", "needs a checkpoint", "diagnose.py"),
    "no folder": (nothing, "none", "none", "no such folder"),
    "a file": (nothing, "c/config.json", "is a file"),
    "unknown option": (nothing, "c --corpsu t.txt", "--corpsu", "--corpus?"),
    "two checkpoints": (nothing, "c c", "c"),
    "no neighbours": (nothing, "c --neighbours 0", "--neighbours", "at least 1"),
    "one sampled token": (nothing, "c --sample 1", "--sample", "at least 2"),
    "negative seed": (nothing, "c --seed -1", "--seed", "not negative"),
    "no directory": (nothing, "c --out=", "--out", "directory"),
    "out is foreign": (nothing, "c --out c", "--out c", "no run"),
    "out is a file": (nothing, "c --out t.txt", "--out t.txt", "is a file"),
    "a run without checkpoints": (our_run, "c", "has no checkpoint"),
    "a run and a corpus": (our_run, "c --corpus t.txt", "--corpus", "a run of ours has its own"),
    "a run of doses": (lambda c: (our_run(c), (c / "config.yaml").write_text("doses: [.5, .9]")), "c", "single distribution"),
    "a run of something else": (
        lambda c: (our_run(c), (c / "config.yaml").write_text("depth: 3")),
        "c",
        "config.yaml",
        "depth",
    ),
    "no config": (lambda c: (c / "config.json").unlink(), "c", "no config.json"),
    "config is no JSON": (lambda c: (c / "config.json").write_text("{"), "c", "config.json", "not JSON"),
    "cut off": (cut, "c", "model.safetensors", "damaged or cut off"),
    "missing shard": (break_index, "c", "model-1-of-2.safetensors", "not there"),
    "only pickle": (only_pickle, "c", "pytorch_model.bin", "pickle", "safetensors"),
    "not finite": (not_finite, "c", "row 7 of lm_head.weight", "not finite"),
    "no such tensor": (nothing, "c --input_table embed", "--input_table embed", "no such tensor"),
    "shapes": (nothing, "c --output_table odd", "--output_table odd", "[5, 4]", "one row per token"),
    "no table": (nothing, "c --output_table line", "--output_table line", "[12]", "[tokens, width]"),
    "no corpus": (nothing, "c --corpus none.txt", "--corpus none.txt", "no such file"),
    "corpus is binary": (nothing, "c --corpus c/model.safetensors", "--corpus", "binary"),
    "corpus of a catalogue": (nothing, "c --corpus tfds:imdb", "--corpus tfds:imdb", "text file"),
    "no tokenizer": (lambda c: (c / "vocab.txt").unlink(), "c --corpus t.txt", "--corpus", "no tokenizer.json", "--tokenizer"),
    "no such tokenizer": (nothing, "c --tokenizer none.json", "--tokenizer none.json", "no such file"),
    "another tokenizer": (nothing, "c --corpus t.txt --tokenizer long.txt", "id 12", "12 rows"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input(here, command, name):
    spoil, line, *words = BAD[name]
    first, second = pair(len(PieceS))
    tensors = {NAMES[0]: first, NAMES[1]: second, "odd": first[:5], "line": first[:, 0]}
    make(here / "c", tensors, tokens=PieceS)
    (here / "t.txt").write_text("the cat")
    (here / "long.txt").write_text("".join(f"{token}\n" for token in [*PieceS[:6], *"bcdefg", "cat"]))
    spoil(here / "c")
    before = tree(here)
    assert_refused(command(*line.split()), *words, script=SCRIPT)
    assert tree(here) == before


def test_checkpoint_may_stand_anywhere_or_in_a_file(here):
    (here / "d.yaml").write_text("checkpoint: a\nsample: 7\n")
    for line, expected in (
        ("c --sample 5", ("c", 5)),
        ("--sample 5 c", ("c", 5)),
        ("--config d.yaml", ("a", 7)),
        ("--config d.yaml c", ("c", 7)),
    ):
        config, switches = command_line.parse(diagnose.Config, diagnose.COMMAND, [*line.split(), "--quiet"])
        assert (config.checkpoint, config.sample) == expected
        assert switches == {"overwrite": False, "quiet": True}


def test_progress_counts_every_row_once(here):
    """Each phase ends at its total, so that the time left is right."""
    told = {}
    checkpoint = make(here / "c", dict(zip(NAMES, pair(), strict=True)))
    _, tables = diagnose.open_tables(diagnose.Config(checkpoint=str(checkpoint)))
    diagnose.relate(
        tables, diagnose.Config(sample=20), lambda phase, done, total: told.setdefault(phase, []).append((done, total))
    )
    assert {phase: seen[-1] for phase, seen in told.items()} == {
        "products of the tables": (80, 80),
        "maps between the tables": (4, 4),
        "neighbours": (120, 120),
        "cosines": (80, 80),
    }
    for seen in told.values():
        assert all(before < after for (before, _), (after, _) in itertools.pairwise(seen))


def test_two_inputs_are_named(here, command):
    make(here / "c", {"a.wte.weight": pair()[0], "b.wte.weight": pair()[1]}, model_type="gpt2")
    assert_refused(command("c"), "several", "a.wte.weight", "b.wte.weight", "--input_table", script=SCRIPT)


def test_overwrite_spares_another_run(here, command):
    make(here / "c", dict(zip(NAMES, pair(), strict=True)))
    (here / "run").mkdir()
    (here / "run/config.yaml").write_text("seeds: 3\n")
    (here / "run/results.json").write_text("{}")
    before = tree(here)
    assert_refused(command("c", "--out", "run", "--overwrite"), "run", "no diagnosis", script=SCRIPT)
    assert tree(here) == before


# Real models.

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
        warnings.simplefilter("ignore")  # what these libraries warn of at import is theirs
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
    return torch, transformers


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_models_of_the_library(library, here, name, tied):
    """Tables, fact and flag as the library's own model has them, and the default of its configuration class."""
    torch, transformers = library
    kind, sizes = MODELS[name]
    default = getattr(transformers, kind)(**sizes).tie_word_embeddings
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, kind)(**sizes, tie_word_embeddings=tied))
    if name.startswith("T5") and not tied:  # newer versions tie T5 whatever the flag says
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn(40, 8))
    first, second = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (first is second) == tied
    model.save_pretrained("c")
    results, arrays = results_of(here / "c", sample=40)
    assert results["family"] == FAMILY[name]
    assert results["fact"] == ("absent" if tied else "untied")
    assert "and so it is" in verdict.agreement(results)
    np.testing.assert_allclose(arrays["norm_input"], first.detach().norm(dim=1).numpy(), rtol=1e-5)
    if not tied:
        np.testing.assert_allclose(arrays["norm_output"], second.detach().norm(dim=1).numpy(), rtol=1e-5)
    config = json.loads((here / "c/config.json").read_text())
    config.pop("tie_word_embeddings")
    (here / "c/config.json").write_text(json.dumps(config))
    found = importlib.import_module("tiejax.data.hub_families").flag_of(config)
    assert found.tied == default


def test_the_same_tensors_stored_twice_are_tied(library, here):
    torch, transformers = library
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False))
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    model.to(torch.bfloat16).save_pretrained("c")
    results, _ = results_of(here / "c")
    assert results["fact"] == "equal"
    assert results["tables"]["input"]["dtype"] == "bfloat16"
    assert "trains them apart" in verdict.agreement(results)
