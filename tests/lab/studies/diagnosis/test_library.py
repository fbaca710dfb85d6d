"""`tiejax.lab.diagnose`: the content of results.json, nothing printed or written, and errors that name arguments."""

import json
import shutil

import pytest
from damage import largest, steps
from processes import tree
from two_tables import NAMES, TOKENS, make, pair

from tiejax import lab
from tiejax.lab.runs.entry import main
from tiejax.lab.runs.run_directory import RESULTS_FORMAT
from tiejax.lab.studies.diagnosis.settings import STUDY

pytestmark = pytest.mark.slow


def assert_same_except_time(results, written):
    assert {**results, "seconds": 0} == {**written, "seconds": 0}


def test_checkpoint(here, launched, capsys):
    folder = make(here / "c", dict(zip(NAMES, pair(len(TOKENS)), strict=True)), tokens=TOKENS)
    (here / "t.txt").write_text("the cat sat on the cat.")
    before = tree(here)
    results = lab.diagnose(folder, corpus="t.txt", sample=5, seed=3)
    assert capsys.readouterr() == ("", "")
    assert tree(here) == before
    launched(STUDY, ["c", "--corpus", "t.txt", "--sample", "5", "--seed", "3", "--out", "out", "--quiet"])
    assert_same_except_time(
        results | {"checkpoint": "c", "format": RESULTS_FORMAT}, json.loads((here / "out" / "results.json").read_text())
    )


def test_run(untying_run, launched, tmp_path, capsys):
    before = tree(untying_run)
    results = lab.diagnose(untying_run)
    assert capsys.readouterr() == ("", "")
    assert tree(untying_run) == before
    launched(STUDY, [str(untying_run), "--out", str(tmp_path / "out"), "--quiet"])
    assert_same_except_time(results | {"format": RESULTS_FORMAT}, json.loads((tmp_path / "out" / "results.json").read_text()))


def test_damaged_run_is_not_changed(untying_run, tmp_path, capsys):
    """Damage is reported, but only the run's own command repairs it."""
    run = shutil.copytree(untying_run, tmp_path / "run")
    (run / "metrics.npz").write_bytes(b"half")
    before = tree(run)
    assert main(STUDY, [str(run), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert f"{run}: changed since the run wrote them: metrics.npz; using its checkpoint" in capsys.readouterr().err
    assert tree(run) == before
    (newest,) = steps(run)
    largest(run / "checkpoints" / str(newest)).unlink()
    before = tree(run)
    with pytest.raises(ValueError, match="has no checkpoint"):
        lab.diagnose(run)
    assert tree(run) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neighbours": 0}, "neighbours: expected an integer >= 1, got 0"),
        ({"input_table": "embed"}, "input_table embed: .* has no such tensor"),
        ({"output_table": "odd"}, "output_table odd: .* name the right tensors with input_table and output_table"),
        ({"corpus": "none.txt"}, "corpus none.txt: not found; "),
        ({"corpus": "tfds:imdb"}, "corpus tfds:imdb: expected a text file"),
        ({"tokenizer": "none.json"}, "tokenizer none.json: not found; "),
    ],
)
def test_errors_name_arguments(here, arguments, message):
    first, second = pair(len(TOKENS))
    make(here / "c", {NAMES[0]: first, NAMES[1]: second, "odd": first[:5]}, tokens=TOKENS)
    with pytest.raises(ValueError, match=f"^{message}"):
        lab.diagnose("c", **arguments)


def test_corpus_does_not_apply_to_a_run(untying_run):
    with pytest.raises(ValueError, match=r"^corpus: only applies to checkpoints in the hub's format"):
        lab.diagnose(untying_run, corpus="t.txt")


def test_missing_folder(tmp_path):
    with pytest.raises(ValueError, match=r"none: not found"):
        lab.diagnose(tmp_path / "none")
