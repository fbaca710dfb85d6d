"""Environment variables for devices and processes, read and set before jax is imported."""

import contextlib
import mmap
import os
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from tiejax.lab.settings.command_line import BadInput
from tiejax.system.files import read_bytes
from tiejax.system.processors import cores
from tiejax.system.visible import cut

# Flags that tiejax or its tests set, and that need no check by XLA, which takes seconds.
KNOWN_FLAGS = (
    "--xla_cpu_multi_thread_eigen",
    "--xla_cpu_parallel_codegen_split_count",
    "--xla_cpu_use_fusion_emitters",
    "--xla_force_host_platform_device_count",
    "--xla_gpu_deterministic_ops",
)
DEVICES, DEVICES_FLAG = "JAX_NUM_CPU_DEVICES", "--xla_force_host_platform_device_count"
MOST_CPU_DEVICES = 1024  # jax needs minutes to start 10,000
PLATFORMS = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME")


def one_device_a_core() -> None:
    """Make every core a device of the CPU backend of jax, unless the environment sets the number of devices.

    One device on several cores would mostly wait: its threads synchronise in every operation, and those of small models are
    short.
    """
    flags = " ".join(given_flags())
    if DEVICES_FLAG in flags or DEVICES in os.environ:
        return
    set_variable(DEVICES, cores())
    if "xla_cpu_multi_thread_eigen" not in flags and has_flag("xla_cpu_multi_thread_eigen"):
        add_flags("--xla_cpu_multi_thread_eigen=false")


def has_flag(name: str) -> bool:
    """Return whether the library of jaxlib contains the name of a flag, such as `xla_cpu_multi_thread_eigen`.

    XLA ends the process for a flag that it does not know. jax is not imported. False if the library is not found.
    """
    found = PathFinder.find_spec("jaxlib")
    folder = Path(found.origin).parent if found and found.origin else Path()
    for library in folder.glob("libjax_common*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(name.encode() + b"\0") >= 0:
                return True
    return False


def set_variable(name: str, value: int | float | str | bool) -> None:
    """Set a variable of jax, also if jax has been imported before, by a script with a model; it then has read the environment.

    The number of devices cannot be changed once they have started.
    """
    os.environ[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if (jax := sys.modules.get("jax")) is not None:
        with contextlib.suppress(RuntimeError):
            jax.config.update(name.lower(), value)


def add_flags(*flags: str) -> None:
    """Append to XLA_FLAGS; raises BadInput if XLA would silently ignore the new flags."""
    os.environ["XLA_FLAGS"] = " ".join([*given_flags(), *flags])


def given_flags() -> list[str]:
    """Return the flags in XLA_FLAGS; raises BadInput for a word at which XLA would stop reading.

    XLA takes a first word without a dash as the name of a file with flags, and stops at any later word without a dash.
    """
    given = os.environ.get("XLA_FLAGS", "").split()
    if given and not given[0].startswith("-"):
        file = Path(os.environ["XLA_FLAGS"])
        if not file.is_file():
            raise BadInput(f"XLA_FLAGS: expected flags that begin with --, or a file of flags, got '{cut(file)}'")
        given = read_bytes(file).decode(errors="replace").split()
    if words := [word for word in given if not word.startswith("--")]:
        raise BadInput(f"XLA_FLAGS: expected flags that begin with --, got '{cut(words[0])}'; XLA would ignore the rest")
    return given


def check() -> None:
    """Raise BadInput for flags, variables or platforms with which jax would not start; imports jax."""
    check_flags()
    check_variables()
    check_platforms()


def check_flags() -> None:
    """Raise BadInput for a flag that XLA does not know, which would otherwise end the process in the middle of a run.

    XLA checks them in a separate process, which is only started for flags that are not in KNOWN_FLAGS, or that this jaxlib
    lacks. Numbers of CPU devices are checked here.
    """
    for flag, _, value in (word.partition("=") for word in given_flags()):
        if flag == DEVICES_FLAG:
            integer(f"XLA_FLAGS: {flag}", value, 1, MOST_CPU_DEVICES)
    if DEVICES in os.environ:
        integer(DEVICES, os.environ[DEVICES], 1, MOST_CPU_DEVICES)
    names = {flag: flag.partition("=")[0] for flag in given_flags()}
    flags = [flag for flag, name in names.items() if name not in KNOWN_FLAGS or not has_flag(name.removeprefix("--"))]
    if not flags:
        return
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    on_cpu = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(command, env=on_cpu, capture_output=True, text=True)
    if ended.returncode:
        unknown = [flag for flag in flags if flag in ended.stderr] or flags
        raise BadInput(f"XLA_FLAGS: unknown to XLA or invalid: {cut(' '.join(unknown))}")


def integer(name: str, value: str, least: int, most: int) -> int:
    """Return the value of a variable; raises BadInput unless it is an integer from `least` to `most`."""
    if re.fullmatch(r"[0-9]{1,19}", value) and least <= int(value) <= most:
        return int(value)
    raise BadInput(f"{name}: expected an integer from {least} to {most}, got '{cut(value)}'")


def check_platforms() -> None:
    """Raise BadInput if the environment names a platform of jax that this machine lacks.

    Its devices are started for that. jax is not imported if no platform is named, or only the CPU.
    """
    named = [f"{name}={cut(os.environ[name])}" for name in PLATFORMS if os.environ.get(name) not in (None, "", "cpu")]
    if not named:
        return
    try:
        import jax

        jax.devices()
    # jax raises RuntimeError for an unknown platform, AssertionError without any device.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or "no device found"
        raise BadInput(f"{', '.join(named)}: the devices cannot be started: {cut(reason, 300)}") from None


def check_variables() -> None:
    """Raise BadInput if jax cannot be imported because of the value of an environment variable; imports jax."""
    try:
        import jax  # noqa: F401
    except ValueError as error:  # of jax, for each of about 100 variables, most but not all of which begin with JAX_
        reason = str(error).partition("\n")[0]
        named = ", ".join(f"{name}={cut(os.environ[name])}" for name in _refused_variables(reason))
        raise BadInput(f"{named}: jax cannot be imported: {cut(reason, 300)}; set a value that it accepts, or none") from None


def _refused_variables(reason: str) -> list[str]:
    """Return the variables that an error of jax is about: by their name or, in messages without it, by their value."""
    by_name = [name for name in os.environ if re.search(rf"\b{re.escape(name)}\b", reason, re.IGNORECASE)]
    if by_name:
        return [max(by_name, key=len)]
    of_jax = sorted(name for name in os.environ if name.startswith("JAX_"))
    by_value = [name for name in of_jax if repr(os.environ[name]) in reason]
    return [max(by_value, key=lambda name: len(os.environ[name]))] if by_value else of_jax
