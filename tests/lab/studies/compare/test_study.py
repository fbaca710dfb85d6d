"""Comparison of runs: settings that differ, the verdict of each run on every claim, and refusals."""

import hashlib
import json

import numpy as np
import pytest
from claim_rows import CLAIM, EXPLORATORY
from directories import make_run
from pictures import is_a_picture
from processes import tree

from tiejax.lab.runs import entry
from tiejax.lab.runs.manifest import differing
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.compare.page import at_odds, finding, plot_all
from tiejax.lab.studies.compare.settings import ACROSS, STUDY, labels
from tiejax.lab.studies.compare.study import effect
from tiejax.lab.studies.exor.settings import STUDY as EXOR
from tiejax.lab.studies.exor.settings import Settings
from tiejax.statistics.claims import Claim


def body(*claims):
    return {"seeds": [0, 1, 2], "excluded_seeds": [7], "claims": list(claims)}


def claim(name, verdict):
    return CLAIM | {"id": name, "verdict": verdict}


def between(runs):
    """A claim about two runs, from their settings and results: the number of steps less that of the other, for each seed."""
    (first, body), (second, _) = runs
    differences = np.array([float(first["steps"] - second["steps"] + seed) for seed in body["seeds"] * 4])
    return [Claim("between", "The first run is longer.", "steps (first - second)", differences, 1, unit="steps")]


def test_claims_about_all_runs_come_first(tmp_path, runs, capsys, monkeypatch, drawn):
    monkeypatch.setitem(ACROSS, "exor", between)
    out, results = compared(tmp_path, runs)
    (row,) = results["across"]
    assert (row["estimate"], row["verdict"]) == (149_501.0, "supported")
    assert capsys.readouterr().out.startswith("The first run is longer: steps is 150,000 steps higher for first [")
    assert "Claims about all runs together" in (out / "report.html").read_text()


@pytest.fixture
def runs(tmp_path):
    both, odd, alone = (claim(name, "supported") for name in ("both", "odd", "alone"))
    one = make_run(tmp_path / "one", finished=True, results=body(both, odd, alone), seeds=3)
    other = body(both | {"verdict": "undecided", "interval": None}, odd | {"verdict": "contradicted"})
    return one, make_run(tmp_path / "other", finished=True, results=other, seeds=3, variant="dh", steps=500)


def compared(tmp_path, runs):
    out = tmp_path / "comparison"
    assert entry.main(STUDY, [*map(str, runs), "--out", str(out)]) == 0
    return out, json.loads((out / "results.json").read_text())


def test_runs_are_compared(tmp_path, runs, capsys, drawn):
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
    assert capsys.readouterr().out.splitlines() == [
        "Decided in every run: 1 of 2 claims, 0 of them alike. Supported by one run and contradicted by another: odd. "
        "Decided in some runs and undecided in others: 1 claim. Not made by all runs: 1 claim.",
        "The runs differ in variant, steps.",
        f"report: {out / 'report.html'}",
    ]
    assert is_a_picture(out / "figures" / "effects.png")
    page = (out / "report.html").read_text()
    for words in (
        "0.333 (0.1 to 0.5), adjusted 0.05 to 0.55, p 0.0123, n 8, supported",
        "0.333, adjusted 0.05 to 0.55, p 0.0123, n 8, undecided",
        "both: the relative distance, zero - one<",
        "excluded: 7",
        "&#34;dh&#34;",
    ):
        assert words in page


def test_runs_of_other_models_say_so_and_share_no_row_of_two_units(tmp_path, drawn):
    """As of two unrelated comparisons, whose settings may be the same."""
    runs = []
    for name, unit in (("lstm", "nats"), ("gpt", "bits")):
        one, other = claim("both", "supported") | {"unit": unit}, claim("same", "supported")
        about = body(one, other) | {"name": f"my {name}", "unit": unit}
        runs.append(make_run(tmp_path / name, finished=False, seeds=3))
        run = RunDirectory.reserve(EXOR, Settings(seeds=3, out=str(runs[-1])).resolved(), True, False)
        run.bind(name * 20)
        run.keep("script.json", name.encode())
        run.write_results(about)
        run.release()
    _, results = compared(tmp_path, runs)
    digests = [hashlib.sha256(name).hexdigest()[:12] for name in (b"lstm", b"gpt")]
    assert results["settings"] == {
        "name": ["my lstm", "my gpt"],
        "unit": ["nats", "bits"],
        "data": ["lstmlstmlstm", "gptgptgptgpt"],
        "script": digests,
    }
    assert finding(results)[-1] == "The runs differ in name, unit, data, script."
    units = [[row["id"], *(of and of["unit"] for of in row["rows"])] for row in results["claims"]]
    assert units == [["both", "nats", None], ["same", CLAIM["unit"], CLAIM["unit"]], ["both", None, "bits"]]
    (plot,) = plot_all(results)
    assert [label.get_text() for label in plot.figure.axes[0].get_yticklabels()] == ["both (nats)", "same", "both (bits)"]


def test_effects_are_standardised_means(tmp_path, runs):
    _, results = compared(tmp_path, runs)
    assert results["claims"][0]["rows"][0]["effect"] == pytest.approx(
        np.mean([0.2, 0.3, 0.5]) / np.std([0.2, 0.3, 0.5], ddof=1)
    )
    assert effect(CLAIM | {"differences": [1.0, 1.0]}) is None


def test_exploratory_claims_are_compared_apart(tmp_path, runs):
    """Not counted among the claims, and without p and verdict."""
    first = EXPLORATORY | {"estimate": 0.7}
    more = [
        make_run(tmp_path / name, finished=True, results=body(claim("both", "supported"), first), seeds=3)
        for name in ("three", "four")
    ]
    out, results = compared(tmp_path, more)
    assert finding(results)[0] == "Decided in every run: 1 of 1 claim, 1 of them alike."
    page = (out / "report.html").read_text()
    apart = page[page.index("Exploratory, estimated but not tested") :]
    assert "<td>0.7 (0.1 to 0.5), n 8</td>" in apart[: apart.index("</table>")]
    assert page.count("first-look") == 1


def test_a_comparison_as_json(tmp_path, runs, capsys):
    out = tmp_path / "comparison"
    assert entry.main(STUDY, [*map(str, runs), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    results = json.loads((out / "results.json").read_text())
    assert printed == results | {"finding": finding(results), "report": str(out / "report.html")}
    assert [row["verdict"] for row in printed["claims"][1]["rows"]] == ["supported", "contradicted"]


def headline(*claims, runs=2):
    """The first sentence of the finding; each claim is the initial letters of its verdicts, "-" for none."""
    words = {"s": "supported", "c": "contradicted", "u": "undecided"}
    rows = [
        [None if letter == "-" else {"kind": "mean", "one_arm": False, "verdict": words[letter]} for letter in claim]
        for claim in claims
    ]
    results = {
        "runs": dict.fromkeys(map(str, range(runs))),
        "settings": {},
        "claims": [{"id": str(place), "rows": row} for place, row in enumerate(rows)],
        "across": [],
    }
    return finding(results)[0]


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (["uu"] * 12, "Decided in every run: 0 of 12 claims, 0 of them alike."),
        (["ss", "cc", *["uu"] * 10], "Decided in every run: 2 of 12 claims, 2 of them alike."),
        (["ss"], "Decided in every run: 1 of 1 claim, 1 of them alike."),
        (["ss", "ss", "ss"], "Decided in every run: 3 of 3 claims, 3 of them alike."),
        (
            ["ss", "sc", "cc", "cu"],
            "Decided in every run: 3 of 4 claims, 2 of them alike. Supported by one run and contradicted by another: 1. "
            "Decided in some runs and undecided in others: 1 claim.",
        ),
        (["s-", "-u"], "Decided in every run: 0 of 0 claims, 0 of them alike. Not made by all runs: 2 claims."),
    ],
)
def test_the_headline_counts_decided_claims(claims, expected):
    assert headline(*claims) == expected


def test_settings_that_differ_are_found_by_value_and_order():
    assert differing([{"a": 1, "b": {"x": 1, "y": 2}}, {"a": 1, "b": {"y": 2, "x": 1}, "c": None}]) == {
        "b": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]
    }


def test_an_undecided_claim_is_not_at_odds():
    rows = [[{"verdict": verdict} for verdict in both] for both in (("supported", "undecided"), ("contradicted", "supported"))]
    assert at_odds([{"id": str(place), "rows": row} for place, row in enumerate(rows)]) == ["1"]


def test_labels_are_the_shortest_distinct_ends_of_paths(tmp_path):
    assert labels([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]


def refusal(tmp_path, *runs):
    with pytest.raises(BadInput) as raised:
        entry.main(STUDY, [*map(str, runs), "--out", str(tmp_path / "comparison")])
    assert not (tmp_path / "comparison").exists()
    return str(raised.value)


def test_runs_that_cannot_be_compared_are_refused(tmp_path, runs):
    one, other = runs
    assert refusal(tmp_path, one) == "runs: expected 2 to 12 directories of finished runs, got 1"
    assert refusal(tmp_path, one, other, one) == f"runs: expected every run once, but {one.resolve()} is repeated"
    unfinished = make_run(tmp_path / "unfinished")
    words = f"{unfinished}: the run has not finished; continue it with its command and --resume"
    assert refusal(tmp_path, one, unfinished) == words
    assert "run.json is missing: this is not a run directory" in refusal(tmp_path, one, tmp_path)
    foreign = make_run(tmp_path / "of others", finished=True, results={"claims": [{"verdict": 3}]})
    words = f"{foreign / 'results.json'}: its claims have an unexpected format; run the study again"
    assert refusal(tmp_path, one, foreign) == words
    (other / "results.json").write_text("{}")
    assert f"{other / 'results.json'}: damaged;" in refusal(tmp_path, one, other)
    out, _ = compared(tmp_path, [one, make_run(tmp_path / "third", finished=True, results=body())])
    assert f"{one} is a run of exor and {out} one of compare" in refusal(tmp_path / "x", one, out)


NAMES = ("\x1b[31m\x07", r"$\frac$", "$x$", "_one", "\udcff", "\u65e5\u672c", "a\nb", "\u202eb", r"\$")


@pytest.mark.slow
def test_names_of_runs_are_shown_as_they_are(tmp_path, capsys, drawn):
    """Control characters, mathematics, letters without a glyph, and a name that is not UTF-8; warnings are errors here."""
    results = body(claim("$x_{$", "supported"), claim("$y$", "undecided"), claim("$z", "undecided"))
    # Renamed, because a run cannot be started under a name that is not UTF-8.
    runs = [make_run(tmp_path / "made", finished=True, results=results, seeds=3).rename(tmp_path / name) for name in NAMES]
    out, found = compared(tmp_path, runs)
    assert sorted(found["runs"]) == sorted(NAMES)
    assert is_a_picture(out / "figures" / "effects.png")
    ended = capsys.readouterr()
    assert ended.err == ""
    assert ended.out.replace("\n", "").isprintable()
    assert set("\x1b\x07\u202e").isdisjoint((out / "report.html").read_text())
