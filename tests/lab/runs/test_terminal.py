"""A whole run on a terminal of 60 columns."""

import re
import shlex
import sys

import pytest
from processes import SCRIPT, UNDRAWN
from terminals import pty_output, rows

pytestmark = pytest.mark.slow
COLUMNS = 60
RUN = shlex.split("--bits 4 --seeds 2 --steps 20 --record_every 10 --exact-every 10 --half-period 10 --out")


def test_a_run_names_its_stages_and_wraps_between_words(tmp_path):
    """Compilation comes before training, every stage is named, no word is cut, and only warnings are on standard error."""
    with (tmp_path / "errors").open("w") as errors:
        output = pty_output([sys.executable, UNDRAWN, SCRIPT, *RUN, tmp_path / "run"], COLUMNS, errors)
    lines = [line.rstrip() for line in rows(output) if line.strip()]
    # Only a path may be longer than the terminal, on a line of its own.
    assert all(len(line) <= COLUMNS or len(line.split()) == 1 for line in lines), [
        line for line in lines if len(line) > COLUMNS
    ]
    first = {word: next(place for place, line in enumerate(lines) if line.startswith(word)) for word in STAGES}
    assert [*first] == sorted(STAGES, key=lambda word: first[word])
    assert any(re.fullmatch(r"training ━+ 20/20 .*steps/s", line) for line in lines)
    assert " left" not in output  # no two chunks of so short a run can agree
    written = " ".join(" ".join(lines).split())
    assert "EXor main, transformer small: 2 seeds, tied and untied, 20 steps" in written
    assert re.search(r"tying-costs: undecided; estimate \S+, adjusted p 1, 2 seeds\. Not decided with 2 seeds", written)
    assert written.endswith(f"report: {tmp_path}/run/report.html")
    said = "warning: --seeds: 2 seeds cannot decide any claim; that takes at least 6\n"
    assert (tmp_path / "errors").read_text() == said


STAGES = ("compiling", "compiled in", "training", "analysis 0 s", "figures 0 s", "report:")
