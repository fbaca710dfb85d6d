"""Runs beside each other: what differs, what each says of every claim, and what cannot be compared."""

import json

import pytest
from claim_rows import CLAIM
from directories import make_run
from pictures import is_a_picture
from processes import tree

from tiejax.lab.runs import launch
from tiejax.lab.runs.manifest import differing
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.comparison.beside import at_odds
from tiejax.lab.studies.comparison.settings import STUDY, labels


def body(*claims):
    return {"seeds": [0, 1, 2], "excluded_seeds": [7], "claims": list(claims)}


def claim(name, verdict, effect):
    return CLAIM | {"id": name, "verdict": verdict, "effect_size": effect}


@pytest.fixture
def runs(tmp_path):
    both, odd, alone = (claim(name, "supported", 0.9) for name in ("both", "odd", "alone"))
    one = make_run(tmp_path / "one", finished=True, results=body(both, odd, alone), seeds=3)
    other = body(both | {"verdict": "undecided", "interval": None}, odd | {"verdict": "contradicted", "effect_size": -1.0})
    return one, make_run(tmp_path / "other", finished=True, results=other, seeds=3, variant="dh", steps=500)


def compared(tmp_path, runs):
    out = tmp_path / "comparison"
    assert launch.main(STUDY, [*map(str, runs), "--out", str(out)]) == 0
    return out, json.loads((out / "results.json").read_text())


def test_runs_stand_beside_each_other(tmp_path, runs, capsys):
    before = [tree(run) for run in runs]
    out, results = compared(tmp_path, runs)
    assert [tree(run) for run in runs] == before
    assert results["settings"] == {"variant": ["main", "dh"], "steps": [150_000, 500]}
    assert list(results["runs"]) == ["one", "other"]
    assert {row["id"]: [of and of["verdict"] for of in row["rows"]] for row in results["claims"]} == {
        "both": ["supported", "undecided"],
        "odd": ["supported", "contradicted"],
        "alone": ["supported", None],
    }
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "Of 2 claims that all 2 runs make, 0 have the same verdict in all. At odds, supported by one run and contradicted by "
        "another: odd. 1 claim more is made by some of the runs only.",
        "The runs differ in variant, steps.",
        f"report: {out / 'report.html'}",
    ]
    assert is_a_picture(out / "figures" / "effects.png")
    page = (out / "report.html").read_text()
    for words in ("0.333 (0.1 to 0.5), p 0.0123, supported", "0.333, p 0.0123, undecided", "left out: 7", "&#34;dh&#34;"):
        assert words in page


def test_what_differs_is_found_by_value_and_order():
    assert differing([{"a": 1, "b": {"x": 1, "y": 2}}, {"a": 1, "b": {"y": 2, "x": 1}, "c": None}]) == {
        "b": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]
    }


def test_a_run_that_decides_nothing_is_not_at_odds():
    rows = [[{"verdict": verdict} for verdict in both] for both in (("supported", "undecided"), ("contradicted", "supported"))]
    assert at_odds([{"id": str(place), "rows": row} for place, row in enumerate(rows)]) == ["1"]


def test_runs_are_called_by_what_tells_them_apart(tmp_path):
    assert labels([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]


def refusal(tmp_path, *runs):
    with pytest.raises(BadInput) as raised:
        launch.main(STUDY, [*map(str, runs), "--out", str(tmp_path / "comparison")])
    assert not (tmp_path / "comparison").exists()
    return str(raised.value)


def test_what_cannot_be_compared_is_refused(tmp_path, runs):
    one, other = runs
    assert refusal(tmp_path, one) == "runs: name 2 to 12 directories of finished runs, got 1"
    assert refusal(tmp_path, one, other, one) == f"runs: every run once, {one.resolve()} is repeated"
    unfinished = make_run(tmp_path / "unfinished")
    words = f"{unfinished}: its run has not finished; go on with it by its command and --resume"
    assert refusal(tmp_path, one, unfinished) == words
    assert "nothing says which study made it" in refusal(tmp_path, one, tmp_path)
    of_others = make_run(tmp_path / "of others", finished=True, results={"claims": [{"verdict": 3}]})
    assert refusal(tmp_path, one, of_others) == f"{of_others / 'results.json'}: holds no claims as a run writes them"
    (other / "results.json").write_text("{}")
    assert f"{other / 'results.json'}: is damaged" in refusal(tmp_path, one, other)
    out, _ = compared(tmp_path, [one, make_run(tmp_path / "third", finished=True, results=body())])
    assert f"{one} is of exor, {out} of comparison" in refusal(tmp_path / "x", one, out)
