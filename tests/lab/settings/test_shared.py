"""Settings of all studies: fields, defaults and documentation; the checks of shared settings."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest
from processes import assert_refused, command_here

from tiejax.lab.settings.command_line import BadInput, _with_underscores, field_docs, option_names
from tiejax.lab.settings.shared import RunSettings, ScheduleSettings, Settings, with_defaults

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "settings.json").read_text())
STUDIES = {name: importlib.import_module(f"tiejax.lab.studies.{name}.settings").STUDY for name in GOLDEN}
SCRIPTS = {name: Path("diagnose.py" if name == "diagnosis" else f"{name}.py") for name in GOLDEN}


@pytest.mark.parametrize("name", STUDIES)
def test_no_field_and_no_default_has_changed_by_accident(name):
    """Change tests/golden/settings.json along with an intended new field or default."""
    settings = STUDIES[name].settings()
    now = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    assert now == GOLDEN[name]


@pytest.mark.parametrize("name", STUDIES)
def test_help_explains_every_field_and_switch(name, monkeypatch, capsys):
    """Those of every base class, too: jsonargparse alone reads only the class and its first base."""
    monkeypatch.setenv("COLUMNS", "1000")
    study = STUDIES[name]
    ended = command_here(["--help-all"], monkeypatch, capsys, study)
    assert (ended.status, ended.err) == (0, "")
    docs = field_docs(study.settings)
    assert sorted(docs) == sorted(GOLDEN[name])
    options = {part.split(maxsplit=1)[0].rstrip(","): " ".join(part.split()) for part in ended.out.split("\n  --")[1:]}
    for option, text in (docs | study.command.switches).items():
        assert text.strip(), option
        if option not in study.command.positional:
            assert " ".join(text.split()) in options[option]


@pytest.mark.parametrize("name", STUDIES)
def test_help_shows_at_most_ten_settings_and_how_to_see_all(name, monkeypatch, capsys):
    """All options, and no other, are those that completion offers."""
    monkeypatch.setenv("COLUMNS", "80")
    study = STUDIES[name]
    shown = command_here(["--help"], monkeypatch, capsys, study).out
    every = command_here(["--help-all"], monkeypatch, capsys, study).out

    def options(text):
        return [match[1] for line in text.splitlines() if (match := re.match(r"  (?:-h, )?--([a-z_-]+)", line))]

    few, names = options(shown), options(every)
    assert few == (["config", *study.command.first] if study.command.first else names)
    assert len(few) <= 10 or not study.command.first
    assert sorted(names) == sorted(option_names(study.settings, study.command))
    lines = shown.splitlines()
    assert (f"--help-all explains all {len(names)} options." in lines) == bool(study.command.first)
    assert max(map(len, lines)) <= 80
    # Paragraphs of their own.
    for start in ("Example: ", "Exit status: 0 success; "):
        (place,) = (place for place, line in enumerate(lines) if line.startswith(start))
        assert lines[place - 1] == ""


@pytest.mark.parametrize("name", STUDIES)
def test_options_may_have_hyphens(name):
    """Every option of every study; values, and options that do not exist, stay as they were written."""
    names = option_names(STUDIES[name].settings, STUDIES[name].command)
    spelled = [f"--{option.replace('_', '-')}" for option in names]
    assert _with_underscores(spelled, names) == [f"--{option}" for option in names]
    others = ["a-b", "-1", "--", "--no-such=a-b"]
    assert _with_underscores(others, names) == others
    assert _with_underscores(["--check-point=a-b", "--check-point+=[a-b]"], ["check_point"]) == [
        "--check_point=a-b",
        "--check_point+=[a-b]",
    ]


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "diagnosis"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--seeds 0", ("--seeds", "at least one")),
        ("--seeds [1,1]", ("--seeds", "1 is repeated")),
        ("--checkpoint_every 0", ("--checkpoint_every", "> 0")),
        ("--learning_rate -1", ("--learning_rate", ">= 0")),
        ("--weight_decay -1", ("--weight_decay", ">= 0")),
        ("--layers 0", ("--layers", ">= 1")),
        ("--dropout 1", ("--dropout", "[0, 1)")),
        ("--heads 3", ("--heads", "do not divide")),
        ("--out=", ("--out", "expected a directory")),
        ("--seed 3", ("'--seed'", "'--seeds'?")),
    ],
)
def test_bad_input_for_shared_settings(tmp_path, monkeypatch, capsys, name, line, words):
    monkeypatch.chdir(tmp_path)
    option = line.split("=")[0].split()[0].removeprefix("--")
    if option in ("layers", "dropout", "heads", "learning_rate") and option not in GOLDEN[name]:
        return  # this study sets its shapes or its rates in another way
    assert_refused(command_here(line.split(), monkeypatch, capsys, STUDIES[name]), *words, script=SCRIPTS[name])
    assert list(tmp_path.iterdir()) == []


def test_with_defaults_keeps_type_order_and_documentation():
    @with_defaults(seeds=5, eps=1e-3)
    class Own(ScheduleSettings, RunSettings):
        """Settings of a study.

        Args:
            extra: another setting
        """

        extra: int = 1

    names = [field.name for field in dataclasses.fields(Own)]
    assert (Own().seeds, Own().eps, Own(seeds=[4]).seed_list) == (5, 1e-3, [4])
    assert names[-1] == "extra"
    assert RunSettings().seeds == 1
    docs = field_docs(Own)
    assert docs["seeds"] == field_docs(RunSettings)["seeds"]
    assert docs["extra"] == "another setting"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Own().seeds = 3


def test_the_checks_of_all_groups_are_called():
    @with_defaults(out="here")
    class Own(ScheduleSettings, RunSettings):
        pass

    Own().check()
    with pytest.raises(BadInput, match="--minimum_learning_rate"):
        Own(learning_rate=1e-6).check()
    with pytest.raises(BadInput, match="--seeds"):
        Own(seeds=0).check()
    with pytest.raises(BadInput, match="--eps"):
        Own(eps=-1.0).check()
    Settings().check()
