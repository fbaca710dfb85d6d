"""Console output: a bar on a terminal, plain lines in a pipe, only results and warnings if quiet."""

import re
import sys

import pytest
from claim_rows import CLAIM, EXPLORATORY
from terminals import pty_output, rows

from tiejax.lab.runs.console import Console


def test_plain_lines_in_a_pipe(capsys):
    shown = Console()
    with shown:
        shown.progress(50, 100, 25.0, models=16)
        shown.progress(100, 100, 25.0, models=16)
        shown.progress(100, 100, 24.0, models=16)
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
        shown.progress(100, 100, 25.0, models=16)
    with shown.stage("analysis"):
        shown.claims([CLAIM])
    shown.warn("seed 3")
    shown.result("report: x")
    assert capsys.readouterr() == ("report: x\n", "warning: seed 3\n")


def test_a_terminal_gets_a_bar():
    """On a real pseudo-terminal."""
    code = (
        "from tiejax.lab.runs.console import Console\n"
        "c = Console()\n"
        "with c:\n"
        "    for step in (0, 50, 100): c.progress(step, 100, 25., models=16)\n"
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
    shown.part(HOSTILE, 0.5, 1.0)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:2] == [SEEN, f"report: {SEEN}\\nforged line"]
    assert sum(SEEN in line for line in lines) == 4
    assert all(line.isprintable() for line in lines)
    assert err == f"warning: {SEEN}\n"


def test_names_cannot_control_the_terminal_from_a_bar():
    code = (
        "from tiejax.lab.runs.console import Console\n"
        f"name = {HOSTILE!r}\n"
        "c = Console()\n"
        "with c: c.part(name, .5, 1.)\n"
        "with c.preparing() as tell: tell(name, 1, 2)\n"
    )
    output = pty_output([sys.executable, "-c", code])
    assert SEEN in output
    assert "]0;gone\x07" not in output
    assert "\u202e" not in output


class Clock:
    """A clock that moves by an hour with every look at it, so that every line is printed."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 3600
        return self.seconds


@pytest.mark.parametrize(
    ("step", "rate", "line"),
    [
        (10, None, "step 10 of 1,000"),  # no rate, no time
        (10, 20.0, "step 10 of 1,000  20 steps/s  50 s left"),
        (999, 20.0, "step 999 of 1,000  20 steps/s  1 s left"),  # never 0 s
        (1000, 20.0, "step 1,000 of 1,000  20 steps/s"),
    ],
)
def test_the_time_left_follows_from_the_rate(capsys, step, rate, line):
    Console(clock=Clock()).progress(step, 1000, rate, models=1)
    assert capsys.readouterr().out == f"{line}\n"


def test_the_time_left_covers_more_than_steps(capsys):
    Console(clock=Clock()).progress(10, 1000, 20.0, models=1, besides=60.0)
    assert capsys.readouterr().out == "step 10 of 1,000  20 steps/s  1 min 50 s left\n"


def test_the_time_left_of_a_part(capsys):
    shown = Console(clock=Clock())
    shown.part("tied, seeds 0 to 7", 0.25)
    shown.part("tied, seeds 0 to 7", 0.5, 90.0)
    assert capsys.readouterr().out.splitlines() == [
        "tied, seeds 0 to 7; 25.0% of the run",
        "tied, seeds 0 to 7; 50.0% of the run, 1 min 30 s left",
    ]


def test_a_stage_is_named_with_its_seconds(capsys):
    shown = Console(clock=iter([100.0, 116.25, 200.0, 265.0, 300.0, 314.9, 400.0]).__next__)
    for name in ("analysis", "figures", "bigram models"):
        with shown.stage(name):
            shown.say("within")
    with pytest.raises(ValueError, match="failed"), shown.stage("analysis"):
        raise ValueError("failed")
    lines = ["within", "analysis: 16.2 s", "within", "figures: 1 min 05 s", "within"]
    assert capsys.readouterr().out.splitlines() == lines


def test_claims_on_a_narrow_terminal_are_sentences(monkeypatch, capsys):
    """A table whose columns would have to be wrapped is not printed."""
    undecided = CLAIM | {"id": "price", "verdict": "undecided", "unit": "nats", "seeds_needed": None}
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns, table in ((100, True), (60, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        Console().claims([CLAIM, undecided])
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in capsys.readouterr().out.splitlines()]
        assert max(map(len, lines)) <= columns
        assert any(re.search("claim +estimate +95 % interval +adjusted interval", line) for line in lines) == table
        words = " ".join(" ".join(lines).split())
        assert table or words == (
            "output-conditional: supported; estimate 0.333, 95 % interval 0.1 to 0.5, adjusted interval 0.05 to 0.55, "
            "adjusted p 0.0123, 8 seeds. "
            "price: undecided; estimate 0.333, 95 % interval 0.1 to 0.5, adjusted interval 0.05 to 0.55, "
            "adjusted p 0.0123, 8 seeds. Not decided with 8 seeds, which would have shown 0.12 nats in four of five studies."
        )


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
        shown.compiling()
        shown.progress(50, 100, 25.0, models=2)
    assert capsys.readouterr().out.splitlines() == ["compiling", "step 50 of 100  25 steps/s  50 model-steps/s  2 s left"]


BAR = """
import time
from tiejax.lab.runs.console import Console
c = Console()
c.say("a sentence that is far longer than a narrow terminal, with a path that stays whole: /a/path/" + 40 * "x")
with c:
    time.sleep(.3)
    c.compiling()
    for step in (1, 123_456, 500_000):
        c.progress(step, 500_000, None if step == 1 else 1234., models=1600)
        time.sleep(.3)
    c.warn("a warning above the bar that is longer than sixty columns: it is wrapped between words")
    with c.stage("analysis"):
        time.sleep(1.3)
    c.part("decoupled-with-a-long-name: step 123,456 of 500,000", .123, 90.)
    time.sleep(.3)
with c.preparing() as progress:
    for done in (1, 50):
        progress("sentences of a corpus with a long name", done, 100)
        time.sleep(.3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [30, 60, 80, 120])
def test_a_bar_fits_the_terminal(columns):
    lines = [line.rstrip() for line in rows(pty_output([sys.executable, "-c", BAR], columns)) if line.strip()]
    path = f"/a/path/{40 * 'x'}"
    assert max(len(line) for line in lines if path not in line) <= columns
    assert any(line.strip().endswith(path) for line in lines)
    labels = [line.split()[0] for line in lines]
    assert labels.index("compiling") < labels.index("training")  # the first word that a bar shows
    assert not any("0/500,000" in line and "00/500,000" not in line for line in lines)  # no stuck 0 %
    assert any("123,456/500,000" in line for line in lines)
    assert any("12.3%" in line for line in lines)
    assert not any("left" in line for line in lines if " 1/500,000" in line or "500,000/500,000" in line)
    # A stage counts its seconds, and says at the end how long it took.
    assert {"analysis 0 s", "analysis 1 s"} <= set(lines)
    assert any(re.fullmatch(r"analysis: 1\.[3-9] s", line) for line in lines)
    written = " ".join(" ".join(lines).split())
    assert "a sentence that is far longer than a narrow terminal, with a path that stays whole:" in written
    if columns >= 60:
        assert "a warning above the bar that is longer than sixty columns: it is wrapped between words" in written
        assert any(re.search("━ 123,456/500,000 1,234 steps/s .*5 min 05 s left", line) for line in lines)
        assert any("50%" in line and "s left" in line for line in lines)
    # On a narrow terminal, the rate of models is left out first, then that of steps.
    assert any("123,456" in line and "model-steps/s" in line for line in lines) == (columns == 120)
