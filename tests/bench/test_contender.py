"""Contenders: processes that take turns, with their own environment and the sum of their rates."""

import os
from types import SimpleNamespace

import contenders
import pytest

from experiments.bench import contender
from experiments.bench.contender import (
    ALLOCATOR,
    Contender,
    Side,
    Work,
    allocator,
    compare,
    environment_of_sides,
    installed,
)
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console


def test_rates_of_simultaneous_processes_add_up():
    with Contender(contenders.at_rate, [1000, 500], {}) as both:
        assert [both.train(0.1), both.train(0.2)] == [pytest.approx(1500), pytest.approx(1500)]


def test_processes_get_their_environment_and_ours_is_unchanged():
    assert "OF_CONTENDER" not in os.environ
    with Contender(contenders.at_rate, ["OF_CONTENDER"], {"OF_CONTENDER": "700"}) as one:
        assert "OF_CONTENDER" not in os.environ
        assert one.train(0.1) == pytest.approx(700)


def test_processes_end_with_the_contender():
    with Contender(contenders.at_rate, [1, 2], {}) as both:
        processes = both._processes
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)


def test_failing_process_is_an_error():
    with pytest.raises(EOFError), Contender(contenders.failing, [3], {}):
        pass


def test_rate_is_tokens_over_seconds():
    assert Work(30, 1.5).rate == 20


def test_one_device_per_core_or_one_device(monkeypatch, one_device):
    monkeypatch.setattr(environment, "one_device_a_core", one_device)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(environment, "cores", lambda: 3)
    assert environment_of_sides(device_a_core=True)["JAX_NUM_CPU_DEVICES"] == "3"
    assert environment_of_sides(device_a_core=False)["JAX_NUM_CPU_DEVICES"] == "1"


def test_allocator_variables_are_reported(monkeypatch):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert allocator() == {}
    monkeypatch.setenv("GLIBC_TUNABLES", "mine")
    monkeypatch.setenv("OTHER", "6")
    assert allocator() == {"GLIBC_TUNABLES": "mine"}


class Recorded:
    """A contender that records the requests to train, with a rate that grows with their number."""

    def __init__(self, name, requests, environment):
        self.name, self.requests = name, requests

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def train(self, seconds):
        self.requests.append((self.name, seconds))
        return 10.0 * len(self.requests)


def test_sides_without_their_packages_are_left_out(capsys):
    sides = {
        "ours": Side("ours", (), contenders.at_rate),
        "other": Side("the other side", ("json", "no_package", "no_other"), "no_package:train"),
    }
    assert installed(sides, Console()) == ["ours"]
    expected = "no_package, no_other not installed: the other side is left out (pip install -e '.[parity]')\n"
    assert capsys.readouterr().out == expected


def test_turn_begins_with_uncounted_training_of_half_the_length(monkeypatch):
    requests = []
    monkeypatch.setattr(contender, "Contender", Recorded)
    settings = SimpleNamespace(repeats=2, seconds=4.0)
    rates = compare(settings, {name: (name, requests, {}) for name in ("ours", "theirs")})
    assert requests == [("ours", 2.0), ("ours", 4.0), ("theirs", 2.0), ("theirs", 4.0)] * 2
    assert rates == {"ours": [20.0, 60.0], "theirs": [40.0, 80.0]}
