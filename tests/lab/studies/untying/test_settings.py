"""Settings of an untying run: defaults, configurations and rejected values."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from processes import assert_refused, command_here, tree

from tiejax.lab.runs import resume
from tiejax.lab.settings.command_line import field_docs
from tiejax.lab.studies.untying.settings import STUDY, Settings

CONFIGS = Path(__file__).parents[4] / "configs" / "untying"
BAD = {
    "--untie_at [5,50] --steps 20": ("--untie_at", "--steps 20", "got 50"),
    "--untie_at [1.5]": ("--untie_at", "from 0. to 1.", "got 1.5"),
    "--untie_at [.5,.5]": ("--untie_at", "distinct values", "0.5 is repeated"),
    "--untie_at [5,.25] --steps 20": ("--untie_at", "5 and 0.25 both fall on step 5 of 20"),
    "--untie_at [.5,.51] --steps 20": ("--untie_at", "0.5 and 0.51 both fall on step 10 of 20"),
    "--untie_at [0,0.] --steps 20": ("--untie_at", "0 and 0.0 both fall on step 0 of 20"),
    "--untie_at []": ("--untie_at", "at least one"),
    "--policies []": ("--policies", "at least one"),
    "--policies [copy,copy]": ("--policies", "values must be distinct"),
    "--policies [half]": ("--policies", "half"),
    "--new [middle]": ("--new", "middle"),
    "--doses [.5,.9]": ("--doses", "not supported by this experiment"),
    "--model mixer --bits 10": ("--bits", "exact risk", "fewer than 10 bits"),
    "--untie_a 3": ("'--untie_a'", "did you mean '--untie_at'"),
}


def test_defaults_are_whole_cycles_and_published_settings():
    settings = resume.read(STUDY, []).settings
    assert settings.untie_at == [20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 140_000]
    assert (settings.steps, settings.seeds, settings.out) == (150_000, 32, "runs/untying/main-transformer-small")
    assert len(settings.untie_arms.step) == 3 + 6 * 7


def test_step_1_and_fraction_1_differ():
    assert resume.read(STUDY, ["--untie_at", "[1,1.]", "--steps", "20"]).settings.untie_at == [1, 1.0]


@pytest.mark.parametrize("steps", range(1, 9))
def test_defaults_of_short_runs_can_be_read_again(steps):
    """In a run of a few steps, quarters can coincide; the settings written to config.yaml must be valid input."""
    settings = resume.read(STUDY, ["--steps", str(steps)]).settings
    again = dataclasses.replace(settings).resolved()
    assert again == settings


@pytest.mark.parametrize("line", BAD)
def test_bad_input(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended = command_here(line.split(), monkeypatch, capsys, STUDY)
    assert_refused(ended, *BAD[line], script=Path("untying.py"))
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configurations_are_valid_and_minimal(file):
    """They resolve, contain only differences from the defaults, and have a header with source and command."""
    settings = resume.read(STUDY, ["--config", str(file)]).settings
    given = yaml.safe_load(file.read_text())
    defaults = dataclasses.asdict(Settings())
    assert not {name for name, value in given.items() if value == defaults[name]}
    assert Path(settings.out).name == file.stem
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert head[0].startswith("# Source: ")
    assert f"# Command: python experiments/untying.py --config configs/untying/{file.name}" in head


def test_help_names_inherited_settings_without_use():
    """All of EXor's settings are inherited, and two of them do not apply to this experiment."""
    docs = field_docs(Settings)
    assert "not supported" in docs["doses"]
    assert "no effect" in docs["rate_seeds"]
