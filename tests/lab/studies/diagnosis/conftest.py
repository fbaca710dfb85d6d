"""A temporary working directory with the command `diagnose`, and small runs to diagnose."""

import dataclasses
import pydoc_data.topics

import pytest
from processes import command_here

from tiejax import training
from tiejax.lab.runs import entry
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.runs.text import keep_text
from tiejax.lab.studies.diagnosis.settings import STUDY
from tiejax.lab.studies.text_mlm import ensemble as text_ensemble
from tiejax.lab.studies.text_mlm import settings as text_settings
from tiejax.lab.studies.text_mlm import text as text_mlm
from tiejax.lab.studies.untying import settings as untying

UNTYING = "--steps 30 --half_period 10 --bits 4 --seeds 2 --policies [copy] --record_every 10 --exact_every 10 --quiet"
TEXT = {
    **{"seeds": 2, "steps": 10, "record_every": 5, "validate_every": 5, "validation_batches": 1, "batch_size": 12},
    **{"vocab_size": 400, "layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "max_length": 32},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(here, monkeypatch, capsys):
    return lambda *argv: command_here([*argv], monkeypatch, capsys, STUDY)


@pytest.fixture(scope="session")
def launched(tmp_path_factory):
    """Run a study's command in this process, without its lasting changes to the environment."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAX_NUM_CPU_DEVICES", "1")
        yield entry.main


@pytest.fixture(scope="session")
def untying_run(launched, tmp_path_factory):
    out = tmp_path_factory.mktemp("untying") / "run"
    assert launched(untying.STUDY, [*UNTYING.split(), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """A run on text up to its last checkpoint, without records, which take longest to compile and plot."""
    folder = tmp_path_factory.mktemp("text")
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "corpus.txt").write_text("\n\n".join(topics[:12]))
    corpus, folders = [str(folder / "corpus.txt")], {"data_dir": str(folder / "prepared"), "out": str(folder / "run")}
    settings = text_settings.Settings(corpus=corpus, **folders, **TEXT).resolved()
    text, plan = text_mlm.prepare(settings, Console(quiet=True))
    directory = RunDirectory.reserve(text_settings.STUDY, settings, False, False)
    keep_text(directory, text.facts, text.tokenizer)
    nothing = training.Recorder(settings.steps, lambda params, batch, seed_key, step: {"nothing": step})
    ensemble = dataclasses.replace(text_ensemble.build_ensemble(settings, text, plan), recorders={"record": nothing})
    run = directory.manifest.identity_in("checkpoints")
    checkpoints = training.Checkpoints(directory.checkpoints, ensemble.ties, pytest.fail, run)
    training.train(ensemble, settings.seed_list, checkpoints)
    checkpoints.close()
    directory.release()
    return directory.path
