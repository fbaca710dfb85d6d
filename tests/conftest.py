"""Shared by all tests: array shapes and dtypes of public signatures are checked while tests run."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

# XLA's threads wait for one another in every step of these small models: on a busy machine a test of seconds would take
# minutes. And most of a test's time goes into compiling what runs for milliseconds: a third less of it without optimisations.
# Set before jax starts, and inherited by the processes that tests start; what is set already wins.
os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# Nor do processes of seconds start twice, to ask for huge pages: this says that memory is allocated as ever.
os.environ.setdefault("GLIBC_TUNABLES", "")

# Many tests, and the processes that they start, compile the same: the first process of a session makes a cache for all. Of all
# programs, since hundreds of small ones take as long as a few large ones.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import hypothesis
import jax
import jaxtyping
import pytest

# Before any test imports them: every annotated signature of these packages is then checked at each call.
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
jaxtyping.install_import_hook([f"tiejax.{package}" for package in PACKAGES], "typechecks.check")

# The same values each time: a change lands or not by what it does. `--hypothesis-profile=default` draws new ones.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")


@pytest.fixture
def x64() -> Iterator[None]:
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield
