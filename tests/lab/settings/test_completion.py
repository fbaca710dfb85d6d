"""Shell completion, in a real bash."""

import shlex
import subprocess
import sys

import pytest

from tiejax.lab.command import COMMANDS, completion_script
from tiejax.lab.settings.command_line import BadInput


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script as the command prints it."""
    path = tmp_path_factory.mktemp("completion") / "tiejax.bash"
    printed = subprocess.run(
        [sys.executable, "-m", "tiejax", "--print-completion", "bash"], capture_output=True, text=True, timeout=120
    )
    assert (printed.returncode, printed.stderr) == (0, "")
    path.write_text(printed.stdout)
    return path


def complete(script, line):
    """Return what bash offers at the end of a line, which it splits at `=` as well."""
    words = [word for part in line.split(" ") for word in part.replace("=", " = ").rstrip(" ").split(" ")]
    code = f"""
source {shlex.quote(str(script))}
COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
COMP_CWORD={len(words) - 1}
$(complete -p tiejax | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    ended = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.split()


def test_bash_reads_the_script(script):
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tiejax exo", ["exor"]),
        ("tiejax exor --se", ["--seeds"]),
        ("tiejax exor --steps 5 --see", ["--seeds"]),
        ("tiejax text_mlm --vali", ["--validate_every", "--validation_batches"]),
        ("tiejax exor --over", ["--overwrite"]),
        ("tiejax exor --model tr", ["transformer"]),
        ("tiejax exor --model=l", ["lstm"]),
        ("tiejax exor --model=", ["transformer", "lstm", "mixer"]),
        ("tiejax exor --config exor/lstm_s", ["exor/lstm_small"]),
        ("tiejax compare --j", ["--json"]),
        ("tiejax exor fi", []),  # bash itself then completes files
        ("tiejax nothing --", []),
    ],
)
def test_words_are_completed(script, line, expected):
    assert complete(script, line) == expected


def test_every_command_is_completed(script):
    assert complete(script, "tiejax ") == [*COMMANDS, "--help", "--version", "--print-completion"]


def test_zsh_takes_the_script_of_bash(script):
    assert completion_script(["zsh"]).endswith(script.read_text())


@pytest.mark.parametrize("argv", [[], ["fish"], ["bash", "zsh"]], ids=str)
def test_unknown_shell(argv):
    with pytest.raises(BadInput, match=r"^--print-completion: expected bash or zsh, got '"):
        completion_script(argv)
