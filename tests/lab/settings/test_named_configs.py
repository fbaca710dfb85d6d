"""Configurations by name; a file with that path takes precedence."""

import pytest
from directories import here, refused

from tiejax.lab.settings import named_configs
from tiejax.lab.settings.command_line import parse
from tiejax.lab.studies.exor.settings import STUDY

__all__ = ["here", "refused"]  # fixtures


@pytest.mark.parametrize("name", ["exor/dh", "exor/dh.yaml", "configs/exor/dh.yaml"])
def test_a_configuration_is_found_by_its_name(here, name):
    assert parse(STUDY.settings, STUDY.command, ["--config", name])[0].variant == "dh"


def test_a_file_with_that_path_takes_precedence(here):
    (here / "exor").mkdir()
    (here / "exor" / "dh.yaml").write_text("bits: 4\n")
    settings, _ = parse(STUDY.settings, STUDY.command, ["--config", "exor/dh.yaml"])
    assert (settings.variant, settings.bits) == (None, 4)


def test_a_folder_with_that_path_does_not(here):
    (here / "exor" / "dh").mkdir(parents=True)
    assert parse(STUDY.settings, STUDY.command, ["--config", "exor/dh"])[0].variant == "dh"


def test_all_configurations_of_a_study_are_listed():
    names = named_configs.names("exor")
    assert "exor/lstm_small" in names
    assert names == sorted(names)
    assert all(named_configs.find(name) for name in names)


def test_unknown_configuration(refused):
    refused(
        ["--config", "exor/lstm"],
        "--config exor/lstm: not found, neither as a file nor among",
        "exor/lstm_small, exor/mixer_medium",
    )
    refused(["--config", "lstm"], "--config lstm: not found, neither as a file nor among", "exor/lstm_small, exor/mixer_medium")


@pytest.mark.parametrize("name", ["../configs/exor/dh", "exor/../exor/dh", "exor/dh/", "exor\n/dh"])
def test_a_name_cannot_lead_to_another_folder(refused, name):
    refused(["--config", name], "not found")


@pytest.mark.parametrize("value", ["gs://bucket/run", "s3://bucket/run", "https://host/run"])
def test_paths_on_other_machines_are_refused(refused, value):
    refused(["--out", value], f"--out: expected a path on this machine, got {value}")
    refused(["--config", value], f"--config: expected a path on this machine, got {value}")
