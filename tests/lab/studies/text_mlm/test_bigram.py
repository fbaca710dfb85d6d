"""Tests of the bigram models that the models of a run are compared with."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from text_runs import arguments, metrics

from tiejax.lab.runs import entry, resume
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.text_mlm import text
from tiejax.lab.studies.text_mlm.ensemble import losses_of_bigrams
from tiejax.lab.studies.text_mlm.settings import STUDY
from tiejax.text.ngram import masked_losses
from tiejax.text.packing import TextFeed
from tiejax.text.sequences import Sequences


@pytest.fixture
def prepared(data, tmp_path):
    """Settings, text and plan of a run of 3 steps."""
    settings = resume.read(STUDY, arguments(data, "--out", tmp_path / "run", "--steps", 3)).settings
    return settings, *text.prepare(settings, Console(quiet=True))


def test_losses_are_those_of_the_text(prepared):
    """With twins that hardly ever replace a word: those of the sentences in the rows, with ordinary tokens as targets."""
    settings, whole, plan = prepared
    rare = dataclasses.replace(whole.twins, probability=(1e-9,) * len(whole.twins.ids))
    whole = whole._replace(twins=rare)
    found = losses_of_bigrams(settings, whole, plan)

    def sentences(split, seed, steps):
        feed = TextFeed(*split, settings.max_length, whole.vocabulary.pad, plan.rows, window=1)
        windows, taken = feed.open([(seed, 0)], range(1), 1, 0), []
        for _ in range(steps):
            window = next(windows)
            for tokens, segments in zip(window.tokens[0, 0], window.segments[0, 0], strict=True):
                taken += [tokens[segments == number].tolist() for number in range(1, segments.max() + 1)]
        return Sequences(np.concatenate(taken).astype(int), np.cumsum([0, *map(len, taken)]))

    ordinary = ~np.isin(np.arange(rare.vocabulary), whole.vocabulary.special)
    expected = masked_losses(
        sentences(whole.train, 0, 3), sentences(whole.validation, 0, settings.validation_batches), rare.vocabulary, ordinary
    )
    assert found == pytest.approx(expected, rel=1e-9)
    longer = losses_of_bigrams(settings, whole, plan._replace(steps=1000))
    assert longer["both"] < found["both"]


@pytest.mark.slow
def test_run_is_compared_with_its_bigrams(run, tmp_path):
    """In results.json, in the report's opening, and in its tables; a resumed run may have another gate."""
    out, _ = run
    settings = resume.read(STUDY, ["--resume", "--out", str(out)]).settings
    found = json.loads((out / "results.json").read_text())
    assert found["bigram"] == losses_of_bigrams(settings, *text.prepare(settings, Console(quiet=True)))
    last = metrics(out)["validation_loss"][..., -1].mean(axis=1)
    assert found["gate"].pop("failed").startswith(f"No claim is tested, since the untied models end with {last[0]:.3f} nats")
    assert {row["family"] for row in found["claims"]} == {"exploratory"}
    assert found["gate"] == {
        "margin": 0.1,
        "bigram": min(found["bigram"].values()),
        "losses": {"untied": pytest.approx(last[0]), "tied": pytest.approx(last[1])},
    }
    html = (out / "report.html").read_text()
    assert f"and {found['bigram']['both']:.3f} from both; mean final losses: untied models {last[0]:.3f}" in html
    assert "bigram, both" in html
    again = shutil.copytree(out, tmp_path / "again")
    assert entry.main(STUDY, ["--resume", "--out", str(again), "--gate", "-9", "--quiet"]) == 0
    regated = json.loads((again / "results.json").read_text())
    assert (regated["gate"]["margin"], regated["gate"]["failed"], regated["final"]) == (-9, "", found["final"])
    assert "gate: -9" in (again / "config.yaml").read_text()
    shutil.rmtree(again / "checkpoints")
    with pytest.raises(BadInput, match=r"has finished, and its last checkpoint, .*; --overwrite trains from scratch$"):
        entry.main(STUDY, ["--resume", "--out", str(again), "--gate", "-8", "--quiet"])
    assert json.loads((again / "results.json").read_text()) == regated
