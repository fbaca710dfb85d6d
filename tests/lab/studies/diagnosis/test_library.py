"""The diagnosis as a function: what results.json says, nothing printed or written, and errors that name arguments."""

import json
import shutil

import pytest
from damage import largest, steps
from processes import tree
from two_tables import NAMES, TOKENS, make, pair

import tiejax
from tiejax.lab.runs.launch import main
from tiejax.lab.studies.diagnosis.settings import STUDY


def same_but_for_time(results, written):
    assert {**results, "seconds": 0} == {**written, "seconds": 0}


def test_a_checkpoint(here, launched, capsys):
    folder = make(here / "c", dict(zip(NAMES, pair(len(TOKENS)), strict=True)), tokens=TOKENS)
    (here / "t.txt").write_text("the cat sat on the cat.")
    before = tree(here)
    results = tiejax.diagnose(folder, corpus="t.txt", sample=5, seed=3)
    assert capsys.readouterr() == ("", "")
    assert tree(here) == before
    launched(STUDY, ["c", "--corpus", "t.txt", "--sample", "5", "--seed", "3", "--out", "out", "--quiet"])
    same_but_for_time(results | {"checkpoint": "c"}, json.loads((here / "out" / "results.json").read_text()))


def test_a_run_of_ours(untying_run, launched, tmp_path, capsys):
    before = tree(untying_run)
    results = tiejax.diagnose(untying_run)
    assert capsys.readouterr() == ("", "")
    assert tree(untying_run) == before
    launched(STUDY, [str(untying_run), "--out", str(tmp_path / "out"), "--quiet"])
    same_but_for_time(results, json.loads((tmp_path / "out" / "results.json").read_text()))


def test_of_a_damaged_run_nothing_is_changed(untying_run, tmp_path, capsys):
    """What is damaged is told and left where it is: to mend it is for the run's own command."""
    run = shutil.copytree(untying_run, tmp_path / "run")
    (run / "metrics.npz").write_bytes(b"half")
    before = tree(run)
    assert main(STUDY, [str(run), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert f"{run}: metrics.npz: not as the run wrote them; its checkpoint is looked at" in capsys.readouterr().out
    assert tree(run) == before
    (newest,) = steps(run)
    largest(run / "checkpoints" / str(newest)).unlink()
    before = tree(run)
    with pytest.raises(ValueError, match="has no checkpoint"):
        tiejax.diagnose(run)
    assert tree(run) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neighbours": 0}, "neighbours: must be at least 1, got 0"),
        ({"input_table": "embed"}, "input_table embed: .* has no such tensor"),
        ({"output_table": "odd"}, "output_table odd: .* name the right ones by input_table and output_table"),
        ({"corpus": "none.txt"}, "corpus none.txt: there is no such file or folder"),
        ({"corpus": "tfds:imdb"}, "corpus tfds:imdb: must be a text file"),
        ({"tokenizer": "none.json"}, "tokenizer none.json: there is no such file"),
    ],
)
def test_errors_name_arguments(here, arguments, message):
    first, second = pair(len(TOKENS))
    make(here / "c", {NAMES[0]: first, NAMES[1]: second, "odd": first[:5]}, tokens=TOKENS)
    with pytest.raises(ValueError, match=f"^{message}"):
        tiejax.diagnose("c", **arguments)


def test_a_corpus_is_not_for_a_run(untying_run):
    with pytest.raises(ValueError, match=r"^corpus: is for checkpoints of the hub"):
        tiejax.diagnose(untying_run, corpus="t.txt")


def test_a_folder_that_is_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"none: there is no such folder"):
        tiejax.diagnose(tmp_path / "none")
