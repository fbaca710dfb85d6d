"""Tests of the settings of the study of embedding shapes: defaults, and errors in one line."""

import dataclasses
import itertools

import pytest
from coupling_runs import arguments, write_files
from processes import EXPERIMENTS, assert_refused, command_here

from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.embedding_coupling.settings import DEFAULT_SHAPES, STUDY, Settings
from tiejax.models.shapes import Shape

SCRIPT = EXPERIMENTS / "embedding_coupling.py"
SHAPE = {"embed_in": 8, "embed_out": 8, "width": 8, "layers": 2, "heads": 2}


def test_defaults_are_filled_in():
    settings = Settings().resolved()
    assert settings.every_shape == DEFAULT_SHAPES
    assert (settings.baseline, settings.drop_task) == ("coupled", "library")
    assert settings.tasks == {"library": {}}
    assert settings.resolved() == settings


def test_rates_are_chosen_on_seeds_from_1000_on_that_are_not_reported():
    assert Settings(seeds=3).resolved().trained_seeds == [0, 1, 2, 1000, 1001]
    assert Settings(seeds=[1000, 5, 1002], rate_seeds=3).resolved().tuning_seeds == [1001, 1003, 1004]


def test_rates_of_fine_tuning_double_from_2_5e_4_to_1_6e_2():
    rates = Settings().resolved().fine_tuning_rates
    assert (rates[0], rates[-1]) == (2.5e-4, 1.6e-2)
    assert all(second == pytest.approx(2 * first) for first, second in itertools.pairwise(rates))


def test_user_defined_shapes():
    shapes = {"big-out": {**SHAPE, "embed_in": 4, "embed_out": 32}, "tied": {**SHAPE, "coupled": True, "drop": 1}}
    settings = Settings(shapes=shapes).resolved()
    assert settings.every_shape == {"big-out": Shape(4, 32, 8, 2, 2), "tied": Shape(8, 8, 8, 2, 2, coupled=True, drop=1)}
    assert settings.baseline == "big-out"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"embed_out": 16, "coupled": True}, ("tied", "one width", "embed_in is 8", "embed_out 16")),
        ({"heads": 3}, ("tied", "3 heads do not divide the width 8")),
        ({"drop": 2}, ("tied", "cannot drop 2 of 2 layers", "0 to 1")),
        ({"width": 0}, ("tied", "width: expected an integer >= 1, got 0")),
        ({"embed": 3}, ("tied", "unknown field 'embed'", "embed_in")),
        ({"layers": 2.5}, ("tied", "layers", "whole number", "got 2.5")),
        ({"coupled": 1}, ("tied", "coupled", "true or false", "got 1")),
    ],
)
def test_invalid_shapes_are_named(fields, words):
    with pytest.raises(BadInput) as error:
        Settings(shapes={"tied": SHAPE | fields}).resolved()
    assert str(error.value).startswith("--shapes: ")
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shapes": {"a": {"embed_in": 8}}}, ("--shapes", "a: embed_out is missing")),
        ({"shapes": {"a/b": SHAPE}}, ("--shapes", "letters, digits")),
        ({"shapes": {"a": SHAPE}, "baseline": "b"}, ("--baseline", "one of a", "got b")),
        ({"tasks": {"t": {"training": "x"}}}, ("--tasks", "unknown field 'training'", "train, development")),
        ({"tasks": {"t": {"test": "x"}}}, ("--tasks", "t: train is missing")),
        ({"tasks": {}}, ("--tasks", "at least one")),
        ({"tasks": {"t": {"train": []}}}, ("--tasks", "train must be a file")),
        ({"tasks": {"t": {"train": 5}}}, ("--tasks", "train must be a file")),
        ({"tasks": {"t": {"train": "a", "examples": "many"}}}, ("--tasks", "examples must be an integer >= 1, got many")),
        ({"tasks": {"t": {"train": "a", "examples": -10}}}, ("--tasks", "examples must be an integer >= 1, got -10")),
        ({"tasks": {"t": {"train": "a.conllu.gz", "label": "xpos"}}}, ("--tasks", "t: label names a column", "by UPOS")),
        ({"tasks": {"t": {"train": ["a.txt", "b.txt"], "text": "x"}}}, ("--tasks", "t: text names a column", "leave it out")),
        ({"fine_tuning_rates": [float("nan")]}, ("--fine_tuning_rates", "above 0")),
        ({"drop_task": "t"}, ("--drop_task", "library, or none")),
        ({"warm_up": 300}, ("--warm_up", "below --steps 300")),
        ({"fine_tuning_rates": []}, ("--fine_tuning_rates", "above 0")),
        ({"fine_tuning_dropout": 1.0}, ("--fine_tuning_dropout", "[0, 1)")),
        ({"language_exponent": 2.0}, ("--language_exponent", "between 0 and 1")),
        ({"languages": {"en": ["a"]}, "corpus": ["b"]}, ("--corpus and --languages", "one of them")),
        ({"languages": {"en": []}}, ("--languages", "a corpus for each")),
        ({"parallel": ["a"]}, ("--parallel", "two files, got 1")),
        ({"parallel": ["a", "b"], "cipher": True}, ("--parallel", "one file", "got 2")),
        ({"max_length": 513}, ("--max_length", "512")),
        ({"min_length": 65}, ("--min_length", "--max_length 64")),
        ({"start": "x", "corpus": ["b"]}, ("--start and --corpus", "one of them")),
        ({"start": "x", "shapes": {"a": SHAPE}}, ("--start and --shapes", "one of them")),
        ({"start": "x", "gate": 0.0}, ("--gate", "--start", "leave --gate out")),
        ({"kernel_std": 0.0}, ("--kernel_std", "> 0, got 0")),
    ],
)
def test_invalid_settings_are_reported_in_one_line(fields, words):
    with pytest.raises(BadInput) as error:
        Settings(**fields).resolved()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_checkpoint_has_no_shapes_and_no_gate():
    settings = Settings(start="folder").resolved()
    assert (settings.every_shape, settings.gate) == ({}, None)


@pytest.mark.parametrize(
    ("fields", "gate"),
    [
        ({}, None),  # a demonstration
        ({"corpus": ["a"]}, 0.1),
        ({"languages": {"en": ["a"]}}, 0.1),
        ({"corpus": ["a"], "gate": -9.0}, -9.0),
        ({"gate": 0.0}, 0.0),
    ],
)
def test_models_of_a_corpus_must_beat_a_bigram_model(fields, gate):
    assert Settings(**fields).resolved().gate == gate


def broken(folder, name, content):
    (folder / name).write_text(content)
    return folder / name


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tasks", "{t: {train: FOLDER/none.csv}}"), ("--tasks t:", "none.csv: not found")),
        (("--tasks", "{t: {train: FOLDER/bad.csv}}"), ("--tasks t:", "bad.csv", "no column 'label'")),
        (
            ("--tasks", "{t: {train: FOLDER/is.csv, development: FOLDER/is.csv, test: FOLDER/new.csv}}"),
            ("--tasks t:", "the label new in test", "training"),
        ),
        (("--parallel", "[FOLDER/first.txt,FOLDER/is.txt]"), ("--parallel", "20", "40")),
        (("--parallel", "[FOLDER/first.txt,FOLDER/none.txt]"), ("--parallel", "none.txt: not found")),
        (("--similarity", "FOLDER/first.txt"), ("--similarity", "first.txt", "line 1", "two words and a number")),
        (("--mesh", "3"), ("--mesh", "3")),
        (("--start", "FOLDER/none", "--corpus", "[]"), ("--start", "none: not found")),
    ],
)
def test_unusable_files_are_named_and_nothing_is_written(tmp_path, monkeypatch, capsys, more, words):
    folder = write_files(tmp_path)
    broken(folder, "bad.csv", "text,class\na,1\n")
    broken(folder, "is.csv", "text,label\n" + "".join(f"a{i},{'old' if i % 2 else 'other'}\n" for i in range(30)))
    broken(folder, "new.csv", "text,label\na,new\n")
    out = tmp_path / "out"
    line = [*arguments(folder, "--out", out), *(word.replace("FOLDER", str(folder)) for word in more)]
    if "--start" in more:
        line = [*line[: line.index("--shapes")], *line[line.index("--tasks") :]]
    assert_refused(command_here(line, monkeypatch, capsys, STUDY), *words, script=SCRIPT)
    assert not out.exists()


def test_default_shapes_save_as_many_parameters_as_their_layers_have():
    """A small input embedding saves the parameters of about three layers (in the paper 10.9 of 12)."""
    base, small = DEFAULT_SHAPES["coupled"], DEFAULT_SHAPES["out-64"]
    saved = Settings().vocab_size * (base.embed_in - small.embed_in)
    layer = 12 * base.width**2
    assert 2.5 < saved / layer < 3.5
    assert dataclasses.replace(small, embed_out=16) == DEFAULT_SHAPES["out-16"]
