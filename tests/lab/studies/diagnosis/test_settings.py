"""The settings of a diagnosis, and whether the diagnosed run used one device per core."""

import pytest
import yaml

from tiejax.lab.runs.manifest import Manifest, settings_of
from tiejax.lab.settings import command_line
from tiejax.lab.studies.diagnosis.settings import STUDY, Settings, device_a_core
from tiejax.lab.studies.exor import settings as exor
from tiejax.lab.studies.text_mlm import settings as text_mlm


def test_checkpoint_on_the_command_line_or_in_a_file(here):
    (here / "d.yaml").write_text("checkpoint: a\nsample: 7\n")
    for line, expected in (
        ("c --sample 5", ("c", 5)),
        ("--sample 5 c", ("c", 5)),
        ("--config d.yaml", ("a", 7)),
        ("--config d.yaml c", ("c", 7)),
    ):
        settings, switches = command_line.parse(STUDY.settings, STUDY.command, [*line.split(), "--quiet"])
        assert (settings.checkpoint, settings.sample) == expected
        assert switches == {"overwrite": False, "quiet": True}


def text_run(folder, settings):
    folder.mkdir()
    known = "depth" not in settings
    asked = text_mlm.Settings(**yaml.safe_load(settings)).resolved() if known else None
    Manifest("text_mlm", settings_of(asked, text_mlm.STUDY.may_change) if known else {}).write(folder)
    (folder / "config.yaml").write_text(settings)
    return Settings(checkpoint=str(folder))


@pytest.mark.parametrize(("fields", "wanted"), [("seeds: 4", True), ("seeds: 3", False), ("mesh: 2\nseeds: 3", True)])
def test_text_run_is_diagnosed_on_its_devices(tmp_path, monkeypatch, fields, wanted):
    monkeypatch.setattr(text_mlm, "cores", lambda: 2)
    asked = text_run(tmp_path / "run", fields)
    assert STUDY.device_a_core(asked) is wanted


def test_nothing_else_uses_a_device_per_core(tmp_path):
    """A checkpoint, a run of EXor, and a refused run."""
    assert not device_a_core(Settings(checkpoint=str(tmp_path / "none")))
    assert not device_a_core(text_run(tmp_path / "refused", "depth: 3"))
    settings = text_run(tmp_path / "exor", "seeds: 4")
    Manifest("exor", settings_of(exor.Settings(seeds=4).resolved(), exor.STUDY.may_change)).write(tmp_path / "exor")
    assert not device_a_core(settings)
