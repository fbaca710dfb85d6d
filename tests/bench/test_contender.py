"""Contenders: processes that train in turn, their rates added up, their environment their own."""

import os

import pytest

from experiments.bench.contender import Contender, Work, allocator, changed, environment_of_sides, take_turns
from tiejax.lab.runs import environment
from tiejax.lab.runs.huge_pages import ALLOCATOR


def test_rates_of_processes_side_by_side_add_up():
    with Contender("contenders:at_rate", [1000, 500], {}) as both:
        assert [both.train(0.1), both.train(0.2)] == [pytest.approx(1500), pytest.approx(1500)]


def test_processes_have_the_environment_they_are_given_and_ours_stays():
    assert "OF_CONTENDER" not in os.environ
    with Contender("contenders:at_rate", ["OF_CONTENDER"], {"OF_CONTENDER": "700"}) as one:
        assert "OF_CONTENDER" not in os.environ
        assert one.train(0.1) == pytest.approx(700)


def test_processes_end_with_the_contender():
    with Contender("contenders:at_rate", [1, 2], {}) as both:
        processes = both._processes
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)


def test_a_process_that_cannot_be_made_is_an_error():
    with pytest.raises(EOFError), Contender("contenders:failing", [3], {}):
        pass


def test_rate_is_tokens_over_seconds():
    assert Work(30, 1.5).rate == 20


def test_environment_is_changed_for_a_while(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    with changed({"KEPT": "2", "ADDED": "3"}):
        assert (os.environ["KEPT"], os.environ["ADDED"]) == ("2", "3")
    assert os.environ["KEPT"] == "1"
    assert "ADDED" not in os.environ


def test_our_processes_have_a_device_a_core(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(environment, "cores", lambda: 3)
    assert environment_of_sides(a_core=True)["JAX_NUM_CPU_DEVICES"] == "3"
    assert environment_of_sides(a_core=False)["JAX_NUM_CPU_DEVICES"] == "1"


def test_the_allocator_is_told_as_the_processes_see_it(monkeypatch):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert allocator() == {}
    monkeypatch.setenv("GLIBC_TUNABLES", "mine")
    monkeypatch.setenv("OTHER", "6")
    assert allocator() == {"GLIBC_TUNABLES": "mine"}


class Told:
    """Trains at a rate of its own a second, and tells what it was asked for."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def train(self, seconds):
        self.asked.append((self.name, seconds))
        return 10.0 * len(self.asked)


def test_a_turn_begins_with_half_as_long_that_is_not_counted():
    asked = []
    rates = take_turns({name: Told(name, asked) for name in ("ours", "theirs")}, 2, 4.0)
    assert asked == [("ours", 2.0), ("ours", 4.0), ("theirs", 2.0), ("theirs", 4.0)] * 2
    assert rates == {"ours": [20.0, 60.0], "theirs": [40.0, 80.0]}
