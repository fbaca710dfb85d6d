"""Loops that the host drives, read from sample dumps of XLA; `bench.py targets` reads them from the compiler."""

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
def test_loops_outside_command_buffers_are_driven_by_the_host(text, expected):
    assert [line.split(":")[0].strip() for line in driven_by_host(text)] == expected


def test_driver_versions_are_part_of_the_device():
    before, after = TARGET_CONFIG.split("gpu_device_info {")
    assert before + "gpu_device_info {" + DRIVER + after == WITH_DRIVER


def test_graph_loops_sets_the_xla_options():
    by_setting = {graph_loops: Settings(graph_loops=graph_loops).resolved() for graph_loops in (False, True)}
    options = {graph_loops: build_ensemble(settings, "gpu").xla_options["gpu"] for graph_loops, settings in by_setting.items()}
    assert options == {False: {}, True: GRAPH_LOOPS}


def test_xla_accepts_the_option_and_its_values():
    """XLA parses GPU options when it compiles for a CPU too, and rejects unknown ones."""
    lowered = jax.jit(jnp.sin).lower(1.0)
    lowered.compile(GRAPH_LOOPS)
    for name, words in GRAPH_LOOPS.items():
        with pytest.raises(Exception, match="not a valid enum value"):
            lowered.compile({name: f"{words},NONSENSE"})
        with pytest.raises(Exception, match="No such compile option"):
            lowered.compile({f"{name}_nonsense": words})
