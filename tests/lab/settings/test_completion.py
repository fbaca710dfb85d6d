"""Shell completion, in a real bash, and in a real fish if one is installed."""

import shlex
import shutil
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


@pytest.mark.slow
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
    assert complete(script, "tiejax ") == [*COMMANDS, "help", "--help", "--version", "--print-completion"]
    assert complete(script, "tiejax help ") == [*COMMANDS]


def test_zsh_takes_the_script_of_bash(script):
    assert completion_script(["zsh"]).endswith(script.read_text())


@pytest.mark.parametrize("argv", [[], ["tcsh"], ["bash", "zsh"]], ids=str)
def test_unknown_shell(argv):
    with pytest.raises(BadInput, match=r"^--print-completion: expected bash, zsh or fish, got '"):
        completion_script(argv)


def test_fish_has_a_line_for_every_option():
    lines = completion_script(["fish"]).splitlines()
    for name, option in (("text-mlm", "validate_every"), ("exor", "overwrite"), ("compare", "json"), ("runs", "help-all")):
        assert sum(line.startswith(f"complete -c tiejax -n '__tiejax_command {name}' -l {option}") for line in lines) == 1
    assert "complete -c tiejax -n '__tiejax_command exor' -l model -x -a 'transformer lstm mixer'" in lines


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes(tmp_path):
    """Commands, options, values of options; files where any value may follow."""
    path = tmp_path / "tiejax.fish"
    path.write_text(completion_script(["fish"]))
    checked = subprocess.run(["fish", "--no-execute", path], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    expected = {
        "tiejax exo": ["exor"],
        "tiejax help unty": ["untying"],
        "tiejax exor --steps 5 --see": ["--seeds"],
        "tiejax text_mlm --vali": ["--validate_every", "--validation_batches"],
        "tiejax exor --model tr": ["transformer"],
        "tiejax exor --model=l": ["--model=lstm"],
        "tiejax exor --config exor/lstm_s": ["exor/lstm_small"],
        "tiejax compare --j": ["--json"],
        "tiejax exor --overwrite exo": [],
        "tiejax exor --out tie": ["tiejax.fish"],
        "tiejax --print-completion f": ["fish"],
    }
    code = f"source {shlex.quote(str(path))}; for line in $argv; complete -C $line | cut -f 1; echo .; end"
    ended = subprocess.run(["fish", "-N", "-c", code, *expected], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [part.split() for part in ended.stdout.split(".\n")][:-1] == [*expected.values()]
