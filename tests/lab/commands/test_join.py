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
    # Two seeds were too few to decide a claim: neither appending to them nor joining them is a look.
    assert one["seeds_by_part"] == [2, 2]
    del one["timing"], other["timing"]
    assert one == other
    assert other["seeds"] == [0, 1, 2, 3]


def rewritten(run, name, content):
    """Write a file of a run, and its digest in the manifest."""
    content(run / name)
    read = manifest.read(run)
    read.files[name], read.lengths[name] = files.sha256(run / name), (run / name).stat().st_size
    read.write(run)


@pytest.mark.slow
def test_runs_that_could_decide_claims_are_looks_as_if_seeds_had_been_appended(tmp_path):
    """Six seeds decide one of three equivalences: 2^-6 <= .05 / 3."""
    out, short = tmp_path / "joined", ("--steps", "4", "--rates", "[0.1]")
    joined = [trained(tmp_path / str(first), *short, "--seeds", json.dumps([*range(first, first + 6)])) for first in (0, 6)]
    whole = shutil.copytree(joined[0], tmp_path / "whole")
    trained(whole, *short, "--seeds", json.dumps([*range(12)]), "--resume")
    assert join.main([*map(str, joined), "--out", str(out)]) == 0
    trained(out, "--resume")
    one, other = (json.loads((folder / "results.json").read_text()) for folder in (whole, out))
    assert other["looks"] == {"planned": [6, 12], "done": [6, 12], "appended": True}
    del one["timing"], other["timing"]
    assert one == other


@pytest.mark.parametrize(
    ("seeds", "earlier", "level", "looks"),
    [
        ((10, 14), ((), ()), 1 - 0.05 / 6, (10,)),
        ((10, 6, 8), ((), (), ()), 1 - 0.05 / 6, (10,)),  # 2^-6 is above .05 / 6, 2^-10 below
        ((5, 5), ((), ()), 1 - 0.05 / 6, ()),
        ((5, 5), ((), ()), 1 - 0.05, ()),  # two-sided, 2^-4 is above .05
        ((6, 5), ((), ()), 1 - 0.05, (6,)),
        ((16, 8), ((10,), ()), 1 - 0.025 / 6, (10, 16)),
        ((10, 16), ((), (10,)), 1 - 0.05 / 6, (10, 20)),
        ((10, 10), ((), ()), None, ()),  # no claim was tested
    ],
)
def test_looks_of_joined_runs(tmp_path, seeds, earlier, level, looks):
    joined, first = [], 0
    for number, before in zip(seeds, earlier, strict=True):
        folder = tmp_path / str(first)
        folder.mkdir()
        rows = [{"n": number, "goal": "difference", "equivalence": None, "adjusted_level": level}]
        (folder / "results.json").write_text(json.dumps({"claims": rows}))
        read = manifest.Manifest("study", {"seeds": list(range(first, first + number))}, tested=before)
        joined.append(join.Run(folder, read, {}, {}))
        first += number
    assert join.tested(joined) == looks


@pytest.mark.parametrize(
    ("goals", "margins", "seeds", "decides"),
    [
        (["difference"] * 4, 0, 7, False),  # 2^-6 = .0156 is above .05 / 4 = .0125
        (["difference"] * 4, 0, 8, True),
        (["difference"] * 4, 3, 6, True),  # three equivalences at .05 / 3 = .0167, for which the smallest p is 2^-6
        (["difference"] * 4, 4, 6, False),
        (["difference"] * 3 + ["non-inferiority"], 0, 7, True),  # one-sided: 2^-7 is below .0125
    ],
)
def test_which_runs_could_decide_a_claim(tmp_path, goals, margins, seeds, decides):
    equivalences = [{"verdict": "undecided"}] * margins + [None] * (len(goals) - margins)
    rows = [{"n": seeds, "goal": goal, "equivalence": same, "adjusted_level": 1 - 0.05 / len(goals)}
            for goal, same in zip(goals, equivalences, strict=True)]  # fmt: skip
    exploratory = {"n": 100, "goal": "difference", "equivalence": None, "adjusted_level": None}
    (tmp_path / "results.json").write_text(json.dumps({"claims": [*rows, exploratory]}))
    assert join.Run(tmp_path, manifest.Manifest("study", {}), {}, {}).could_decide == decides


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
    (lambda run: (run / "environment.json").write_text("{"), r"environment.json or config.yaml is damaged; restore it$"),
    (lambda run: (run / "environment.json").write_text("[]"), r"environment.json or config.yaml is damaged; restore it$"),
    (lambda run: (run / "config.yaml").write_text("seeds: ["), r"environment.json or config.yaml is damaged; restore it$"),
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

    def shift(path):
        with np.load(path) as arrays:
            np.savez(path, **{name: values + (values.dtype.kind == "f") for name, values in arrays.items()})

    rewritten(other, f"finished/{stage}", shift)
    with pytest.raises(BadInput, match=r"rate\.tied.*: differs from the same stage of the other runs"):
        join.main([str(runs[0]), str(other), "--out", str(tmp_path / "out")])
    assert [entry.name for entry in tmp_path.iterdir()] == ["other"]


@pytest.mark.slow
def test_the_same_seeds_and_an_existing_directory_are_refused(runs, tmp_path):
    with pytest.raises(BadInput, match=r"^--seeds: seed 0 is in several of the runs"):
        join.main([str(runs[0]), str(runs[0]), "--out", str(tmp_path / "out")])
    with pytest.raises(BadInput, match=r"^--out .*: exists already"):
        join.main([*map(str, runs), "--out", str(tmp_path)])
    with pytest.raises(BadInput, match=r"^--out .*: lies in .*, which is joined; name a directory outside"):
        join.main([*map(str, runs), "--out", str(runs[0] / "joined")])


@pytest.mark.parametrize("argv", [[], ["one"], ["one", "two"], ["one", "--out", "two"]])
def test_runs_and_out_are_required(argv):
    with pytest.raises(BadInput, match=r"^runs, --out: name at least two run directories"):
        join.main(argv)


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"one: run.json is missing"):
        join.main([str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "out")])


def test_measured_times_of_a_shared_stage_may_differ(tmp_path):
    for name, seconds in (("one", 1.0), ("other", 2.0)):
        arrays = {"loss": np.ones(3), "step/time": np.full(3, seconds), "seconds_per_step": np.array(seconds)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    join.check_same(tmp_path / "one.npz", tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("settings", "gates", "message"),
    [
        ({"explore": True}, (0.1, 0.1), "^--explore: exploratory arms are trained for the first seeds of each run only"),
        ({}, (0.1, -1.0), "^--gate: differs between the runs: 0.1, -1.0$"),
    ],
)
def test_runs_of_causal_models_that_cannot_be_joined(tmp_path, settings, gates, message):
    """The gate is not among the settings of a manifest, since a resumed run may change it."""
    found = [
        join.Run(tmp_path, manifest.Manifest("causal_untying", settings | {"seeds": [seed]}), {}, {"gate": gate})
        for seed, gate in enumerate(gates)
    ]
    with pytest.raises(BadInput, match=message):
        join.check(found)
