"""The theory check of a run, from command to page, and refusals."""

import json

import numpy as np
import pytest
from directories import make_run

from tiejax.lab.runs import entry
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import STUDY as EXOR
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.exor.theory import distances
from tiejax.lab.studies.exor.trajectories import trajectories
from tiejax.lab.studies.theory.page import finding, headings, tables
from tiejax.lab.studies.theory.settings import STUDY
from tiejax.lab.studies.theory.study import moved_apart

pytestmark = pytest.mark.slow


def checked(run, out, *argv):
    assert entry.main(STUDY, [str(run), "--quiet", "--out", str(out), *argv]) == 0
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "short"
    argv = ["--bits", "3", "--steps", "20", "--record_every", "10", "--seeds", "[4,2]", "--quiet", "--out", str(out)]
    assert entry.main(EXOR, argv) == 0
    return out


def test_members_continue_from_the_end_of_the_run(run, tmp_path):
    found = checked(run, tmp_path / "check", "--members", "all", "--iterations", "12")
    with np.load(run / "metrics.npz") as archive:
        trained = dict(archive)
    for arm, name in enumerate(("untied", "tied")):
        members = found["members"][name]
        assert [member["seed"] for member in members] == [4, 2]
        # The run computes in float32.
        assert [member["loss"][0] for member in members] == pytest.approx(
            trained["exact_cross_entropy"][arm, :, -1, 0], rel=1e-5
        )
        for table in ("input", "output"):
            before = [member["measures"][f"{table}/zero/distance"][0] for member in members]
            assert before == pytest.approx(trained[f"distance_{table}"][arm, :, -1, 0], rel=1e-5)
        for member in members:
            assert member["loss"][1] < member["loss"][0]
            assert (member["path"][0], member["path"][-1]) == (0, member["iterations"])
            assert {len(values) for values in member["measures"].values()} == {len(member["path"])}
    # One table stays one table.
    tied = found["members"]["tied"][0]["measures"]
    assert tied["input/one/distance"] == tied["output/one/distance"]
    untied = found["members"]["untied"][0]["measures"]
    assert untied["input/one/distance"] != untied["output/one/distance"]
    page = (tmp_path / "check" / "report.html").read_text()
    assert all(words in page for words in ("12 iterations", "one, input: relative", "reading map"))


def test_pairs_are_moved_apart_first(run, tmp_path):
    found = checked(run, tmp_path / "check", "--members", "all", "--most", "1", "--iterations", "1", "--apart", "3")
    assert [len(found["members"][arm]) for arm in ("untied", "tied")] == [1, 1]
    with np.load(run / "metrics.npz") as archive:
        trained = trajectories(archive, EXor(3, (0.1, 0.9), (0.5, 0.5)), 20)
    distance, relative = (by_table["input"]["zero"][0, 0, -1] for by_table in (trained.distance, trained.relative))
    scale = distance / relative
    assert found["members"]["untied"][0]["measures"]["input/zero/distance"][0] == pytest.approx(3 * scale, rel=1e-5)


def test_moved_rows():
    task = EXor(3, (0.1, 0.9), (0.5, 0.5))
    table = np.random.default_rng(0).normal(size=(7, 3))
    table[3] = table[2]  # equal rows have no line between them
    params = {"embed": {"embedding": table}, "head": {"embedding": 2 * table}}
    moved = moved_apart(params, task, 0.5, tied=False)
    after, before = moved["embed"]["embedding"], distances(table, task)
    scale = before["zero"][0] / before["zero"][1]
    assert {pair: apart for pair, (apart, _) in distances(after, task).items()} == pytest.approx(
        {"zero": 0.5 * scale, "one": 0.5 * scale}
    )
    np.testing.assert_allclose(after[:2].mean(0), table[:2].mean(0))
    np.testing.assert_array_equal(after[4:], table[4:])
    assert moved["head"]["embedding"] is params["head"]["embedding"]
    assert moved_apart(params, task, 0.5, tied=True)["head"]["embedding"] is not params["head"]["embedding"]


def member(seed, losses, relative):
    names = ("input/one/distance", "input/one/relative", "output/one/relative")
    values = {name: list(relative) for name in names} | {"reading": [0.1, 0.2], "read/one/relative": [0.3, 0.04]}
    return {
        "seed": seed,
        "loss": losses,
        "gradient": [0.1, 1e-9],
        "iterations": 50,
        "reason": "CONVERGENCE: X",
        "measures": values,
    }


def test_the_page_counts_optimal_members():
    members = [member(3, [0.55, 0.5], (0.01, 0.4)), member(4, [0.55, 0.5005], (0.2, 0.02)), member(5, [0.55, 0.53], (9, 9))]
    results = {"bayes_cross_entropy": 0.5, "pairs": {"one": 0.0}, "members": {"untied": members, "tied": []}}
    untied, tied = finding(results)
    assert untied == (
        "2 untied members of 3 came within 0.001 nat of the Bayes loss. The one pair is together in the input table of 1 "
        "before and of 1 after the minimisation; median relative distance 0.105 before, 0.21 after (0.04 in "
        "what the models read)."
    )
    assert tied == "No tied member was continued."
    ((_, (columns, rows)),) = tables(results).items()
    assert columns == headings(results)
    assert dict(zip(columns, rows[0], strict=True)) == {
        "seed": "3",
        "loss - Bayes": "0.05 -> 0",
        "|gradient|": "0.1 -> 1e-09",
        "iterations": "50",
        "one, input: distance": "0.01 -> 0.4",
        "one, input: relative": "0.01 -> 0.4",
        "one, output: relative": "0.01 -> 0.4",
        "reading map": "0.1 -> 0.2",
        "one, read: relative": "0.3 -> 0.04",
        "ended by": "convergence",
    }


def test_refused_runs(run, tmp_path):
    def refused(path, words, *argv):
        with pytest.raises(BadInput, match=words):
            entry.main(STUDY, [str(path), "--out", str(tmp_path / "check"), *argv])
        assert not (tmp_path / "check").exists()

    refused(run, "no member solved the task; use --members all")
    refused(tmp_path, "run.json is missing")
    refused(make_run(tmp_path / "doses", doses=[0.1, 0.2]), "several doses")
    refused(make_run(tmp_path / "several", variants=["main", "dh"]), r"several variants; name one of them: .*several/main")
    refused(make_run(tmp_path / "lstm", model="lstm"), "56,896 contexts, expected at most 10,000")
    refused(make_run(tmp_path / "unfinished"), "has no checkpoint|not finished|damaged", "--members", "all")
    refused(run, "--iterations: expected an integer >= 1", "--iterations", "0")
    refused(run, "--apart: expected a finite number > 0", "--apart", "0")
