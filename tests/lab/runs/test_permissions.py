"""Paths without permission: one line names the path, the status is 4, and the run can be resumed with permission.

Root can read and write everything, unless it drops that capability for itself and its children.
"""

import contextlib
import os

import pytest
from directories import make_run
from processes import SCRIPT, UNDRAWN, end, start_python, tree

# PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, which child processes then do not have.
WITHOUT_RIGHTS = """
import ctypes, os, sys
for right in (1, 2):
    ctypes.CDLL(None).prctl(24, right, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@contextlib.contextmanager
def forbidden(path, mode):
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def run(*argv):
    return end(start_python("-c", WITHOUT_RIGHTS, UNDRAWN, SCRIPT, *argv))


@pytest.mark.parametrize(
    ("name", "mode", "argv"),
    [
        ("run.json", 0o000, ["--resume"]),
        (".lock", 0o000, ["--resume"]),
        (".", 0o500, ["--resume"]),
        (".", 0o500, ["--overwrite"]),
        ("..", 0o500, []),
    ],
)
def test_a_path_that_cannot_be_read_or_written_is_named(tmp_path, name, mode, argv):
    folder = tmp_path / "folder"
    folder.mkdir()
    out = make_run(folder / "run") if argv else folder / "run"
    path = (out / name).resolve()
    before = tree(folder)
    with forbidden(path, mode):
        ended = run("--out", out, *argv)
    assert ended.status == 4, ended
    assert len(ended.err.splitlines()) == 1, ended.err
    assert ended.err.startswith(f"exor.py: error: {path}")
    assert "Permission denied; allow reading and writing, then" in ended.err
    assert "Traceback" not in ended.out + ended.err
    assert tree(folder) == before


@pytest.mark.slow
def test_a_run_that_cannot_write_checkpoints_can_be_resumed(tmp_path):
    """It ends when it cannot write one; afterwards it is resumed to the same result."""
    small = ("--seeds", 1, "--steps", 20, "--bits", 4, "--record_every", 10, "--exact_every", 10, "--half_period", 10)
    out = tmp_path / "run"
    make = make_run(out, seeds=1, steps=20, bits=4, record_every=10, exact_every=10, half_period=10)
    (make / "checkpoints" / "1").unlink()
    with forbidden(out / "checkpoints", 0o500):
        ended = run(*small, "--out", out, "--resume")
    assert ended.status == 4, ended
    assert len(ended.err.splitlines()) == 1, ended.err
    assert str(out / "checkpoints") in ended.err
    assert not (out / "results.json").exists()
    ended = run(*small, "--out", out, "--resume")
    assert ended.status == 0, ended
    assert (out / "results.json").exists()
    assert os.listdir(out / "checkpoints")
