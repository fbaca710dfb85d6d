"""Settings of all tests: a temporary folder, faster compilation, and, on request, checks of shapes and dtypes at every call."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

# One temporary folder for pytest, for tests and for the processes that they start, removed at the end: pytest and several
# libraries leave folders behind. Workers of pytest-xdist inherit it.
if "TIEJAX_TESTS_TMPDIR" not in os.environ:
    os.environ["TIEJAX_TESTS_TMPDIR"] = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tiejax-tests-")
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# One thread for products of numpy and torch: more of them wait actively for each other while other tests run, for a quarter of
# the time of tests of checkpoints. Set before numpy is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tiejax.lab.runs.environment import has_flag

# Without multi-threaded matrix products: their threads wait for each other in every step of these small models, for minutes on
# a busy machine. Compilation dominates the tests, so most optimisations are off, and fused operations are compiled the older
# way, in one module, which takes half of the time, where jaxlib has these flags. All must be set before jax starts, and are
# inherited by the processes that tests start; the environment takes precedence.
os.environ["XLA_FLAGS"] = " ".join(
    [
        *(
            f"--{name}={value}"
            for name, value in (
                ("xla_cpu_multi_thread_eigen", "false"),
                ("xla_cpu_use_fusion_emitters", "false"),
                ("xla_cpu_parallel_codegen_split_count", "1"),
            )
            if has_flag(name)
        ),
        *os.environ.get("XLA_FLAGS", "").split(),
    ]
)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# Every process that a test starts would otherwise compile this package's modules anew.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

# Tests and the processes that they start share a compilation cache, created by the first process of a session. It includes fast
# compilations: hundreds of small programs take as long to compile as a few large ones.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import hypothesis
import jax
import jaxtyping
import pytest

# With TIEJAX_TESTS_SIGNATURES=1, as in `.ci/run`, every annotated signature of these packages is checked at each call: a
# sixth of the time of all tests then. Installed before any test imports them.
PACKAGES = (
    "system",
    "tying",
    "models",
    "text",
    "training",
    "pretraining",
    "checkpoints",
    "geometry",
    "statistics",
    "lab.studies",
)
if os.environ.get("TIEJAX_TESTS_SIGNATURES") == "1":
    jaxtyping.install_import_hook([f"tiejax.{package}" for package in PACKAGES], "typechecks.check")

gc.set_threshold(50_000)  # as the package's commands do

# The same examples in every run, so that failures are due to changes. `--hypothesis-profile=default` draws new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True, scope="session")
def blank_figures() -> Iterator[None]:
    """Save blank figures; see `undrawn.py`."""
    import undrawn

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(undrawn.figures, "drawn", undrawn.blank)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_device() -> Iterator[Callable[[], None]]:
    """Keep one CPU device in this process, also if a test runs a command in it before jax has started.

    The value is the function that would make every core a device.
    """
    from tiejax.lab.runs import environment

    with pytest.MonkeyPatch.context() as patched:
        one_device_a_core = environment.one_device_a_core
        patched.setattr(environment, "one_device_a_core", lambda: None)
        yield one_device_a_core


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save figures as they are."""
    import undrawn

    monkeypatch.setattr(undrawn.figures, "drawn", undrawn.drawn)


@pytest.fixture
def x64() -> Iterator[None]:
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield
