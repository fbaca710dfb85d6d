"""The YAML of settings; any file and any option of any command is accepted, or refused in one line."""

import contextlib
import importlib
import typing

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.bench.benchmarks import BENCHMARKS
from tiejax.lab.settings import yaml_text
from tiejax.lab.settings.command_line import BadInput, parse, refused
from tiejax.lab.settings.yaml_text import NotYaml, dump, dump_words, load, load_flag

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
    for read in (load, load_flag):
        with contextlib.suppress(NotYaml):
            read(text)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_values_of_settings_are_read_as_by_pyyaml(value):
    text = yaml.safe_dump(value, sort_keys=False)
    assert repr(load(text)) == repr(yaml.safe_load(text))
    assert repr(load(dump(value))) == repr(yaml.safe_load(text))


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4))
def test_words_survive_a_round_trip_on_one_line(words):
    line = dump_words(words)
    assert "\n" not in line
    assert load_flag(line) == words


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: *x\n", 2), ("a: 1\na: 2\n", 2), ("\n\na: !!set {b}\n", 3), ("a: 1\n\0", 2)]
)
def test_the_line_is_named(text, line):
    with pytest.raises(NotYaml) as error:
        load(text)
    assert error.value.line == line


def test_faults_of_values_are_found_at_any_depth():
    assert yaml_text.fault({"a": [1, {"b": "c"}], "d": "\udcff"}) is None
    assert "NUL" in yaml_text.fault({"a": [{"b\0": 1}]})
    assert "surrogate" in yaml_text.fault([["\ud800"]])
    assert "64 bits" in yaml_text.fault({"a": [2**63]})
    assert yaml_text.fault([2**63 - 1, -(2**63)]) is None
