"""What a run says: a bar on a terminal, plain lines elsewhere, and next to nothing where it is to be quiet."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from claim_rows import CLAIM

from tiejax.lab.runs.console import Console

ROOT = Path(__file__).parents[3]


def test_plain_output_where_stdout_is_no_terminal(capsys):
    shown = Console()
    with shown:
        shown.progress(50, 100, 50, 2.0, models=16)
        shown.progress(100, 100, 100, 4.0, models=16)
        shown.progress(100, 100, 100, 4.2, models=16)
    shown.claims([CLAIM])
    out = capsys.readouterr().out
    assert "step 50 of 100  25 steps/s  400 model-steps/s  2 s left" in out
    assert out.count("step 100 of 100") == 1
    assert "\x1b" not in out
    assert re.search(r"output-conditional +0\.333 +0\.1 to 0\.5 +0\.0123 +0\.778 +8 +supported", out)


def test_quiet_prints_the_result_and_warnings_alone(capsys):
    shown = Console(quiet=True)
    with shown:
        shown.say("hello")
        shown.progress(100, 100, 100, 4.0, models=16)
    shown.claims([CLAIM])
    shown.warn("seed 3")
    shown.result("report: x")
    assert capsys.readouterr().out == "warning: seed 3\nreport: x\n"


def test_a_terminal_gets_a_bar():
    """A real pseudo-terminal, so that the bar is what a person sees."""
    code = (
        "from tiejax.lab.runs.console import Console\n"
        "c = Console()\n"
        "with c:\n"
        "    for step in (0, 50, 100): c.progress(step, 100, step, step / 25 + .01, models=16)\n"
    )
    output = pty_output([sys.executable, "-c", code])
    assert "100/100" in output
    assert "model-steps/s" in output
    assert "\x1b[" in output


HOSTILE = "\x1b]0;gone\x07\u202e[/red] :cat: \udcff"
SEEN = r"\x1b]0;gone\x07\u202e[/red] :cat: \udcff"


def test_names_do_nothing_to_the_terminal(capsys):
    """Neither control characters nor what the library takes for markup and emoji."""
    shown = Console()
    shown.say(HOSTILE)
    shown.warn(HOSTILE)
    shown.result(f"report: {HOSTILE}\nforged line")
    shown.claims([CLAIM | {"id": HOSTILE}])
    shown.part(HOSTILE, 0.5, 1.0, 0.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [SEEN, f"warning: {SEEN}", f"report: {SEEN}\\nforged line"]
    assert sum(SEEN in line for line in lines) == 5
    assert all(line.isprintable() for line in lines)


def test_names_do_nothing_to_a_bar():
    code = (
        "from tiejax.lab.runs.console import Console\n"
        f"name = {HOSTILE!r}\n"
        "c = Console()\n"
        "with c: c.part(name, .5, 1., .5)\n"
        "with c.preparing() as tell: tell(name, 1, 2)\n"
    )
    output = pty_output([sys.executable, "-c", code])
    assert SEEN in output
    assert "]0;gone\x07" not in output
    assert "\u202e" not in output


def pty_output(command):
    main, other = pty.openpty()
    process = subprocess.Popen(
        command, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}, cwd=ROOT
    )
    os.close(other)
    output = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(main)
    assert process.wait() == 0
    return output.decode()
