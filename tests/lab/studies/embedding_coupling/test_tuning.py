"""The choice of a fine-tuning learning rate: the grid is continued for each start by itself, on synthetic accuracies."""

from types import SimpleNamespace

import numpy as np
import pytest

from tiejax.lab.studies.embedding_coupling.encoders import STARTS
from tiejax.lab.studies.embedding_coupling.task_data import TaskData
from tiejax.lab.studies.embedding_coupling.tuning import Tuning

GIVEN = [0.001, 0.002, 0.004]
SEEDS = 2
TASK = TaskData("tags", "tagging", ("A", "B"), None, {}, {})


class Stored:
    """Stages in memory. before: those of an earlier process."""

    def __init__(self, before=()):
        self.costs, self.stored, self.worked = {"rates.a.tags": 12.0}, dict(before), []

    def add(self, name, cost):
        self.costs.setdefault(name, cost)

    def once(self, name, label, work):
        if name not in self.stored:
            self.worked.append(name)
            self.stored[name] = work()
        return self.stored[name]


class Starts(SimpleNamespace):
    """Encoders without parameters."""

    def only(self, start):
        return Starts(by_start={start: None})


def chosen(monkeypatch, best, given=GIVEN, before=()):
    """Choose rates where the accuracy of a start falls with the distance from its best rate; return them and the stages."""

    def development(self, task, stage, tried):
        accuracies = [[1 - abs(np.log2(rate / best[start])) / 100] for rate in tried for start in self.encoders.by_start]
        return {"development": np.tile(accuracies, SEEDS).reshape(len(tried), -1, SEEDS)}

    monkeypatch.setattr(Tuning, "_development", development)
    stages = Stored(before)
    settings = SimpleNamespace(fine_tuning_rates=given)
    return Tuning(settings, "a", Starts(by_start=dict.fromkeys(STARTS)), 1, stages, {}).rates(TASK, "rates.a.tags"), stages


def test_a_start_whose_last_rate_is_best_tries_further_ones(monkeypatch):
    found, stages = chosen(monkeypatch, {"pretrained": 0.008, "control": 0.002})
    assert found["tried"].tolist() == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert found["rate"].tolist() == [0.008, 0.002]
    expected = 1 - np.abs(np.log2(found["tried"] / 0.008)) / 100
    np.testing.assert_allclose(
        found["development"], np.stack([expected, [0.99, 1, 0.99, np.nan, np.nan]], 1)[..., None] + [0, 0]
    )
    further = ["rates.a.tags.pretrained.0.008", "rates.a.tags.pretrained.0.016"]
    assert stages.worked == ["rates.a.tags", *further]
    assert [stages.costs[name] for name in further] == [2.0, 2.0]  # one of six models of a seed


@pytest.mark.parametrize(("best", "most"), [(1e-5, [0.000125, 0.00025, 0.0005]), (0.9, [0.008, 0.016, 0.032])])
def test_a_grid_is_continued_at_most_three_times(monkeypatch, best, most):
    found, _ = chosen(monkeypatch, dict.fromkeys(STARTS, best))
    assert sorted({*found["tried"].tolist()} - {*GIVEN}) == most
    assert found["rate"].tolist() == [most[0] if best < 0.001 else most[-1]] * 2
    assert np.isfinite(found["development"]).all()


def test_a_single_rate_is_used_as_it_is(monkeypatch):
    found, stages = chosen(monkeypatch, dict.fromkeys(STARTS, 0.5), [0.001])
    assert (found["tried"].tolist(), found["rate"].tolist(), stages.worked) == ([0.001], [0.001, 0.001], ["rates.a.tags"])


def test_a_resumed_run_repeats_no_stage(monkeypatch):
    """Stages that an earlier process finished are read, and the choice is the same."""
    best = {"pretrained": 0.03, "control": 1e-4}
    whole, stages = chosen(monkeypatch, best)
    before = {name: stages.stored[name] for name in stages.worked[:2]}
    resumed, again = chosen(monkeypatch, best, before=before)
    assert again.worked == stages.worked[2:]
    for name, values in whole.items():
        np.testing.assert_array_equal(resumed[name], values)


def test_a_diverged_member_has_no_accuracy(monkeypatch):
    """Its predictions are the first label, which is right for 9 of 10."""
    confusion = np.array([[9, 0], [1, 0]])
    finite = np.array([[True, False, True, True]])  # [seed, arm]: two rates of two starts
    monkeypatch.setattr(Tuning, "_tune", lambda *args: (None, finite, {"development": np.tile(confusion, (1, 4, 1, 1))}))
    settings = SimpleNamespace(seed_list=[0], rate_seeds=1)
    tuning = Tuning(settings, "a", Starts(by_start=dict.fromkeys(STARTS)), 1, Stored(), {})
    found = tuning._development(TASK, "stage", [0.1, 0.2])["development"]
    np.testing.assert_allclose(found[..., 0], [[0.9, 0.0], [0.9, 0.9]])
