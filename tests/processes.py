"""Run experiments as commands, in this process and in others, and compare directory trees."""

import contextlib
import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tiejax.lab.runs import entry
from tiejax.lab.settings.study import Study
from tiejax.lab.studies.exor.settings import STUDY

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
UNDRAWN = Path(__file__).with_name("undrawn.py")
SCRIPT, TEXT_SCRIPT = EXPERIMENTS / "exor.py", EXPERIMENTS / "text_mlm.py"


class Ended(NamedTuple):
    """How a command ended. err: standard error without the warnings of the command, one line each."""

    status: int | str | None
    out: str
    err: str
    warnings: tuple[str, ...] = ()


def ended_with(status: int | str | None, out: str, err: str) -> Ended:
    lines = err.splitlines(keepends=True)
    warnings = tuple(line.rstrip("\n") for line in lines if line.startswith("warning: "))
    return Ended(status, out, "".join(line for line in lines if not line.startswith("warning: ")), warnings)


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return everything under a directory: modification times, and the bytes of files."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(root.rglob("*"))
    }


def command_here(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], study: Study = STUDY
) -> Ended:
    """Run a study's command in this process; the test fails if it would begin to train."""
    script = "diagnose.py" if study.name == "diagnosis" else f"{study.name}.py"
    monkeypatch.setattr(sys, "argv", [script, *argv])
    monkeypatch.setattr("tiejax.lab.runs.train.stop_flag", lambda: pytest.fail(f"{argv} was accepted"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        entry.open_study(study)
    return ended_with(ended.value.code, *capsys.readouterr())


def run_here(study: Study, *argv: object) -> Ended:
    """Run a study's command to its end in this process, without its signal handlers; raises BadInput."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: False)
        status = entry.main(study, [str(word) for word in argv])
    return ended_with(status, out.getvalue(), err.getvalue())


def assert_refused(ended: Ended, *words: str, script: Path = SCRIPT) -> None:
    """Assert exit status 2 and one line on standard error that contains all `words`."""
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith(f"{script.name}: error: ")
    assert ended.err.endswith("\n")
    assert len(ended.err.splitlines()) == 1, ended.err
    for word in words:
        assert word in ended.err


def start(
    *argv: object, env: dict[str, str] | None = None, cwd: Path | None = None, script: Path = SCRIPT
) -> subprocess.Popen[str]:
    """Start an experiment's command in a new process, with blank figures."""
    return start_python(UNDRAWN, script, *argv, env=env, cwd=cwd)


def start_python(*argv: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, argv)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
        cwd=cwd,
    )


def processes_of_one_run(number: int) -> list[dict[str, str]]:
    """Return the environment variables by which each of several processes on this machine joins the others."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(number), "JAX_PROCESS_ID": str(process)}
        for process in range(number)
    ]


def end(process: subprocess.Popen[str], timeout: float = 300) -> Ended:
    """Wait for a process to end."""
    out, err = process.communicate(timeout=timeout)
    return ended_with(process.returncode, out, err)


def wait_until(true: Callable[[], object], process: subprocess.Popen[str], timeout: float = 300) -> bool:
    """Wait until `condition` is true; return False if the process ends first."""
    deadline = time.monotonic() + timeout
    while not true():
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"nothing happened in {timeout} s")
        time.sleep(0.01)
    return True
