"""Run directories with a file in place of a folder or the other way round, which are refused before training."""

import os
import shutil

import pytest
from directories import here, make_run, read, refused

__all__ = ["here", "refused"]  # fixtures

FOLDERS = ("figures", "events", "finished", "models", "checkpoints", "damaged")
FILES = ("report.html", "metrics.npz", "environment.json", "tracker.json", "config.yaml", "run.json", ".lock")
SWITCHES = ([], ["--resume"], ["--overwrite"])


def spoiled(run, name, make):
    entry = run / name
    if entry.is_dir():
        shutil.rmtree(entry)
    entry.unlink(missing_ok=True)
    make(entry)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("make", [lambda entry: entry.write_text("mine"), os.mkfifo, lambda entry: entry.symlink_to("nowhere")])
def test_a_folder_of_a_run_that_is_not_a_folder(here, refused, switches, name, make):
    spoiled(make_run(here / "run"), name, make)
    refused(["--out", "run", *switches], f"--out run: it contains {name}, which is not a folder", "another directory")


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [lambda entry: entry.mkdir(), os.mkfifo])
def test_a_file_of_a_run_that_is_not_a_file(here, refused, switches, name, make):
    spoiled(make_run(here / "run"), name, make)
    refused(["--out", "run", *switches], f"--out run: it contains {name}, which is not a file", "another directory")


def test_a_run_with_a_linked_folder_is_resumed_but_not_overwritten(here, refused):
    """For example, with checkpoints on another disk."""
    run = make_run(here / "run")
    (run / "checkpoints").rename(here / "elsewhere")
    (run / "checkpoints").symlink_to(here / "elsewhere")
    assert read("--out", "run", "--resume").out == "run"
    refused(["--out", "run", "--overwrite"], "--overwrite: run/checkpoints is a link", "remove the link")
