"""Flags of XLA found in jaxlib, against XLA itself, which ends a process that sets an unknown one."""

import pytest
from processes import end, start_python

from tiejax.lab.runs.environment import has_flag


@pytest.mark.parametrize("name", ["xla_cpu_multi_thread_eigen", "xla_gpu_deterministic_ops", "xla_no_such_flag"])
def test_xla_accepts_exactly_the_flags_found(name):
    ended = end(start_python("-c", "import jax; jax.devices()", env={"XLA_FLAGS": f"--{name}=true", "JAX_PLATFORMS": "cpu"}))
    assert (ended.status == 0) == has_flag(name)
