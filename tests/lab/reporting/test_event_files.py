"""Event files as read by TensorBoard, also after a run was killed and resumed, and on a full disk."""

import subprocess
import sys

import pytest
from corpora import ROOT
from event_readers import points, texts

from tiejax.lab.reporting.event_files import Writer


def test_points_and_texts_are_read_before_the_file_is_closed(tmp_path):
    writer = Writer(tmp_path / "events")
    for step, value in ((0, 0.5), (50, -2.0)):
        writer.add_scalar("train_loss/tied", value, step)
    writer.add_text("claims", "* a: supported", 0)
    writer.flush()
    assert points(tmp_path / "events") == {"train_loss/tied": [(0, 0.5), (50, -2.0)]}
    assert texts(tmp_path / "events") == {"claims": "* a: supported"}
    writer.close()


@pytest.mark.parametrize("seconds", [0, 5])
def test_a_resumed_run_replaces_the_points_of_a_killed_run(tmp_path, seconds):
    """Resume from a checkpoint at step 50, within the same second or later, and write the later points again."""
    killed = Writer(tmp_path)
    for step in (0, 50, 100):
        killed.add_scalar("loss", step, step)
    killed.close()
    for path in tmp_path.rglob("*tfevents*"):
        began = path.name.split(".")[3]
        path.rename(path.with_name(path.name.replace(began, str(int(began) - seconds))))
    resumed = Writer(tmp_path)
    for step in (0, 50, 150):
        resumed.add_scalar("loss", step + 1, step)
    resumed.close()
    assert points(tmp_path) == {"loss": [(0, 1.0), (50, 51.0), (150, 151.0)]}


@pytest.mark.slow
def test_a_full_disk_is_an_error_of_the_call(tmp_path):
    """And neither a thread that ends, nor a process that waits for it."""
    code = """
import pathlib, resource, signal, sys
from tiejax.lab.reporting.event_files import Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
writer = Writer(pathlib.Path(sys.argv[1]))
try:
    for step in range(10_000):
        writer.add_scalar("loss", step, step)
    writer.flush()
except OSError as error:
    print(error.strerror)
"""
    ended = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "File too large\n"), ended.stderr


@pytest.mark.slow
def test_event_files_do_not_import_tensorflow():
    code = "import sys, tiejax.lab.reporting.event_files; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
