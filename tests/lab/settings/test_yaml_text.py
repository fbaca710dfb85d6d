"""The YAML of settings; any file and any option of any command is accepted, or refused in one line."""

import contextlib
import importlib
import typing
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.bench.command import BENCHMARKS
from tiejax.lab.settings import yaml_text
from tiejax.lab.settings.command_line import BadInput, parse, refused
from tiejax.lab.settings.yaml_text import NotYaml, dump, dump_line, load, load_as_text

STUDIES = ("exor", "untying", "text_mlm", "layer_tying", "diagnosis", "embedding_coupling")
COMMANDS = {name: importlib.import_module(f"tiejax.lab.studies.{name}.settings").STUDY for name in STUDIES} | BENCHMARKS

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6))
KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6))
VALUES = st.recursive(SCALARS, lambda of: st.lists(of, max_size=3) | st.dictionaries(KEYS, of, max_size=3), max_leaves=8)
# Pieces of YAML, so that many texts are almost valid.
PIECES = [
    "[",
    "]",
    "{",
    "}",
    ": ",
    ", ",
    "- ",
    "\n",
    "  ",
    "&a ",
    "*a",
    "!!set ",
    "!",
    "? ",
    "| ",
    "'",
    '"',
    "#",
    "%YAML",
    "---",
]
PIECES += [r"\u", "d800", r"\0", "...", "<<", "=", "~", "2024-01-01", "1e9", "0x", "1:2", ".nan", "yes", "\0", "\x1b", "\ufeff"]


def fields(name):
    return list(typing.get_type_hints(COMMANDS[name].settings))


def parse_or_refuse(name, argv):
    """Parse and check as a command does; any error except bad input fails the test."""
    study = COMMANDS[name]
    try:
        given, _ = parse(study.settings, study.command, argv)
        given.resolved() if hasattr(given, "resolved") else given.check()
    except BadInput:
        pass
    except OSError as error:
        if not isinstance(refused(error, "run it again"), BadInput):
            raise


@pytest.mark.parametrize("name", COMMANDS)
def test_any_values_of_any_fields_are_accepted_or_refused(name, tmp_path):
    values = st.dictionaries(st.sampled_from(fields(name)), VALUES, min_size=1, max_size=2)

    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(values)
    def check(values):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
        parse_or_refuse(name, ["--config", str(tmp_path / "c.yaml")])
        parse_or_refuse(
            name, [f"--{field}={yaml.safe_dump(value, default_flow_style=True)}" for field, value in values.items()]
        )

    check()


def test_the_type_of_a_positional_field_is_checked_in_a_file(tmp_path):
    (tmp_path / "c.yaml").write_text("checkpoint: [a, b]\n")
    study = COMMANDS["diagnosis"]
    with pytest.raises(BadInput, match=r"c\.yaml: checkpoint: expected text, got \['a', 'b'\]"):
        parse(study.settings, study.command, ["--config", str(tmp_path / "c.yaml")])


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text):
    for read in (load, load_as_text):
        with contextlib.suppress(NotYaml):
            read(text)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_values_survive_a_round_trip(value):
    assert repr(load(dump(value))) == repr(value)
    line = dump_line([value])
    assert "\n" not in line
    assert repr(load(line)) == repr([value])


# Plain scalars of the core schema of YAML 1.2 (section 10.3.2 of its specification), and what YAML 1.1 would read.
CORE = {
    "010": 10,  # 8
    "0o10": 8,  # text
    "0x1F": 31,
    "+12": 12,
    "-0": 0,
    "1:30": "1:30",  # 90
    "1_000": "1_000",  # 1000
    "0b11": "0b11",  # 3
    "yes": "yes",  # true
    "No": "No",  # false
    "on": "on",  # true
    "OFF": "OFF",  # false
    "y": "y",
    "true": True,
    "FALSE": False,
    "tRUE": "tRUE",
    "~": None,
    "Null": None,
    "": None,
    "12e03": 12000.0,  # text
    "5e-4": 0.0005,  # text
    "+.5": 0.5,
    "1.": 1.0,
    "-.Inf": float("-inf"),
    "1.2.3": "1.2.3",
    ".": ".",
    "e3": "e3",
    "0x": "0x",
    "2024-01-31": "2024-01-31",  # a date
    "=": "=",
    "<<": "<<",
    "\u0661": "\u0661",  # a digit of another script
}


@pytest.mark.parametrize("text", CORE)
def test_plain_scalars_are_those_of_yaml_1_2(text):
    assert repr(load(text)) == repr(CORE[text])
    assert repr(load(f"a: {text}\nb: [{text}]")) == repr({"a": CORE[text], "b": [CORE[text]] if text else []})
    assert load_as_text(f"a: {text}") == {"a": text}
    assert load(f"'{text}'") == text
    assert repr(load(dump({"a": text}))) == repr({"a": text})


# Fields of every type: text, a choice, integer, number, truth value, lists and mappings of them.
FIELDS = {
    ("exor", "out"): list(CORE),
    ("exor", "model"): ["no", "010"],
    ("exor", "steps"): list(CORE),
    ("exor", "learning_rate"): list(CORE),
    ("exor", "seeds"): ["010", "0o10", "[010, 1]", "[1:30]", "3-5"],
    ("exor", "zero"): ["[+.5, .5]", "[010, 5e-4]", "[no, yes]"],
    ("text_mlm", "corpus"): ["[010, no]", "['010', 1:30, true]"],
    ("embedding_coupling", "cipher"): ["yes", "true", "True", "no", "010"],
    ("embedding_coupling", "languages"): ["{no: [010, yes]}", "{010: [a]}", "{a: 010}"],
}


def read_as_null(text):
    return load(text) is None


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_value_in_a_file_is_that_of_the_command_line(name, field, tmp_path):
    study, file = COMMANDS[name], tmp_path / "c.yaml"

    def read(*argv):
        try:
            return getattr(parse(study.settings, study.command, argv)[0], field)
        except BadInput:
            return "refused"

    for text in FIELDS[name, field]:
        if read_as_null(text):  # null in a file, which text fields refuse, and the text itself on the command line
            continue
        file.write_text(f"{field}: {text}\n")
        assert read("--config", str(file)) == read(f"--{field}={text}"), text
        if not text.startswith("-"):  # which would be an option
            assert read(f"--{field}", text) == read(f"--{field}={text}"), text


def test_values_are_appended_to_those_of_a_file(tmp_path):
    study, file = COMMANDS["text_mlm"], tmp_path / "c.yaml"
    file.write_text("corpus: [a]\nseeds: [3]\n")
    given, _ = parse(study.settings, study.command, ["--config", str(file), "--corpus+=010", "--seeds+=[5,7]"])
    assert (given.corpus, given.seeds) == (["a", "010"], [3, 5, 7])


def test_a_path_on_another_machine_in_a_file_may_be_overridden(tmp_path):
    study, file = COMMANDS["text_mlm"], tmp_path / "c.yaml"
    file.write_text("corpus: [s3://bucket/x]\n")
    argv = ["--config", str(file)]
    with pytest.raises(BadInput, match=r"^--corpus: expected a path on this machine, got s3://bucket/x"):
        parse(study.settings, study.command, argv)
    given, _ = parse(study.settings, study.command, [*argv, "--corpus", "[a.txt]"])
    assert given.corpus == ["a.txt"]


@pytest.mark.parametrize("name", ["causal_untying", "embedding_coupling", "layer_tying", "text_mlm"])
def test_a_folder_for_data_needs_no_home(name, monkeypatch):
    """As in a container whose user has no entry among the users."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    study = importlib.import_module(f"tiejax.lab.studies.{name}.settings").STUDY
    assert study.settings(data_dir="/data").resolved().data_dir == "/data"
    with pytest.raises(BadInput, match=r"^--data_dir: this user has no home directory; name a folder"):
        study.settings().resolved()


def test_text_of_a_file_is_what_was_written(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("languages: {no: [010, 1:30], yes: [true]}\nout: 0o17\nseeds: 010\n")
    study = COMMANDS["embedding_coupling"]
    given, _ = parse(study.settings, study.command, ["--config", str(file)])
    assert (given.languages, given.out, given.seeds) == ({"no": ["010", "1:30"], "yes": ["true"]}, "0o17", 10)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4))
def test_words_survive_a_round_trip_on_one_line(words):
    line = dump_line(words)
    assert "\n" not in line
    assert load(line) == words


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: *x\n", 2), ("a: 1\na: 2\n", 2), ("\n\na: !!set {b}\n", 3), ("a: 1\n\0", 2)]
)
def test_the_line_is_named(text, line):
    with pytest.raises(NotYaml) as error:
        load(text)
    assert error.value.line == line


def test_faults_of_values_are_found_at_any_depth():
    assert yaml_text.first_fault({"a": [1, {"b": "c"}], "d": "\udcff"}, yaml_text.of_value) is None
    assert yaml_text.first_fault({"x": 1, "a": [{"b\0": 1}]}, yaml_text.of_value) == ("a", "contains a NUL character")
    assert "surrogate" in yaml_text.first_fault({"a": [["\ud800"]]}, yaml_text.of_value)[1]
    assert "64 bits" in yaml_text.first_fault({"a": [2**63], "b": "\0"}, yaml_text.of_value)[1]
    assert yaml_text.first_fault({"a": [2**63 - 1, -(2**63)]}, yaml_text.of_value) is None
