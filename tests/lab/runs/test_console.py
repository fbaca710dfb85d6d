"""Console output: a bar on a terminal, plain lines in a pipe, only results and warnings if quiet."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from claim_rows import CLAIM, EXPLORATORY

from tiejax.lab.runs.console import Console

ROOT = Path(__file__).parents[3]


def test_plain_lines_in_a_pipe(capsys):
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
    assert re.search(r"output-conditional +0\.333 +0\.1 to 0\.5 +0\.05 to +0\.55 +0\.0123 +8 +supported", out)


def test_undecided_claims_say_what_they_would_take_and_exploratory_ones_are_only_counted(capsys):
    undecided = CLAIM | {"verdict": "undecided", "unit": "nats", "seeds_needed": None}
    Console().claims([CLAIM, undecided | {"id": "price"}, EXPLORATORY])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "price: Not decided with 8 seeds, which would have shown 0.12 nats in four of five studies.",
        "1 exploratory estimate in the report",
    ]
    assert not any("first-look" in line for line in lines)


def test_quiet_prints_only_results_and_warnings(capsys):
    shown = Console(quiet=True)
    with shown:
        shown.say("hello")
        shown.progress(100, 100, 100, 4.0, models=16)
    shown.claims([CLAIM])
    shown.warn("seed 3")
    shown.result("report: x")
    assert capsys.readouterr().out == "warning: seed 3\nreport: x\n"


def test_a_terminal_gets_a_bar():
    """On a real pseudo-terminal."""
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


def test_names_cannot_control_the_terminal(capsys):
    """Neither by control characters nor by the markup and emoji codes of rich."""
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


def test_names_cannot_control_the_terminal_from_a_bar():
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


def seconds_left(shown, capsys):
    """The time left in the line that was printed, or None."""
    found = re.search(r"(?:(\d+) min )?(\d+) s left", capsys.readouterr().out)
    return found and 60 * int(found[1] or 0) + int(found[2])


class Clock:
    """A clock that moves by an hour with every look at it, so that every line is printed."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 3600
        return self.seconds


@pytest.mark.parametrize(
    ("step", "steps", "seconds", "left"),
    [
        (10, 1000, 1.0, None),  # 1 %, 1 s
        (19, 1000, 4.9, None),
        (20, 1000, 1.0, 49),  # 2 %: 980 steps at 20 a second
        (5, 1000, 5.0, 995),  # 5 s: 995 steps at 1 a second
        (999, 1000, 9.99, 0),
    ],
)
def test_the_time_left_is_shown_after_2_percent_or_5_seconds(capsys, step, steps, seconds, left):
    shown = Console(clock=Clock())
    shown.progress(step, steps, step, seconds, models=1)
    assert seconds_left(shown, capsys) == left
    shown.part("stage", step / steps, seconds, step / steps)
    assert seconds_left(shown, capsys) == left


def test_a_resumed_run_waits_for_steps_of_its_own(capsys):
    """60 % was done before: 1 % in 1 s says nothing yet, 2 % in 2 s does."""
    shown = Console(clock=Clock())
    for here, left in ((10, None), (20, 38)):
        shown.progress(600 + here, 1000, here, here / 10, models=1)
        assert seconds_left(shown, capsys) == left


def test_the_time_left_of_a_preparation(capsys):
    now = [100.0]
    shown = Console(clock=lambda: now[0])
    with shown.preparing() as progress:
        progress("reading", 0, 1000)
        now[0] += 16
        progress("reading", 10, 1000)  # 1 % in 16 s
        now[0] += 16
        progress("reading", 500, 1000)
        now[0] += 16
        progress("counting", 5, None)
        now[0] += 16
        progress("counting", 7, None)
    assert capsys.readouterr().out.splitlines() == [
        "reading: 10 of 1,000, 26 min 24 s left",
        "reading: 500 of 1,000, 32 s left",
        "counting: 7",
    ]


def test_compiling_is_shown_until_the_first_step(capsys):
    shown = Console()
    with shown:
        shown.compiling()
        shown.progress(0, 100, 0, 0.0, models=2)
        shown.progress(50, 100, 50, 2.0, models=2)
    assert capsys.readouterr().out.splitlines() == ["compiling", "step 50 of 100  25 steps/s  50 model-steps/s  2 s left"]


BAR = """
import time
from tiejax.lab.runs.console import Console
c = Console()
with c:
    c.compiling()
    time.sleep(.3)
    c.progress(0, 500_000, 0, 0., models=1600)
    time.sleep(.3)
    for step in (1, 123_456, 500_000):
        c.progress(step, 500_000, step, step / 1234 + .01, models=1600)
        time.sleep(.3)
    c.part("decoupled-with-a-long-name: step 123,456 of 500,000", .123, 9., .1)
    time.sleep(.3)
with c.preparing() as progress:
    for done in (1, 50):
        progress("sentences of a corpus with a long name", done, 100)
        time.sleep(.3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [30, 60, 120])
def test_a_bar_fits_the_terminal(columns):
    lines = [line.rstrip() for line in rows(pty_output([sys.executable, "-c", BAR], columns)) if line.strip()]
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("compiling ") for line in lines)
    assert not any("0/500,000" in line and "00/500,000" not in line for line in lines)  # no stuck 0 %
    assert any("123,456/500,000" in line for line in lines)
    assert any("12.3%" in line for line in lines)
    if columns >= 60:
        assert any(re.search("━ 123,456/500,000 1,234 steps/s .*5 min 05 s left", line) for line in lines)
        assert any("50%" in line and "s left" in line for line in lines)
    # On a narrow terminal, the rate of models is left out first, then that of steps.
    assert any("123,456" in line and "model-steps/s" in line for line in lines) == (columns == 120)


def rows(output):
    """The rows of a terminal that were written, each as often as it was written."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output))


def pty_output(command, columns=120):
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env, cwd=ROOT)
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
