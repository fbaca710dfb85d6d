"""The environment cannot change the numbers of a run: jax's configuration is fixed, and flags of XLA are compared on resume."""

import pytest
from processes import end, start

from tiejax.lab.runs import facts
from tiejax.lab.runs.train import other_flags
from tiejax.lab.settings.command_line import BadInput

TINY = ("--steps", 20, "--record_every", 10, "--exact_every", 10, "--seeds", 2, "--bits", 4)
VARIABLES = {
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_ENABLE_X64": "1",
    "JAX_RANDOM_SEED_OFFSET": "5",
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
}


@pytest.mark.slow
def test_variables_of_jax_do_not_change_a_run(tmp_path):
    usual = end(start(*TINY, "--out", tmp_path / "usual"))
    given = end(start(*TINY, "--out", tmp_path / "given", env=VARIABLES))
    assert (usual.status, given.status) == (0, 0), given.err
    assert (tmp_path / "usual/metrics.npz").read_bytes() == (tmp_path / "given/metrics.npz").read_bytes()
    warnings = [line for line in given.warnings if "a run always uses" in line]
    assert len(warnings) == len(VARIABLES)
    assert "JAX_DEFAULT_PRNG_IMPL is rbg; a run always uses threefry2x32" in "".join(warnings)
    assert not any("a run always uses" in warning for warning in usual.warnings)


def test_flags_that_may_decide_numbers(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true --xla_force_host_platform_device_count=2")
    assert other_flags() == ["--xla_cpu_enable_fast_math=true"]  # the number of devices may change on resume


def test_other_flags_on_resume_are_refused(tmp_path):
    file, fast = tmp_path / "environment.json", ["--xla_cpu_enable_fast_math=true"]
    facts.write(file, {}, "a command", fast)
    assert facts.write(file, {}, "a command", fast)["xla_flags"] == fast
    before = file.read_bytes()
    with pytest.raises(BadInput, match=r"--resume: XLA_FLAGS: .*fast_math=true, now given: none; give the same"):
        facts.write(file, {}, "a command", [])
    assert file.read_bytes() == before
