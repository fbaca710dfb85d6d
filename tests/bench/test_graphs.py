"""Which loops the host drives, from what XLA writes of programs; the compiler itself is asked by `bench.py targets`."""

import jax
import jax.numpy as jnp
import pytest

from experiments.bench.graphs import driven_by_host
from experiments.bench.h100 import DRIVER, TARGET_CONFIG, WITH_DRIVER
from tiejax.lab.studies.exor.ensemble import GRAPH_LOOPS, build_ensemble
from tiejax.lab.studies.exor.settings import Settings

BY_STEP = """\
001: kCopy  [source] kCopy
003: kWhile [prev=002 (1) | sink        ]
condition:
    004: kCustomKernel [source | sink] compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | sink]
        005: kCustomKernel [source | sink] add grid: [1, 1, 1]
        006: kWhile [source | sink]
      condition:
            007: kCustomKernel [source | sink] compare
    008: kWhile [source | sink]
"""
WHOLE = """\
000: kCommandBuffer [source | sink]
    001: kCopy  [source] kCopy
    003: kWhile [prev=002 (1) | sink        ]
condition:
        004: kCustomKernel [source | sink] compare
      body:
        005: kWhile [source | sink]
"""


@pytest.mark.parametrize(("text", "expected"), [(BY_STEP, ["003", "008"]), (WHOLE, []), ("", [])])
def test_loops_outside_of_command_buffers_are_the_hosts(text, expected):
    assert [line.split(":")[0].strip() for line in driven_by_host(text)] == expected


def test_the_driver_is_told_within_the_device():
    before, after = TARGET_CONFIG.split("gpu_device_info {")
    assert before + "gpu_device_info {" + DRIVER + after == WITH_DRIVER


def test_loops_become_graphs_where_that_is_asked_for():
    asked = {graph_loops: Settings(graph_loops=graph_loops).resolved() for graph_loops in (False, True)}
    told = {graph_loops: build_ensemble(settings, "gpu").xla_options["gpu"] for graph_loops, settings in asked.items()}
    assert told == {False: {}, True: GRAPH_LOOPS}


def test_xla_knows_the_option_and_every_word_of_it():
    """Where it compiles for a CPU too, it reads the options for GPUs, and refuses what it does not know."""
    lowered = jax.jit(jnp.sin).lower(1.0)
    lowered.compile(GRAPH_LOOPS)
    for name, words in GRAPH_LOOPS.items():
        with pytest.raises(Exception, match="not a valid enum value"):
            lowered.compile({name: f"{words},NONSENSE"})
        with pytest.raises(Exception, match="No such compile option"):
            lowered.compile({f"{name}_nonsense": words})
