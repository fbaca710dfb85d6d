"""Configurations by name, and that a file of that path comes first."""

import pytest
from directories import here, refused

from tiejax.lab.settings import named_configs
from tiejax.lab.settings.command_line import parse
from tiejax.lab.studies.exor.settings import STUDY

__all__ = ["here", "refused"]  # fixtures


@pytest.mark.parametrize("name", ["exor/dh", "exor/dh.yaml", "configs/exor/dh.yaml"])
def test_a_configuration_is_found_by_its_name(here, name):
    assert parse(STUDY.settings, STUDY.command, ["--config", name])[0].variant == "dh"


def test_a_file_of_that_path_comes_first(here):
    (here / "exor").mkdir()
    (here / "exor" / "dh.yaml").write_text("bits: 4\n")
    settings, _ = parse(STUDY.settings, STUDY.command, ["--config", "exor/dh.yaml"])
    assert (settings.variant, settings.bits) == (None, 4)


def test_a_folder_of_that_path_does_not(here):
    (here / "exor" / "dh").mkdir(parents=True)
    assert parse(STUDY.settings, STUDY.command, ["--config", "exor/dh"])[0].variant == "dh"


def test_every_configuration_of_a_study_is_named():
    names = named_configs.names("exor")
    assert "exor/lstm_small" in names
    assert names == sorted(names)
    assert all(named_configs.find(name) for name in names)


def test_a_name_that_there_is_not_is_answered_with_those_that_there_are(refused):
    refused(["--config", "exor/lstm"], "--config exor/lstm: there is no such file", "exor/lstm_small, exor/mixer_medium")
    refused(["--config", "lstm"], "--config lstm: there is no such file", "exor/lstm_small, exor/mixer_medium")


@pytest.mark.parametrize("name", ["../configs/exor/dh", "exor/../exor/dh", "exor/dh/", "exor\n/dh"])
def test_a_name_leads_nowhere_else(refused, name):
    refused(["--config", name], "there is no such file")


@pytest.mark.parametrize("value", ["gs://bucket/run", "s3://bucket/run", "https://host/run"])
def test_paths_of_other_machines_are_refused(refused, value):
    refused(["--out", value], f"--out: must be a path of this machine, got {value}")
    refused(["--config", value], f"--config: must be a path of this machine, got {value}")
