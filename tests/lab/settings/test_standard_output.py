"""Output that cannot be written: every command ends with status 4 and one line, whatever it would have answered."""

import os
import subprocess
import sys

import pytest
from hub_checkpoints import checkpoint, values

COMMANDS = {
    "help": ["exor", "--help"],  # printed by argparse, then an exit
    "lines": ["check", "none"],  # printed by rich; the status would be 2
    "json": ["check", "none", "--json"],  # kept in Python's buffer until the end
}
MESSAGES = {
    "no reader": "the program that reads the output has exited; run it again",
    "full disk": "standard output: No space left on device; free some disk space, then run it again",
    "closed": "standard output: is closed; open it, then run it again",
}


def ended(argv, fault, cwd):
    """Run `tiejax` with a faulty standard output."""
    command = [sys.executable, "-m", "tiejax", *argv]
    if fault == "closed":
        command, out = ["sh", "-c", 'exec "$@" >&-', "sh", *command], os.open(os.devnull, os.O_WRONLY)
    elif fault == "full disk":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    try:
        return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=cwd, timeout=300)
    finally:
        os.close(out)


@pytest.mark.parametrize("fault", MESSAGES)
@pytest.mark.parametrize("argv", COMMANDS.values(), ids=list(COMMANDS))
def test_output_that_cannot_be_written_is_reported(argv, fault, tmp_path):
    found = ended(argv, fault, tmp_path)
    assert found.returncode == 4, found
    program = "tiejax" if fault == "closed" else f"tiejax {argv[0]}"  # noticed before the command is known
    assert found.stderr == f"{program}: error: {MESSAGES[fault]}\n"


def test_without_standard_error_the_status_tells(tmp_path):
    """And no file of the command takes the place of standard error."""
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "tiejax", "--print-completion", "tcsh"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, timeout=300)
    assert (found.returncode, found.stdout) == (2, "")


def test_with_both_outputs_on_a_full_disk_the_status_tells(tmp_path):
    with open("/dev/full", "w") as full:
        found = subprocess.run([sys.executable, "-m", "tiejax", "check", "none"], stdout=full, stderr=full, cwd=tmp_path)
    assert found.returncode == 4


def test_a_working_directory_that_was_removed(tmp_path):
    config = {"model_type": "llama", "tie_word_embeddings": True}
    folder = checkpoint(tmp_path / "tied", {"model.embed_tokens.weight": values()}, config)
    (tmp_path / "gone").mkdir()
    command = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", "tiejax", "untie", folder, "out"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "gone", timeout=300)
    assert found.returncode == 4
    assert found.stderr == "tiejax untie: error: the working directory no longer exists; change to another, then run it again\n"
