"""The number of steps that hours allow."""

from types import SimpleNamespace

import pytest

from tiejax.lab.comparison import step_count
from tiejax.lab.settings.command_line import BadInput


def steps_in(hours, least, monkeypatch):
    """The steps of two stages, each of a whole run, at 100 seconds a step."""
    monkeypatch.setattr(step_count, "seconds_of_step", lambda *given: 100.0)
    trainer = SimpleNamespace(stages=SimpleNamespace(once=lambda name, label, work: work()), steps=10)
    settings, console = SimpleNamespace(steps=None, hours=hours), SimpleNamespace(say=lambda line: None)
    return step_count.steps_of(trainer, settings, None, 1, {"one": 1.0, "other": 1.0}, [], console, least=least)


def test_hours_that_do_not_suffice_are_refused_with_those_that_do(monkeypatch):
    """Two steps of two stages take 2 x 12 + 2 x 2 x 100 x 1.05 = 444 seconds."""
    assert [steps_in(seconds / 3600, 2, monkeypatch) for seconds in (445, 655, 4000)] == [2, 3, 10]
    words = r"^--hours: expected at least 0\.124, which 2 stages of 12 s and 2 steps need, got 0\.123; .* with --overwrite$"
    with pytest.raises(BadInput, match=words):
        steps_in(0.123, 2, monkeypatch)
    assert steps_in(0.124, 2, monkeypatch) == 2
    assert steps_in(0.123, 1, monkeypatch) == 1
