"""Runs that are killed, stopped or have damaged checkpoints end bit for bit like an uninterrupted run.

Runs that are neither killed nor stopped train in this process, on one device, as the other processes do. All share a cache of
compiled programs. The uninterrupted run fills it and the others read it, so that equal results also show that a cached
executable computes the same bits.
"""

import json
import re
import shutil
import signal

import filelock
import numpy as np
import pytest
from damage import flip_a_bit_that_matters, largest, steps
from processes import assert_refused, command_here, end, run_here, start, tree, wait_until

from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import STUDY

pytestmark = pytest.mark.slow

# Dense records make short chunks with a checkpoint after each, so that a kill can hit many states.
SETTINGS = ["--seeds", 2, "--steps", 1200, "--bits", 5, "--zero", "[.2,.3,.5]", "--record_every", 10]
SETTINGS += ["--exact_every", 100, "--half_period", 300, "--checkpoint_every", 0.01]

ONE_DEVICE = {"JAX_NUM_CPU_DEVICES": "1"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    ended = run_here(STUDY, *SETTINGS, "--out", out)
    assert (ended.status, ended.err) == (0, "")
    results = json.loads((out / "results.json").read_text())
    assert (results["variant"], results["seeds"], results["excluded_seeds"]) == ("custom", [0, 1], [])
    with np.load(out / "metrics.npz") as metrics:
        assert metrics["step"].tolist() == list(range(0, 1201, 10))
        assert metrics["exact_step"].tolist() == list(range(0, 1201, 100))
    return out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, uninterrupted):
    """The same run, stopped by Ctrl-C when it has two checkpoints, and its output."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    process = start(*SETTINGS, "--out", out, env=ONE_DEVICE)
    assert wait_until(lambda: len(steps(out)) > 1, process)
    process.send_signal(signal.SIGINT)
    ended = end(process)
    assert not (out / "results.json").exists()
    return out, ended


@pytest.fixture
def copy(stopped, tmp_path):
    """A copy of the stopped run."""
    return shutil.copytree(stopped[0], tmp_path / "run")


def assert_same_result(out, other):
    """Assert that all arrays are equal in every bit, and all results except times."""
    with np.load(out / "metrics.npz") as metrics, np.load(other / "metrics.npz") as expected:
        assert metrics.files == expected.files
        for name in expected.files:
            assert metrics[name].dtype == expected[name].dtype, name
            assert metrics[name].shape == expected[name].shape, name
            assert metrics[name].tobytes() == expected[name].tobytes(), name
    results, wanted = (json.loads((path / "results.json").read_text()) for path in (out, other))
    assert results.pop("timing").keys() == wanted.pop("timing").keys()
    assert results == wanted
    assert (out / "report.html").exists()


def resume(out, *settings):
    """Resume a run to its end; return the lines it printed, and then its warnings."""
    ended = run_here(STUDY, *settings, "--out", out, "--resume")
    assert (ended.status, ended.err) == (0, "")
    return [*ended.out.splitlines(), *ended.warnings]


def test_ctrl_c(stopped, copy, uninterrupted):
    out, ended = stopped
    assert ended.status == 130, ended.err
    assert "Traceback" not in ended.err
    printed = [line for line in ended.out.splitlines() if "--resume" in line]
    assert printed == ended.out.splitlines()[-1:]
    assert f"step {steps(out)[-1]:,}" in printed[0]
    printed = resume(copy, *SETTINGS)
    assert f"resuming at step {steps(out)[-1]} of 1200" in printed
    assert_same_result(copy, uninterrupted)


def test_records_can_move_between_disk_and_memory(tmp_path, uninterrupted):
    """Started on disk and killed, resumed in memory and killed, resumed on disk to the end."""
    out, newest = tmp_path / "run", 0
    for kept in ("disk", "memory"):
        process = start(*SETTINGS, "--records_on", kept, "--out", out, *["--resume"] * (newest > 0), env=ONE_DEVICE)
        assert wait_until(lambda newest=newest: max(steps(out), default=0) > newest, process)
        process.kill()
        end(process)
        newest = max(steps(out))
        size = sum(path.stat().st_size for path in (out / "checkpoints" / "records").iterdir())
        assert size > 0
    printed = resume(out, "--records_on", "disk")
    assert f"resuming at step {newest} of 1200" in printed
    assert [line for line in printed if "damaged" in line] == []
    assert_same_result(out, uninterrupted)
    assert sum(path.stat().st_size for path in (out / "checkpoints" / "records").iterdir()) > size
    with np.load(out / "metrics.npz") as metrics:
        assert (out / "checkpoints" / "records" / "record.step").read_bytes() == metrics["step"].tobytes()


def test_a_run_killed_while_it_writes_its_report(tmp_path, uninterrupted):
    out = shutil.copytree(uninterrupted, tmp_path / "run")
    (out / "results.json").unlink()
    (out / "report.html").unlink()
    (out / "metrics.npz").write_bytes(b"half of it")
    resume(out)
    assert_same_result(out, uninterrupted)


def test_a_damaged_figure_that_is_no_longer_drawn_leaves_the_run(tmp_path, uninterrupted):
    """As in a run of an earlier version: it is not written again, and the run is whole without it."""
    out, old = shutil.copytree(uninterrupted, tmp_path / "run"), "figures/old.png"
    RunDirectory(out, filelock.FileLock(tmp_path / "lock"), RunDirectory.opened(out)).write(old, b"a figure")
    (out / old).write_bytes(b"half")
    assert f"warning: damaged or missing, to be written again: {old} in {out}" in resume(out)
    assert not (out / old).exists()
    assert RunDirectory.damage(out) == []
    assert_same_result(out, uninterrupted)


def test_damaged_newest_checkpoint_of_a_run(copy, uninterrupted):
    before, newest = steps(copy)
    flip_a_bit_that_matters(copy / "checkpoints", newest)
    few, *warnings = [line for line in resume(copy) if line.startswith("warning")]
    assert few == "warning: --seeds: 2 seeds cannot decide any claim; that takes at least 6"
    assert len(warnings) == 1
    assert f"{copy / 'checkpoints' / str(newest)} is damaged (" in warnings[0]
    assert "using the previous one" in warnings[0]
    assert_same_result(copy, uninterrupted)
    assert before < newest
    assert [entry.name for entry in (copy / "damaged").iterdir()] == [str(newest)]


def test_checkpoints_of_a_run_of_other_seeds_are_refused(copy, tmp_path):
    """Their arrays have the same shapes; the digest of settings and text tells them apart."""
    other = tmp_path / "other"
    process = start(*SETTINGS, "--seeds", "[5,6]", "--out", other, env=ONE_DEVICE)
    assert wait_until(lambda: len(steps(other)) > 1, process)
    process.kill()
    end(process)
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree(other / "checkpoints", copy / "checkpoints")
    before = {name: what for name, what in tree(copy).items() if name.startswith("checkpoints")}
    with pytest.raises(BadInput, match=r"^.*belongs to another run \(other settings or another text\).*$"):
        run_here(STUDY, "--out", copy, "--resume")
    assert {name: what for name, what in tree(copy).items() if name.startswith("checkpoints")} == before


def test_a_finished_run_that_cannot_be_restored_reports_that(tmp_path, uninterrupted):
    out = shutil.copytree(uninterrupted, tmp_path / "run")
    (out / "metrics.npz").unlink()
    shutil.rmtree(out / "checkpoints")
    message = f"--resume: the run in {out} has finished, and its last checkpoint, from which its files could be written again, "
    with pytest.raises(BadInput, match=f"^{re.escape(message)}is missing.*$"):
        run_here(STUDY, "--out", out, "--resume")


def test_all_checkpoints_of_a_run_damaged(copy, uninterrupted):
    damaged = steps(copy)
    for step in damaged:
        largest(copy / "checkpoints" / str(step)).unlink()
    printed = resume(copy, *SETTINGS)
    assert len([line for line in printed if "is damaged" in line]) == len(damaged) == 2
    assert len([line for line in printed if "starting at step 0" in line]) == 1
    assert_same_result(copy, uninterrupted)


def test_resume_with_other_settings_changes_nothing(copy, monkeypatch, capsys):
    before = tree(copy)
    argv = [str(word) for word in SETTINGS]
    ended = command_here([*argv, "--steps", "3000", "--max_norm", "1", "--out", str(copy), "--resume"], monkeypatch, capsys)
    assert_refused(ended, str(copy), "(steps: 1200 -> 3000; max_norm: None -> 1.0)")
    assert tree(copy) == before
