"""The published part of a run, and its JSON."""

import json
from pathlib import Path

import numpy as np
import pytest
from claim_rows import CLAIM

from docs.results import published
from tiejax.lab.runs.run_directory import RESULTS_FORMAT

FOLDER = Path(published.__file__).parent
EXACT = ("id", "family", "goal", "n", "verdict", "look", "note")
FACTS = {"git_commit": "abc", "date": "2026-11-22T10:00:00+00:00", "python": "3.11", "versions": {}, "devices": ["cpu"]}
RESULTS = {
    "format": 2,
    "experiment": "exor",
    "seeds": [0, 1],
    "excluded_seeds": [],
    "timing": {"train_s": 1.0},
    "claims": [CLAIM | {"other": 3}],
}
TABLES = {
    "Numbers: the shapes": (["shape", "loss"], [["a|b", "1.5"]]),
    "Numbers: every seed (loss)": (["seed"], [["0"]]),
    "Numbers: every pair of words": (["pair"], [["the"]]),
}


def test_published_part_of_a_run():
    found = published.published_run(RESULTS, FACTS, TABLES, "python x.py", "experiments/figures/main.png")
    assert (found["seeds"], found["resumed"], found["date"], found["command"]) == (2, 0, "2026-11-22", "python x.py")
    assert (found["format"], found["figure"]) == (2, "experiments/figures/main.png")
    assert found["claims"] == [CLAIM]
    assert list(found["tables"]) == ["Numbers: the shapes"]


def present(file):
    """Whether a file is a run whose claims are tested by the present rules, in one family."""
    run = json.loads(file.read_text())
    withdrawn = json.loads((FOLDER.parent / "withdrawn.json").read_text())
    return "claims" in run and run.get("format") == RESULTS_FORMAT and file.name not in withdrawn and run["study"] == "exor"


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in sorted(FOLDER.glob("*.json")) if present(file)], ids=lambda file: file.stem)
def test_published_verdicts_follow_from_the_published_differences(file):
    """By the present rules: a change of the rules must be published with what it changes."""
    run = json.loads(file.read_text())
    again = published.tested_again(run)["claims"]
    assert len(again) > 5
    for row, expected in zip(run["claims"], again, strict=True):
        assert {name: row[name] for name in EXACT} == {name: expected[name] for name in EXACT}, row["id"]
        for name in ("estimate", "interval", "interval_adjusted", "p", "p_adjusted", "smallest_detectable"):
            found, wanted = (np.array(of[name], float) for of in (row, expected))  # None, as of an infinite end, is NaN
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12, err_msg=f"{row['id']} {name}")


def test_commits_that_resumed_a_run_are_kept_once_each():
    resumed = [{"git_commit": commit} for commit in ("abc", "def", None, "def", "ghi")]
    found = published.published_run(RESULTS, FACTS | {"resumed": resumed}, TABLES, "python x.py")
    assert (found["commit"], found["later_commits"], found["resumed"]) == ("abc", ["def", "ghi"], 5)


def test_json_has_a_line_for_each_entry_and_each_list_of_numbers():
    value = {"a": [0.1, 1e-300, 1 / 3], "b": {"c": [[1, None], []], "d": {}}, "e": [{"f": "x"}]}
    text = published.dumps(value)
    assert json.loads(text) == value
    assert text.splitlines() == [
        "{",
        ' "a": [0.1, 1e-300, 0.3333333333333333],',
        ' "b": {',
        '  "c": [',
        "   [1, null],",
        "   []",
        "  ],",
        '  "d": {}',
        " },",
        ' "e": [',
        "  {",
        '   "f": "x"',
        "  }",
        " ]",
        "}",
    ]
