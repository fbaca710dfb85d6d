"""Tests of the text study's settings: invalid input, words without a token, help, and the configurations in configs/."""

import dataclasses
import sys
from pathlib import Path

import pytest
import yaml
from corpora import ROOT
from processes import TEXT_SCRIPT, assert_refused, command_here, end, start, tree, wait_until

from tiejax.lab.runs import entry, resume
from tiejax.lab.studies.text_mlm.settings import STUDY, Settings


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a folder of unusable files, in which nothing else may appear."""
    monkeypatch.chdir(tmp_path)
    files = tmp_path / "files"
    files.mkdir()
    (files / "empty.txt").write_text("  \n\n ")
    (files / "binary.txt").write_bytes(b"some text\0and more")
    (files / "latin.txt").write_bytes("a caf\u00e9 is not UTF-8".encode("latin-1"))
    (files / "short.txt").write_text("Yes. No.\n")
    (files / "some.txt").write_text("The cat sat on the mat and looked at the dog. " * 40)
    (files / "nothing_special.txt").write_text("the\nof\nand\n")
    return tmp_path


BAD = {
    "--corpus files/missing.txt": ("--corpus files/missing.txt",),
    "--corpus files/empty.txt": ("--corpus", "empty.txt"),
    "--corpus files/binary.txt": ("files/binary.txt", "9"),
    "--corpus files/latin.txt": ("files/latin.txt", "5", "UTF-8"),
    "--corpus files/short.txt --min_length 8 --vocab_size 40": ("long enough",),
    "--corpus files/some.txt --tokenizer files/nothing_special.txt": ("--tokenizer", "[PAD]", "[MASK]"),
    "--corpus files/some.txt --tokenizer files/missing.json": ("--tokenizer", "files/missing.json"),
    "--twins {'0':[the]}": ("--twins", "between 0 and 1, got 0"),
    "--twins {'1.5':[the]}": ("--twins", "between 0 and 1, got 1.5"),
    "--twins {often:[the]}": ("--twins", "often"),
    "--twins {}": ("--twins", "at least one set"),
    "--twins {'.5':[]}": ("--twins", "the set at .5 has no words"),
    "--twins {'.5':[the],'0.50':[of]}": ("--twins", ".5 and 0.50"),
    "--out /dev/null/run": ("--out /dev/null/run",),
    "--twins {'.5':[[the]]}": ("--twins", "a list [...], each text"),
    "--corpus files/some.txt --vocab_size 60 --twins {'.5':[zebra,ye]}": (
        "--twins",
        "none of 'zebra', 'ye' is a token of the vocabulary",
    ),
    "--corpus files/some.txt --vocab_size 60 --twins {'.5':[the],'.1':[the]}": ("--twins", "one twin"),
    "--corpus tfds:no_such_set_of_text": ("tfds:no_such_set_of_text",),
    "--corpus tfds:huggingface:bookcorpus": ("tfds:huggingface:bookcorpus", "datasets"),
    "--corpus": ("--corpus", "at least one"),
    "--steps 5 --epochs 1": ("--steps and --epochs",),
    "--table_rate 0": ("--table_rate", "> 0, got 0"),
    "--gate often": ("--gate", "often"),
    "--epochs 0": ("--epochs", "> 0"),
    "--heads 3": ("--heads", "3 heads do not divide the width 128"),
    "--min_length 200": ("--min_length", "--max_length 128"),
    "--max_length 2": ("--max_length",),
    "--min_length 2": ("--min_length", "expected 3 to --max_length 128"),
    "--rows_are_sentences true --min_length 1": ("--min_length", "expected 2 to --max_length 128"),
    "--rows_are_sentences true --corpus files/empty.txt": ("--corpus", "empty.txt: contains no text"),
    "--epochs_apart true": ("--epochs_apart", "--packing padded"),
    "--validate_every epoch": ("--validate_every epoch", "--epochs_apart true"),
    "--validate_every 0": ("--validate_every", "an integer >= 1, got 0"),
    "--validation_batches some": ("--validation_batches", "an integer or one of all"),
    "--dropout 1": ("--dropout",),
    "--mesh 3 --corpus files/some.txt --vocab_size 60": ("--mesh", "do not fit"),
    "--seeds [1,1]": ("--seeds", "1 is repeated"),
    "--packing tight": ("--packing", "packed, padded"),
    "--compute_dtype float8": ("--compute_dtype", "float32, bfloat16"),
    "--batch_sise 3": ("'--batch_sise'", "did you mean '--batch_size'"),
    "--resume --out nothing_here": ("--resume",),
    "--untie_at [2000]": ("--untie_at", "--steps 1500", "got 2000"),
    "--untie_at [.5,.5]": ("--untie_at", "0.5 is repeated"),
    "--untie_at [.5,750]": ("--untie_at", "0.5 and 750 both fall on step 750 of 1500"),
    "--equal_tables_arm true --untie_at [.5]": ("--equal_tables_arm", "expected false with --untie_at", "got true"),
    "--untie_at [.5,1.5]": ("--untie_at", "from 0. to 1.", "got 1.5"),
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input(line, here, monkeypatch, capsys, tmp_path_factory):
    """Invalid input: one line that names the option or the file, status 2, and nothing written outside --data_dir."""
    argv = [*line.split(), "--data_dir", str(tmp_path_factory.mktemp("prepared"))]
    before = tree(here)
    ended = command_here(argv, monkeypatch, capsys, STUDY)
    # Some errors appear only once the text is read, which is announced.
    assert all(shown.startswith("preparing the text") for shown in ended.out.splitlines())
    assert all(warning.startswith("warning: not in the vocabulary") for warning in ended.warnings)
    assert_refused(ended._replace(out=""), *BAD[line], script=TEXT_SCRIPT)
    assert tree(here) == before


@pytest.mark.slow
def test_missing_words_are_listed_once(here):
    """In a separate process, killed once training starts."""
    argv = ["--corpus", "files/some.txt", "--vocab_size", 60, "--data_dir", here / "data", "--out", here / "run"]
    process = start(*argv, "--twins", "{'.5': [the, zebra], '.1': [sat, ye]}", "--steps", 100_000, script=TEXT_SCRIPT, cwd=here)
    assert wait_until((here / "run" / "environment.json").exists, process)
    process.kill()
    ended = end(process)
    assert "zebra" not in ended.out
    assert [warning for warning in ended.warnings if "zebra" in warning or "ye" in warning.split()] == [
        "warning: not in the vocabulary, so left out: zebra, ye"
    ]


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "text_mlm").glob("*.yaml")), ids=lambda path: path.stem)
def test_configurations_are_valid(file):
    """A configuration resolves, holds only non-default values, and names its source and command in its header."""
    config = resume.read(STUDY, ["--config", str(file)]).settings
    given = yaml.safe_load(file.read_text())
    defaults = dataclasses.asdict(Settings())
    same = {name for name, value in given.items() if value == defaults[name]}
    # The published configuration spells out the whole protocol, default values included.
    assert not same or file.stem == "published", same
    assert Path(config.out).name == file.stem
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert head[0].startswith("# Source: ")
    assert any(
        line.startswith("# Command: python experiments/text_mlm.py --config configs/text_mlm/" + file.name) for line in head
    )


def test_help_explains_every_setting(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["text_mlm.py"])
    with pytest.raises(SystemExit) as ended:
        entry.main(STUDY, ["--help-all"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for field in dataclasses.fields(Settings):
        assert f"--{field.name}" in shown
    assert "tfds:NAME" in shown
