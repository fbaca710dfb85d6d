"""The benchmark of fine-tuning: what its processes train, what it makes of their rates, and what it leaves on disk."""

import json

import pytest

from experiments.bench import transfer
from experiments.bench.settings import TransferBench
from experiments.bench.transfer import Job
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console


def test_rates_are_compared_turn_by_turn(tmp_path, monkeypatch, capsys):
    """Twice in every turn but one, in which it is three times: 2 is the median."""
    settings = TransferBench(data_dir=str(tmp_path / "data"), out=str(tmp_path / "out"), seeds=3)
    jobs = {}

    def measure(settings, asked):
        jobs.update(asked)
        return {"ensemble": [20.0, 40, 60, 80, 300], "one": [10.0, 20, 30, 40, 100]}

    monkeypatch.setattr(transfer, "measure", measure)
    monkeypatch.setattr(transfer, "prepare_text", lambda *_: None)
    transfer.run(settings, Console())
    assert {form: job[1:] for form, job in jobs.items()} == {"ensemble": (3, 6), "one": (1, 1)}
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["members"] == 18
    assert results["ratio"] == {"median": 2.0, "min": 2.0, "max": 3.0}
    assert results["rates"]["one"]["median"] == 30
    assert "18 members as an ensemble: 2.00 x (2.00 to 3.00)" in capsys.readouterr().out


def test_each_form_has_devices_of_its_own(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setattr(environment, "cores", lambda: 4)
    assert transfer.environment_of("one")["JAX_NUM_CPU_DEVICES"] == "1"
    assert transfer.environment_of("ensemble")["JAX_NUM_CPU_DEVICES"] == "4"


@pytest.mark.slow
def test_members_are_counted(tmp_path):
    """Of 2 seeds with 2 arms, every step is a step of four members."""
    train = transfer.train_members(Job(TransferBench(data_dir=str(tmp_path), seeds=2), seeds=2, arms=2))
    work = train(0.01)
    assert work.tokens % 4 == 0
    assert work.seconds > 0
