"""Flags for XLA that are set before jax is imported, read back from XLA."""

import pytest
from hub_checkpoints import checkpoint, values
from processes import assert_refused, end, start, start_python

from tiejax.lab.runs import environment
from tiejax.lab.settings.command_line import BadInput
from tiejax.system.visible import visible_line

# The last flag can be read back from XLA, which has then read all flags before it.
READ_BACK = """
import os
from tiejax.lab.runs import entry, environment
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import STUDY
try:
    entry.main(STUDY, ["--deterministic", "--seeds", "0"])  # sets the flags, then ends
except BadInput as error:
    assert "--seeds" in str(error)
environment.one_device_a_core()
os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1"
import jax
from jax._src.lib import xla_client
print(xla_client.CompileOptions().executable_build_options.debug_options.xla_backend_optimization_level)
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.slow
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


def slow(*values):
    """Return the parameters of a test of one more process."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("flags", ["intra_op_parallelism_threads=1", "--xla_a=1 intra_op_parallelism_threads=1"])
def test_words_at_which_xla_would_stop_reading_are_refused(flags, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(BadInput, match=r"XLA_FLAGS: expected flags that begin with --.*, got 'intra_op_parallelism_threads=1'"):
        environment.add_flags("--xla_b=2")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--xla_cpu_enable_fast_math=false threads=1", "expected flags that begin with --, got 'threads=1'"),
        slow("--xla_cpu_enable_fast_math=false --xla_no_such=1", "unknown to XLA or invalid: --xla_no_such=1"),
        slow("--xla_cpu_enable_fast_math=perhaps", "unknown to XLA or invalid: --xla_cpu_enable_fast_math=perhaps"),
        slow(
            "--xla_force_host_platform_device_count=0", "--xla_force_host_platform_device_count: expected an integer from 1 to"
        ),
    ],
)
def test_a_command_refuses_flags_that_xla_would_ignore_or_fail_at(tmp_path, flags, words):
    """Even if the number of devices is set, so that the command adds no flags."""
    ended = end(start("--out", tmp_path / "run", env={"XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "1"}))
    assert_refused(ended, f"XLA_FLAGS: {words}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["0", "-1", "", "two", "1e3", "1025", "9" * 400, "1\u0662"])
def test_numbers_of_cpu_devices_that_cannot_be_started_are_refused(value, monkeypatch):
    """jax fails at the first four, and is busy for minutes with large numbers."""
    for name, given, words in (
        ("XLA_FLAGS", f"--xla_force_host_platform_device_count={value}", "XLA_FLAGS: --xla_force_host_platform_device_count"),
        ("JAX_NUM_CPU_DEVICES", value, "JAX_NUM_CPU_DEVICES"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(name, given)
            with pytest.raises(BadInput, match=f"^{words}: expected an integer from 1 to 1024, got '") as error:
                environment.check_flags()
        assert len(str(error.value)) < 200
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1024")
    environment.check_flags()


# Variables that jax or its platforms refuse, each in another way, and what the message must show.
ABSENT = {
    "unknown platform": ({"JAX_PLATFORMS": "foo"}, "JAX_PLATFORMS=foo"),
    "no device of the platform": slow({"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""}, "JAX_PLATFORMS=cuda"),
    "one of two platforms": slow({"JAX_PLATFORMS": "cpu,foo"}, "JAX_PLATFORMS=cpu,foo"),
}


@pytest.mark.parametrize(("variables", "words"), ABSENT.values(), ids=list(ABSENT))
def test_a_command_refuses_devices_that_cannot_be_started(tmp_path, variables, words):
    ended = end(start("--out", tmp_path / "run", env={"JAX_PLATFORM_NAME": "", **variables}))
    assert_refused(ended, words, "the devices cannot be started: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "line"), [("tie", [".", "--text", "novel.txt"]), ("embedding-coupling", ["--count"])])
def test_every_command_that_computes_with_jax_starts_its_devices_first(tmp_path, name, line):
    ended = end(start_python("-m", "tiejax", name, *line, env={"JAX_PLATFORMS": "foo"}, cwd=tmp_path))
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (2, "", 1), ended.err
    assert ended.err.startswith(f"tiejax {name}: error: JAX_PLATFORMS=foo")


@pytest.mark.parametrize("name", ["factorise", slow("diagnose")])
def test_commands_that_need_no_accelerator_do_not_ask_for_it(tmp_path, name):
    """They refuse the folder, whatever platform the environment names."""
    ended = end(start_python("-m", "tiejax", name, "none", "out", env={"JAX_PLATFORMS": "foo"}, cwd=tmp_path))
    assert "JAX_PLATFORMS" not in ended.err
    assert ended.status in (1, 2), ended.err
    assert "Traceback" not in ended.err


# One of each kind of value that jax reads when it is imported. Its messages about the last two do not name the variable.
REFUSED = {
    "JAX_ENABLE_X64": "perhaps",
    "EAGER_CONSTANT_FOLDING": "perhaps",  # a variable of jax without its prefix
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "",
    "JAX_DEFAULT_MATMUL_PRECISION": "exact",
    "JAX_LOGGING_LEVEL": "LOUD",
    "JAX_COMPILATION_CACHE_MAX_SIZE": "1GiB",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "\x1b[31m",
    "JAX_DEFAULT_DEVICE": "cpu:x",
    "JAX_SERIALIZATION_VERSION": "1e3",
}
IMPORT = """
from tiejax.lab.runs import environment
from tiejax.lab.settings.command_line import BadInput, report
try:
    environment.check_variables()
except BadInput as error:
    raise SystemExit(report(error))
"""


@pytest.mark.parametrize("name", [*list(REFUSED)[:2], *map(slow, list(REFUSED)[2:])])
def test_variables_at_which_jax_cannot_be_imported_are_named(name):
    ended = end(start_python("-c", IMPORT, env={"JAX_PLATFORMS": "cpu", name: REFUSED[name]}))
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (2, "", 1), ended.err
    assert ended.err.startswith(visible_line(f"-c: error: {name}={REFUSED[name]}: jax cannot be imported: "))


@pytest.mark.parametrize(
    "line",
    [
        ["exor", "--out", "run"],
        slow(["exor", "--out", "run", "--distributed"]),
        slow(["embedding-coupling", "--count"]),
        slow(["compare", "a", "b"]),
        ["tie", ".", "--text", "novel.txt"],
    ],
    ids=" ".join,
)
def test_every_command_that_imports_jax_names_them_before_it_writes(tmp_path, line):
    variables = {"JAX_ENABLE_X64": "perhaps", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = end(start_python("-m", "tiejax", *line, env=variables, cwd=tmp_path))
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (2, "", 1), ended.err
    if line[0] != "compare":  # which refuses the folders first
        assert ended.err.startswith(f"tiejax {line[0]}: error: JAX_ENABLE_X64=perhaps: jax cannot be imported: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_backend_of_matplotlib_in_the_environment_does_not_matter(tmp_path):
    tensors = {"model.embed_tokens.weight": values(), "lm_head.weight": values(seed=1)}
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "llama"})
    command = ["-m", "tiejax", "diagnose", folder, "--out", tmp_path / "out"]
    ended = end(start_python(*command, env={"MPLBACKEND": "nonsense"}))
    assert (ended.status, ended.err) == (0, "")
    assert (tmp_path / "out" / "report.html").is_file()
