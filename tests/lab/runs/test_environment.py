"""Flags for XLA that are set before jax is imported, read back from XLA."""

import pytest
from processes import assert_refused, end, start, start_python

from tiejax.lab.runs import environment
from tiejax.lab.settings.command_line import BadInput

# The last flag can be read back from XLA, which has then read all flags before it.
READ_BACK = """
import os
from tiejax.lab.runs import environment, launch
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import STUDY
try:
    launch.main(STUDY, ["--deterministic", "--seeds", "0"])  # sets the flags, then ends
except BadInput as error:
    assert "--seeds" in str(error)
environment.one_device_a_core()
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1"
import jax
from jax._src.lib import xla_client
print(xla_client.CompileOptions().executable_build_options.debug_options.xla_backend_optimization_level)
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.parametrize("flags", ["", "--xla_cpu_enable_fast_math=false"])
def test_xla_reads_every_flag(flags):
    ended = end(start_python("-c", READ_BACK, env={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}))
    assert ended.status == 0, ended.err
    level, read = ended.out.splitlines()
    assert level == "1"
    assert read.split()[: len(flags.split())] == flags.split()
    assert "--xla_gpu_deterministic_ops=true" in read


def test_a_file_of_flags_is_read(tmp_path, monkeypatch):
    (tmp_path / "flags").write_text("--xla_a=1\n--xla_b=2\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    environment.add_flags("--xla_c=3")
    assert environment.os.environ["XLA_FLAGS"] == "--xla_a=1 --xla_b=2 --xla_c=3"


@pytest.mark.parametrize("flags", ["intra_op_parallelism_threads=1", "--xla_a=1 intra_op_parallelism_threads=1"])
def test_words_at_which_xla_would_stop_reading_are_refused(flags, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(BadInput, match=r"XLA_FLAGS: expected flags that begin with --.*, got 'intra_op_parallelism_threads=1'"):
        environment.add_flags("--xla_b=2")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--xla_cpu_enable_fast_math=false threads=1", "expected flags that begin with --, got 'threads=1'"),
        ("--xla_cpu_enable_fast_math=false --xla_no_such=1", "unknown to XLA or invalid: --xla_no_such=1"),
        ("--xla_cpu_enable_fast_math=perhaps", "unknown to XLA or invalid: --xla_cpu_enable_fast_math=perhaps"),
    ],
)
def test_a_command_refuses_flags_that_xla_would_ignore_or_fail_at(tmp_path, flags, words):
    """Even if the number of devices is set, so that the command adds no flags."""
    ended = end(start("--out", tmp_path / "run", env={"XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "1"}))
    assert_refused(ended, f"XLA_FLAGS: {words}")
    assert not (tmp_path / "run").exists()
