"""Seeds in parts: appended to a run, or look by look until the claims are decided; kills, growth, and refusals.

Runs that are not killed train in this process, on one device.
"""

import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest
import yaml
from damage import steps
from directories import here, make_run, read, refused
from processes import end, run_here, start, tree, wait_until

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.sections import looks_table, parts_words
from tiejax.lab.runs import manifest
from tiejax.lab.runs.checkpoints import restored_parts
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis.settings import settings_of_run
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.exor.settings import STUDY, Settings
from tiejax.lab.studies.exor.sizes import need, record_bytes
from tiejax.lab.studies.untying.settings import STUDY as UNTYING

__all__ = ["here", "refused"]  # fixtures

SETTINGS = ["--steps", 60, "--bits", 3, "--record_every", 10, "--exact_every", 10, "--half_period", 15]
SETTINGS += ["--checkpoint_every", 0.01]
# A device trains 16 seeds at a time (`exor.ensemble.seeds_at_once`): 32 seeds fill two blocks.
ONE_DEVICE, TWO_DEVICES = ({"JAX_NUM_CPU_DEVICES": number} for number in "12")


def go(out, *argv):
    """Run a command to its end; return the lines it printed."""
    return lines_of(run_here(STUDY, *argv, "--out", out))


def lines_of(ended):
    assert (ended.status, ended.err) == (0, "")
    return ended.out.splitlines()


def arrays(out):
    with np.load(out / "metrics.npz") as metrics:
        return dict(metrics)


def results(out):
    found = json.loads((out / "results.json").read_text())
    return {name: value for name, value in found.items() if name != "timing"}


def assert_same_bits(out, other):
    found, wanted = arrays(out), arrays(other)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture(autouse=True, scope="module")
def few_lines():
    """Figures of many seeds are not what is tested here; they would take a fifth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "MOST_LINES", 2)
        yield


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A finished run of 32 seeds."""
    out = tmp_path_factory.mktemp("half") / "run"
    go(out, *SETTINGS, "--seeds", 32)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 64 seeds that train together."""
    out = tmp_path_factory.mktemp("whole") / "run"
    go(out, *SETTINGS, "--seeds", 64)
    return out


@pytest.mark.slow
def test_appended_seeds_give_the_bits_of_a_run_of_all_seeds(half, whole, tmp_path):
    out = shutil.copytree(half, tmp_path / "run")
    trained = tree(out / "checkpoints")
    printed = go(out, *SETTINGS, "--seeds", 64, "--resume")
    assert "part 1 of 2: resuming at step 60 of 60" in printed
    # What was trained has not been trained again.
    assert {name: what for name, what in tree(out / "checkpoints").items() if name in trained} == trained
    assert_same_bits(out, whole)
    # Its claims had been tested with 32 seeds: each of both tests has half of .05.
    found, expected = results(out), results(whole)
    assert {**found, "claims": None} == {
        **expected, "claims": None, "looks": {"planned": [32, 64], "done": [32, 64], "appended": True}
    }  # fmt: skip
    first, (once, twice) = results(half)["claims"], (expected["claims"], found["claims"])
    for early, one, two in zip(first, once, twice, strict=True):
        assert (two["estimate"], two["interval"]) == (one["estimate"], one["interval"])
        if two["p_adjusted"] is not None:
            of_look = {32: early, 64: one}[two["look"]]
            assert two["p_adjusted"] == pytest.approx(min(1, 2 * of_look["p_adjusted"]))
    assert yaml.safe_load((out / "config.yaml").read_text())["seeds"] == 64
    assert "at 32, 64 seeds, each with 0.5 of .05: seeds were appended" in (out / "report.html").read_text()
    assert go(out, "--resume")[-1].startswith("the run is finished")
    # Results that are written again come from the checkpoints of both parts.
    (out / "metrics.npz").unlink()
    go(out, "--resume")
    assert_same_bits(out, whole)


@pytest.mark.slow
def test_appended_seeds_that_do_not_fill_blocks_agree_to_rounding(tmp_path):
    """3 and 2 seeds on two devices are blocks of 2 and 1; 5 seeds are blocks of 3. Doses, records on the disk."""
    doses = [*SETTINGS, "--doses", "[.5,.8]", "--records_on", "disk", "--steps", 20]
    for name, argv in (("grown", (*doses, "--seeds", "[4,9,2]")), ("grown", ("--seeds", "[4,9,2,11,0]", "--resume")),
                       ("whole", (*doses, "--seeds", "[4,9,2,11,0]"))):  # fmt: skip
        lines_of(end(start(*argv, "--out", tmp_path / name, env=TWO_DEVICES), timeout=900))
    found, wanted = arrays(tmp_path / "grown"), arrays(tmp_path / "whole")
    assert found["seeds"].tolist() == [4, 9, 2, 11, 0] * 2
    assert found["dose"].tolist() == [0.5] * 5 + [0.8] * 5
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        if np.issubdtype(array.dtype, np.floating):
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
        else:
            assert (found[name] == array).all(), name
    assert not list((tmp_path / "grown").glob("*.part"))


@pytest.mark.slow
def test_a_killed_growth_resumes(half, whole, tmp_path):
    """Killed while it trains the appended seeds, and once more after config.yaml grew but run.json did not."""
    out = shutil.copytree(half, tmp_path / "run")
    config = (out / "config.yaml").read_text()
    assert "seeds: 32\n" in config
    (out / "config.yaml").write_text(re.sub("^seeds: 32$", "seeds: 64", config, flags=re.MULTILINE))
    process = start("--out", out, "--resume", env=ONE_DEVICE)
    assert wait_until(lambda: list((out / "checkpoints" / "part-2").glob("[0-9]*")), process, 900), end(process).err
    process.kill()
    end(process)
    assert RunDirectory.state(out) == "unfinished"
    assert manifest.read(out).parts == (32, list(range(32, 64)))
    go(out, "--resume")
    assert_same_bits(out, whole)


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    """A run that went through two looks, since its short training decides next to nothing."""
    out = tmp_path_factory.mktemp("decided") / "run"
    printed = go(out, *SETTINGS, "--until", "decided", "--max_seeds", 96)
    assert any("undecided with 64 seeds: going on to 96" in line for line in printed)
    assert any(line.startswith("look 2 of 2, 96 seeds: step 60 of 60") for line in printed)
    return out


@pytest.mark.slow
def test_a_lost_part_does_not_change_the_seeds_of_others(half, tmp_path):
    """Three parts, of which the second has lost its checkpoint: the third keeps its seeds and its models."""
    out = shutil.copytree(half, tmp_path / "run")
    for seeds in (33, 34):
        go(out, "--resume", "--seeds", seeds)
    listed, settings = settings_of_run(out)
    every, said = build_ensemble(settings), []
    seeds, step, params, _ = restored_parts(listed, every, out, said.append)
    assert (seeds, said) == (list(range(34)), [])
    shutil.rmtree(out / "checkpoints" / "part-2")
    kept, same_step, fewer, _ = restored_parts(listed, every, out, said.append)
    assert (kept, same_step) == ([*range(32), 33], step)
    assert said == [f"{out}: seed 32 left out: no checkpoint at step {step} in checkpoints/part-2"]
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(np.delete(one, 32, axis=0), other), params, fewer)


@pytest.mark.slow
def test_looks_end_at_max_seeds(decided, whole):
    found = results(decided)
    assert found["looks"] == {"planned": [64, 96], "done": [64, 96]}
    assert found["seeds"] == list(range(96))
    by_verdict = {row["verdict"]: row for row in found["claims"]}
    assert by_verdict["undecided"]["look"] == 96
    assert {row["look"] for row in found["claims"] if row["verdict"] != "undecided"} <= {64, 96}
    # The seeds of the first look are those of a run of 64 seeds.
    for name, array in arrays(whole).items():
        if array.ndim >= 3:
            assert arrays(decided)[name][:, :64].tobytes() == array.tobytes(), name
    page = (decided / "report.html").read_text()
    assert "planned at 64, 96 seeds, each with 0.5 of .05; done at 64, 96" in page


@pytest.mark.slow
def test_interrupted_looks_resume_to_the_same_result(decided, tmp_path):
    """Killed in the first look, and stopped by Ctrl-C in the second."""
    out, argv = tmp_path / "run", [*SETTINGS, "--until", "decided", "--max_seeds", 96]
    for folder, sent in (("checkpoints", signal.SIGKILL), ("checkpoints/part-2", signal.SIGINT)):
        process = start(*argv, "--out", out, *["--resume"] * out.exists(), env=ONE_DEVICE)
        assert wait_until(lambda folder=folder: list((out / folder).glob("[0-9]*")), process, 900)
        process.send_signal(sent)
        ended = end(process)
        assert "Traceback" not in ended.err
        assert RunDirectory.state(out) == "unfinished"
    go(out, "--resume")
    assert steps(out)[-1] == 61
    assert_same_bits(out, decided)
    assert results(out) == results(decided)


@pytest.mark.slow
def test_untying_grows(tmp_path):
    argv = ["--bits", 3, "--steps", 20, "--record_every", 10, "--exact_every", 10, "--half_period", 5, "--policies", "[copy]"]
    for more in (["--seeds", 2], ["--seeds", 3, "--resume"]):
        lines_of(run_here(UNTYING, *argv, *more, "--out", tmp_path / "run"))
    found = results(tmp_path / "run")
    assert (found["seeds"], found["looks"]) == ([0, 1, 2], {"planned": [2, 3], "done": [2, 3], "appended": True})
    assert {row["n"] for row in found["claims"]} == {3}


REFUSED = {
    "both": ("--until decided --max_seeds 128 --seeds 64", "--seeds", "no number of seeds with --until decided", "64"),
    "no maximum": ("--until decided", "--until", "needs --max_seeds"),
    "beyond the list": ("--until decided --seeds [5,6] --max_seeds 3", "--max_seeds", "at most 2", "3"),
    "none": ("--until decided --max_seeds 0", "--max_seeds", ">= 1", "0"),
    "without until": ("--max_seeds 9", "--max_seeds", "only applies with --until decided"),
    "other word": ("--until done --max_seeds 9", "--until", "decided", "done"),
    "repeated": ("--until decided --seeds [5,5]", "--seeds", "5 is repeated"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_looks_are_refused(refused, name):
    line, *words = REFUSED[name]
    refused(line.split(), *words)


@pytest.mark.parametrize(
    ("seeds", "line", "words"),
    [
        ([3, 7], "--seeds [7,3,1]", ("seeds: [3, 7] -> [7, 3, 1]", "seeds can only be appended")),
        (4, "--seeds 3", ("seeds: 4 -> 3", "seeds can only be appended")),
        (4, "--seeds [0,1,2,3] --steps 7", ("(steps: 50 -> 7)",)),
        (4, "--until decided --max_seeds 64", ("until: None -> decided",)),
        (4, "--seeds [0,1,2,3,3]", ("3 is repeated",)),
    ],
)
def test_only_appended_seeds_are_accepted(here, refused, seeds, line, words):
    make_run(here / "run", steps=50, seeds=seeds)
    refused(["--out", "run", "--resume", *line.split()], *words)


def test_looks_of_a_run_do_not_change(here, refused):
    make_run(here / "run", until="decided", max_seeds=200)
    for line in ("--max_seeds 300", "--seeds 300", "--seeds [1,2]"):
        refused(["--out", "run", "--resume", *line.split()], "other settings")
    assert read("--out", "run", "--resume").looks == [64, 128, 200]


@pytest.mark.parametrize(
    ("fields", "looks", "seeds"),
    [
        ({"max_seeds": 1024}, [64, 128, 256, 512, 1024], range(1024)),
        ({"max_seeds": 1500}, [64, 128, 256, 512, 1024, 1500], range(1500)),
        ({"max_seeds": 64}, [64], range(64)),
        ({"max_seeds": 5}, [5], range(5)),
        ({"seeds": list(range(1000, 1256)), "max_seeds": 100}, [64, 100], range(1000, 1100)),
        ({"seeds": [8, 6]}, [2], [8, 6]),
    ],
)
def test_looks_are_cut_at_the_largest_number_of_seeds(fields, looks, seeds):
    settings = Settings(until="decided", **fields).resolved()
    assert (settings.looks, settings.seed_list) == (looks, list(seeds))
    assert settings.resolved() == settings
    assert Settings().resolved().looks == []


def test_joining_records_on_the_disk_is_counted():
    plain = need(Settings(records_on="disk", seeds=128, exact_every=500).resolved())
    looks = need(Settings(records_on="disk", until="decided", max_seeds=128, exact_every=500).resolved())
    numbers = 2 * 128 * record_bytes(Settings(exact_every=500).resolved())
    assert looks == plain._replace(disk=plain.disk + numbers)


def test_the_time_left_covers_the_parts_that_may_follow(capsys):
    clock = iter(range(0, 10_000, 100))
    console = Console(clock=lambda: next(clock))
    console.progress(50, 100, 50 / 60, 4, "look 1 of 2, 64 seeds", later=2.0)
    console.progress(100, 100, 100 / 120, 4, "look 2 of 2, 192 seeds")
    first, second = capsys.readouterr().out.splitlines()
    # 50 steps in 60 s: 60 s for this look, and twice 120 s for the next.
    assert first.startswith("look 1 of 2, 64 seeds: step 50 of 100")
    assert first.endswith("1 min 00 s left  at most 5 min 00 s left in all")
    assert "in all" not in second


def test_digests_of_parts_do_not_change_when_seeds_are_appended(here):
    """A checkpoint of the first part stays valid, and none is taken for that of another part."""
    path = make_run(here / "run", finished=True, seeds=4, steps=50)
    before = manifest.read(path)
    for seeds in (6, [0, 1, 2, 3, 4, 5, 9]):
        run = RunDirectory.reserve(STUDY, read("--out", "run", "--resume", "--seeds", str(seeds)), True, False)
        run.release()
    now = manifest.read(path)
    assert now.parts == (4, [4, 5], [9])
    assert now.settings["seeds"] == [0, 1, 2, 3, 4, 5, 9]
    assert now.identity_in("checkpoints") == before.identity_in("checkpoints")
    folders = ["checkpoints", "checkpoints/part-2", "checkpoints/part-3"]
    assert len({now.identity_in(folder, part) for part, folder in enumerate(folders)}) == 3
    assert "results.json" in before.files
    assert "results.json" not in now.files
    with pytest.raises(BadInput, match="other settings"):
        read("--out", "run", "--resume", "--seeds", "6")


def test_settings_that_are_newer_than_a_run_have_their_defaults(here):
    path = make_run(here / "run", seeds=4, steps=50)
    before = manifest.read(path)
    without = {name: value for name, value in before.settings.items() if name not in ("until", "output_bias")}
    manifest.Manifest("exor", without).write(path)
    settings = read("--out", "run", "--resume")
    assert RunDirectory.reserve(STUDY, settings, True, False).manifest.settings == without
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("output_bias: false", "output_bias: true"))
    with pytest.raises(BadInput, match="output_bias: False -> True"):
        RunDirectory.reserve(STUDY, read("--out", "run", "--resume"), True, False)


def test_a_manifest_with_other_parts_than_seeds_is_damaged(here):
    path = make_run(here / "run", seeds=4)
    found = manifest.read(path)
    for parts in ((True,), ([1.5],), ("4",)):
        manifest.Manifest(found.study, found.settings, parts=parts).write(path)
        with pytest.raises(manifest.NoManifest, match="damaged"):
            manifest.read(path)


def test_the_page_names_looks_and_appended_seeds():
    claims = [
        {"id": "a", "family": "registered", "verdict": "supported", "look": 64, "estimate": 0.5},
        {"id": "b", "family": "registered", "verdict": "undecided", "look": 128, "estimate": None},
        {"id": "c", "family": "exploratory", "verdict": "exploratory", "look": 128, "estimate": 1.0},
    ]
    looks = {"planned": [64, 128, 256, 512], "done": [64, 128]}
    ((headings, rows),) = looks_table({"looks": looks, "claims": claims}).values()
    assert headings == ["claim", "decided at", "verdict"]
    assert rows == [["a", "64 seeds", "supported"], ["b", "not decided", "undecided"]]
    words = "planned at 64, 128, 256, 512 seeds, each with 0.25 of .05; done at 64, 128"
    assert parts_words({"looks": looks}) == {"looks": words}
    words = (
        "at 2, 5 seeds, each with 0.5 of .05: seeds were appended to a finished run, or runs were joined, whose claims had "
        "been tested"
    )
    assert parts_words({"looks": {"planned": [2, 5], "done": [2, 5], "appended": True}}) == {"looks": words}
    assert parts_words({"seeds_by_part": [2, 3, 4]})["appended"].startswith(
        "3, then 4 seeds, to a run of 2, or by joining runs."
    )
    assert parts_words({}) == looks_table({"claims": claims}) == {}
