"""The command `diagnose`, from its arguments to its page: values against numpy, and refused input."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
import yaml
from processes import EXPERIMENTS, assert_refused, tree
from safetensors.numpy import load_file, save_file
from scipy import linalg, stats
from two_tables import NAMES, TOKENS, make, pair, results_of

from tiejax.checkpoints.diagnose.verdict import verdict
from tiejax.lab.runs.manifest import FORMAT, Manifest, settings_of
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.layer_tying import settings as layer_tying

SCRIPT = EXPERIMENTS / "diagnose.py"


def cosine(x, y):
    return x @ y / linalg.norm(x) / linalg.norm(y)


def test_untied_checkpoint(here, command):
    """Every value against numpy, in bfloat16 and over two shards; the page refers to no other file."""
    first, second = (table.astype(ml_dtypes.bfloat16) for table in pair(len(TOKENS)))
    second[2] = 0
    folder = make(here / "c", {NAMES[0]: first}, "a.safetensors", TOKENS, architectures=["LlamaForCausalLM"])
    save_file({NAMES[1]: second, "body": np.zeros((3, 5), np.float32)}, folder / "b.safetensors")
    shards = {NAMES[0]: "a.safetensors", NAMES[1]: "b.safetensors", "body": "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (here / "text.txt").write_text("The cat sat on the cat. The cats.")
    ended = command("c", "--corpus", "text.txt", "--out", "found")
    assert (ended.status, ended.err) == (0, "")
    assert "report: found/report.html" in ended.out
    results = json.loads((here / "found/results.json").read_text())
    with np.load(here / "found/metrics.npz") as file:
        arrays = dict(file)
    x, y = first.astype(np.float64), second.astype(np.float64)

    counts = dict(zip(TOKENS, [0, 0, 0, 0, 0, 3, 3, 1, 1, 0, 1, 2], strict=True))
    assert arrays["count"].tolist() == list(counts.values())
    assert results["rank"]["tokens"] == 11
    order = np.argsort(arrays["rank"])
    assert [TOKENS[one] for one in order][:6] == ["the", "cat", ".", "sat", "##s", "on"]

    assert (results["fact"], results["differing_rows"]) == ("untied", len(TOKENS))
    assert results["largest_difference"] == pytest.approx(np.abs(x - y).max(), rel=1e-6)
    assert results["flag"] == {"tied": False, "where": "no tie_word_embeddings; the default of Llama is false"}
    assert results["memory"] == {"parameters": 48, "bytes": 96, "share": 48 / 111}
    norms = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(arrays["norm_input"], norms, rtol=1e-5)
    assert results["norms"]["output"]["zero"] == 1
    occurrences = np.array(list(counts.values()))
    seen = occurrences > 0
    expected = stats.spearmanr(norms[seen], -occurrences[seen]).statistic
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
    assert np.isnan(arrays["cosine_as_is"]).tolist() == [place == 2 for place in range(len(TOKENS))]
    assert results["neighbours"]["k"] == (len(TOKENS) - 1) // 3
    assert results["neighbours"]["queries"] == len(TOKENS) - 1  # a row is 0

    mean = (arrays["cosine_from_input"] + arrays["cosine_from_output"]) / 2
    by_cosine = sorted(np.flatnonzero(seen), key=lambda token: mean[token])
    apart, near = (results["tokens"][name] for name in ("apart", "near"))
    assert [row["text"] for row in apart] == [TOKENS[token] for token in by_cosine[:3]]
    assert [row["id"] for row in near] == by_cosine[::-1][:3]

    page = (here / "found/report.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    assert page.count("data:image/png;base64,") == 2
    assert verdict(results)[0] in page
    assert {path.name for path in (here / "found/figures").iterdir()} == {
        f"{name}.{kind}" for name in ("norms", "cosines") for kind in ("png", "pdf")
    }


def test_tied_checkpoint(here, command):
    first, _ = pair(30)
    make(here / "c", {NAMES[0]: first}, tie_word_embeddings=True)
    ended = command("c")
    assert ended.status == 0
    results = json.loads((here / "runs/diagnose/c/results.json").read_text())
    assert (results["fact"], results["memory"]["bytes"], results["memory"]["share"]) == ("absent", first.nbytes, 1.0)
    assert results["alignment"] is None
    assert "They are tied: one table is stored" in ended.out
    before = tree(here)
    again = command("c")
    assert_refused(again, "runs/diagnose/c", "finished", "--overwrite", script=SCRIPT)
    assert tree(here) == before
    assert command("c", "--overwrite", "--quiet").out == "report: runs/diagnose/c/report.html\n"


def test_damaged_tokenizer_is_a_warning_unless_needed(here, command):
    folder = make(here / "c", dict(zip(NAMES, pair(), strict=True)))
    (folder / "tokenizer.json").write_text("{}")
    (here / "t.txt").write_text("words")
    results, _ = results_of(folder)
    assert results["tokens"]["apart"][0]["text"] == ""
    assert_refused(command("c", "--corpus", "t.txt"), "tokenizer.json", script=SCRIPT)


def test_tables_by_other_names_are_refused(here, command):
    make(here / "c", {"a.wte.weight": pair()[0], "b.wte.weight": pair()[1]}, model_type="gpt2")
    assert_refused(
        command("c"),
        "no tensor has the name of the input table of gpt2",
        "a.wte.weight",
        "b.wte.weight",
        "--input_table",
        script=SCRIPT,
    )


@pytest.mark.parametrize(("study", "words"), [("exor", "made by exor"), (None, "early version")])
def test_overwrite_refuses_another_run(here, command, study, words):
    make(here / "c", dict(zip(NAMES, pair(), strict=True)))
    (here / "run").mkdir()
    our_run(here / "run", study=study)
    if study is None:
        (here / "run" / "run.json").unlink()
    (here / "run/results.json").write_text("{}")
    before = tree(here)
    message = "--overwrite: run contains no usable run of diagnosis"
    assert_refused(command("c", "--out", "run", "--overwrite"), message, words, script=SCRIPT)
    assert tree(here) == before


# Bad input, through the command. "c" is a valid checkpoint with 12 tokens and their vocabulary.


def break_index(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"t": "model-1-of-2.safetensors"}}')


def truncate(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def not_finite(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors[NAMES[1]][7, 1] = np.inf
    save_file(tensors, folder / "model.safetensors")


def our_run(folder, settings="seeds: 3\n", study="exor", version=FORMAT):
    """Write the first files of a run to a folder."""
    (folder / "config.yaml").write_text(settings)
    known = study == "exor" and "depth" not in settings
    asked = settings_of(exor.Settings(**yaml.safe_load(settings)).resolved(), exor.STUDY.may_change) if known else {}
    Manifest(str(study), asked).write(folder)
    if version != FORMAT:
        (folder / "run.json").write_text(json.dumps({"study": study, "format": version}))
    (folder / "checkpoints").mkdir()


def earlier_run(folder):
    """Write the files of a run from before runs had a manifest."""
    our_run(folder)
    (folder / "run.json").unlink()


def damaged_run(folder):
    our_run(folder)
    (folder / "run.json").write_text('{"study": ')


def layer_tying_run(folder):
    """Write the files of a layer-tying run, whose settings have a corpus too."""
    settings = layer_tying.Settings(out=str(folder / "run")).resolved()
    RunDirectory.reserve(layer_tying.STUDY, settings, False, False).release()
    (folder / "run" / "checkpoints").mkdir()


def nothing(folder):
    pass


BAD = {
    "nothing": (nothing, "", "checkpoint: name a folder", "diagnose.py"),
    "no folder": (nothing, "none", "none", "not found"),
    "a file": (nothing, "c/config.json", "is a file"),
    "unknown option": (nothing, "c --corpsu t.txt", "'--corpsu'", "'--corpus'?"),
    "two checkpoints": (nothing, "c c", "c"),
    "no neighbours": (nothing, "c --neighbours 0", "--neighbours", "expected an integer >= 1"),
    "one sampled token": (nothing, "c --sample 1", "--sample", "expected an integer >= 2"),
    "negative seed": (nothing, "c --seed -1", "--seed", ">= 0"),
    "no directory": (nothing, "c --out=", "--out", "directory"),
    "out is foreign": (nothing, "c --out c", "--out c", "no run"),
    "out is a file": (nothing, "c --out t.txt", "--out t.txt", "not a directory but a file"),
    "a run without checkpoints": (our_run, "c", "has no checkpoint"),
    "a run and a corpus": (our_run, "c --corpus t.txt", "--corpus", "only applies to checkpoints"),
    "a run of doses": (lambda c: our_run(c, "doses: [.5, .9]"), "c", "single distribution"),
    "a run of other settings": (lambda c: our_run(c, "depth: 3"), "c", "config.yaml", "depth"),
    "a run of layer tying": (
        layer_tying_run,
        "c/run",
        "c/run: is a run of layer_tying",
        "only runs of exor, untying, text_mlm can be",
    ),
    "a diagnosis": (lambda c: our_run(c, study="diagnosis"), "c", "is a run of diagnosis"),
    "a run without a manifest": (earlier_run, "c", "c: run.json is missing", "early version"),
    "a run with a damaged manifest": (damaged_run, "c", "c: run.json", "is damaged"),
    "a run of another format": (lambda c: our_run(c, version=FORMAT + 1), "c", f"format {FORMAT + 1}", f"format {FORMAT}"),
    "no config": (lambda c: (c / "config.json").unlink(), "c", "no config.json"),
    "config is invalid JSON": (lambda c: (c / "config.json").write_text("{"), "c", "config.json", "invalid JSON"),
    "truncated": (truncate, "c", "model.safetensors", "damaged or truncated"),
    "missing shard": (break_index, "c", "model-1-of-2.safetensors", "not found"),
    "only pickle": (only_pickle, "c", "pytorch_model.bin", "pickle", "safetensors"),
    "not finite": (not_finite, "c", "row 7 of lm_head.weight", "not finite"),
    "no such tensor": (nothing, "c --input_table embed", "--input_table embed", "no such tensor"),
    "shapes": (nothing, "c --output_table odd", "--output_table odd", "[5, 4]", "one row per token"),
    "no table": (nothing, "c --output_table line", "--output_table line", "[12]", "[tokens, width]"),
    "no corpus": (nothing, "c --corpus none.txt", "--corpus none.txt", "not found"),
    "corpus is binary": (nothing, "c --corpus c/model.safetensors", "--corpus", "binary"),
    "corpus of a data set": (nothing, "c --corpus tfds:imdb", "--corpus tfds:imdb", "text file"),
    "no tokenizer": (lambda c: (c / "vocab.txt").unlink(), "c --corpus t.txt", "--corpus", "no tokenizer.json", "--tokenizer"),
    "no such tokenizer": (nothing, "c --tokenizer none.json", "--tokenizer none.json", "not found"),
    "another tokenizer": (nothing, "c --corpus t.txt --tokenizer long.txt", "id 12", "12 rows"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input(here, command, name):
    spoil, line, *words = BAD[name]
    first, second = pair(len(TOKENS))
    tensors = {NAMES[0]: first, NAMES[1]: second, "odd": first[:5], "line": first[:, 0]}
    make(here / "c", tensors, tokens=TOKENS)
    (here / "t.txt").write_text("the cat")
    (here / "long.txt").write_text("".join(f"{token}\n" for token in [*TOKENS[:6], *"bcdefg", "cat"]))
    spoil(here / "c")
    before = tree(here)
    assert_refused(command(*line.split()), *words, script=SCRIPT)
    assert tree(here) == before
