"""Tests of the table that --plan prints."""

from tiejax.lab.studies.embedding_coupling.memory import in_words
from tiejax.pretraining.memory import MemoryPlan


def test_memory_plan_in_words():
    assert in_words(MemoryPlan(3 * 2**30, 2**20, 1023, 2**31, "1,000 x 48, its rows split over 2 devices")) == [
        ("parameters", "3.00 GiB"),
        ("gradients", "1.00 MiB"),
        ("optimizer", "1,023 bytes"),
        ("activations", "2.00 GiB"),
        ("total", "5.00 GiB"),
        ("output table", "1,000 x 48, its rows split over 2 devices"),
    ]
