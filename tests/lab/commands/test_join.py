"""`tiejax join`: the joined run equals one run that trained the seeds of each run as a part."""

import json
import shutil
from pathlib import Path

import comparison_model
import numpy as np
import pytest
from processes import end, start, tree

from tiejax.lab.commands import join
from tiejax.lab.runs import manifest
from tiejax.lab.settings.command_line import BadInput
from tiejax.system import files

FILE = Path(comparison_model.__file__)
DEVICES = {"JAX_NUM_CPU_DEVICES": "2"}


def trained(out, *flags):
    ended = end(start("--out", out, *flags, script=FILE, env=DEVICES))
    assert ended.status == 0, ended.err
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs with two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    return [trained(folder / str(first), "--seeds", f"[{first},{first + 1}]") for first in (0, 2)]


@pytest.mark.slow
def test_joined_runs_equal_one_run_of_two_parts(runs, tmp_path):
    before, out = [tree(run) for run in runs], tmp_path / "joined"
    whole = shutil.copytree(runs[0], tmp_path / "whole")
    trained(whole, "--seeds", "[0,1,2,3]", "--resume")
    assert join.main([*map(str, runs), "--out", str(out)]) == 0
    assert [tree(run) for run in runs] == before
    trained(out, "--resume")
    with np.load(whole / "metrics.npz") as one, np.load(out / "metrics.npz") as other:
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].tobytes() == other[name].tobytes(), name
    one, other = (json.loads((folder / "results.json").read_text()) for folder in (whole, out))
    # The claims of the other run were tested before seeds were appended; those of joined runs are as planned together.
    assert (one.pop("looks")["done"], other.pop("seeds_by_part")) == ([2, 4], [2, 2])
    for name in ("timing", "claims"):
        del one[name], other[name]
    assert one == other
    assert other["seeds"] == [0, 1, 2, 3]


def change(run, edit):
    """Edit the environment of a run."""
    file = run / "environment.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def set_margin(run):
    read = manifest.read(run)
    read.settings["margin"] = 0.5
    read.write(run)


def set_text(run):
    manifest.Manifest(**vars(manifest.read(run)) | {"text": "0123"}).write(run)


REFUSED = [
    (set_margin, r"^--margin: differs between the runs: 0.01, 0.5$"),
    (set_text, r"expected the text of .*, got 0123$"),
    (lambda run: change(run, lambda found: found["versions"].update(jax="0.0.1")), r"^environment.json: versions differs"),
    (lambda run: change(run, lambda found: found.update(git_commit="abc")), r"^environment.json: git_commit differs"),
    (lambda run: (run / "metrics.npz").unlink(), r"damaged or missing: metrics.npz; its command with --resume"),
    (lambda run: (run / "run.json").unlink(), r"run.json is missing"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "message"), REFUSED)
def test_runs_that_differ_in_more_than_seeds_are_refused(runs, tmp_path, edit, message):
    other = shutil.copytree(runs[1], tmp_path / "other")
    edit(other)
    with pytest.raises(BadInput, match=message) as refused:
        join.main([str(runs[0]), str(other), "--out", str(tmp_path / "out")])
    assert len(str(refused.value).splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["other"]


@pytest.mark.slow
def test_a_choice_of_rates_that_differs_is_refused_and_nothing_is_left(runs, tmp_path):
    other = shutil.copytree(runs[1], tmp_path / "other")
    (stage,) = (path.name for path in (other / "finished").glob("rate.tied.0.1-*"))
    with np.load(other / "finished" / stage) as arrays:
        np.savez(other / "finished" / stage, **{name: values + (values.dtype.kind == "f") for name, values in arrays.items()})
    read = manifest.read(other)
    name = f"finished/{stage}"
    read.files[name] = files.sha256(other / name)
    read.lengths[name] = (other / name).stat().st_size
    read.write(other)
    with pytest.raises(BadInput, match=r"rate\.tied.*: differs from the same stage of the other runs"):
        join.main([str(runs[0]), str(other), "--out", str(tmp_path / "out")])
    assert [entry.name for entry in tmp_path.iterdir()] == ["other"]


@pytest.mark.slow
def test_the_same_seeds_and_an_existing_directory_are_refused(runs, tmp_path):
    with pytest.raises(BadInput, match=r"^--seeds: seed 0 is in several of the runs"):
        join.main([str(runs[0]), str(runs[0]), "--out", str(tmp_path / "out")])
    with pytest.raises(BadInput, match=r"^--out .*: exists already"):
        join.main([*map(str, runs), "--out", str(tmp_path)])


@pytest.mark.parametrize("argv", [[], ["one"], ["one", "two"], ["one", "--out", "two"]])
def test_runs_and_out_are_required(argv):
    with pytest.raises(BadInput, match=r"^runs, --out: name at least two run directories"):
        join.main(argv)


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"one: run.json is missing"):
        join.main([str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "out")])
