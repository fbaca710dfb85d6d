"""A part of the fault suite with a fixed seed; `python tests/faults` runs it at any size."""

import random

import pytest

from faults.damages import damages
from faults.inputs import inputs
from faults.kills import kills
from faults.limits import without_disk_space
from faults.runs import commands, uninterrupted

KILLS, DAMAGES, INPUTS = 4, 6, 200


@pytest.mark.slow
def test_random_input_is_accepted_or_refused_in_one_line(tmp_path):
    found = inputs(tmp_path, INPUTS, random.Random(1))
    assert found["refused"] > INPUTS / 2
    assert sum(found.values()) == INPUTS


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """An ensemble with records on the disk; tests of the other studies kill runs as well."""
    folder = tmp_path_factory.mktemp("faults")
    return [uninterrupted(folder, "untying", commands(folder)["untying"])]


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(runs, tmp_path):
    assert sum(kills(runs, tmp_path, KILLS, random.Random(2)).values()) == KILLS


@pytest.mark.slow
def test_damage_is_reported_or_repaired(runs, tmp_path):
    found = damages(runs, tmp_path, DAMAGES, random.Random(3))
    assert found["reported"] > 0
    assert found["repaired"] > 0


@pytest.mark.slow
def test_a_run_without_disk_space_stops_in_one_line_and_resumes(runs, tmp_path):
    found = without_disk_space(runs, tmp_path, limits=(50, 8_000, 60_000))
    assert found["status 4"] >= 2
