"""The benchmark of fine-tuning: jobs of its processes, ratios of their rates, and results on disk."""

import json

import pytest

from experiments.bench import transfer
from experiments.bench.settings import TransferBench
from experiments.bench.transfer import Job
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console


def test_ratios_are_taken_by_measurement(tmp_path, monkeypatch, capsys, one_device):
    """The ensemble is twice as fast in all measurements except one, in which it is three times as fast."""
    settings = TransferBench(data_dir=str(tmp_path / "data"), out=str(tmp_path / "out"), seeds=3)
    compared = {}
    monkeypatch.setattr(environment, "one_device_a_core", one_device)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setattr(environment, "cores", lambda: 4)

    def compare(settings, sides):
        compared.update(sides)
        return {"ensemble": [20.0, 40, 60, 80, 300], "one": [10.0, 20, 30, 40, 100]}

    monkeypatch.setattr(transfer, "compare", compare)
    monkeypatch.setattr(transfer, "prepare_text", lambda *_: None)
    transfer.run(settings, Console())
    assert {form: job[1:] for form, (_, (job,), _) in compared.items()} == {"ensemble": (3, 6), "one": (1, 1)}
    devices = {form: variables["JAX_NUM_CPU_DEVICES"] for form, (_, _, variables) in compared.items()}
    assert devices == {"ensemble": "4", "one": "1"}
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["members"] == 18
    assert results["ratio"] == {"median": 2.0, "min": 2.0, "max": 3.0}
    assert results["rates"]["one"]["median"] == 30
    assert "18 members as an ensemble: 2.00 x one after the other (2.00 to 3.00)" in capsys.readouterr().out


@pytest.mark.bench
def test_work_is_counted_in_member_steps(tmp_path):
    """With 2 seeds and 2 arms, every step is 4 member-steps."""
    train = transfer.train_members(Job(TransferBench(data_dir=str(tmp_path), seeds=2), seeds=2, arms=2))
    work = train(0.01)
    assert work.tokens % 4 == 0
    assert work.seconds > 0
