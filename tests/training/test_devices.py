"""Runs on several devices and in several processes: the same batches and results as on one device."""

import functools
import json
import os
import shutil
import signal

import numpy as np
import pytest
from processes import end, processes_of_one_run, start, start_python, wait_until

pytestmark = pytest.mark.slow

SETTINGS = ["--seeds", 3, "--steps", 500, "--record_every", 50, "--exact_every", 100, "--half_period", 200]

# The same training, which also records the batch of every 100th step; writes the arrays of metrics.npz and the batches.
RUN = """
import dataclasses, sys
import numpy as np
from tiejax.lab.studies.exor.ensemble import build_ensemble, named_arrays
from tiejax.lab.studies.exor.settings import Settings
from tiejax.training import Recorder, train
settings = Settings(seeds=3, steps=500, record_every=50, exact_every=100, half_period=200).resolved()
ensemble = build_ensemble(settings)
batch = Recorder(100, lambda params, batch, seed_key, step: batch._asdict())
ensemble = dataclasses.replace(ensemble, recorders={**ensemble.recorders, "batch": batch})
records = train(ensemble, settings.seed_list).records
np.savez(sys.argv[1], **records.pop("batch"), **{"run_" + name: a for name, a in named_arrays(records, settings).items()})
"""


def on_devices(number):
    return {"JAX_NUM_CPU_DEVICES": str(number)}


def load(file):
    with np.load(file) as found:
        return dict(found)


def assert_close(ours, wanted, tolerance=1e-5):
    """Compare losses and distances of the whole run, up to rounding."""
    assert ours.keys() == wanted.keys()
    for name in ("train_loss", "distance_input", "distance_output", "exact_cross_entropy", "step", "seeds"):
        np.testing.assert_allclose(ours[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
    """Return the arrays of a run on one device, and its batches."""
    return by_script(tmp_path_factory.mktemp("one"), 1)


def by_script(folder, number):
    ended = end(start_python("-c", RUN, folder / "found.npz", env=on_devices(number)))
    assert ended.status == 0, ended.err
    found = load(folder / "found.npz")
    run = {name.removeprefix("run_"): found.pop(name) for name in list(found) if name.startswith("run_")}
    assert run["train_loss"].shape == (2, 3, 11)
    return run, found


@pytest.mark.parametrize("number", [2, 8])
def test_results_do_not_depend_on_the_number_of_devices(tmp_path, on_one, number):
    """Three seeds fill none of these numbers of devices, so padding is dropped. Batches are bitwise equal."""
    run, batches = by_script(tmp_path, number)
    assert_close(run, on_one[0])
    for name, values in on_one[1].items():
        assert batches[name].tobytes() == values.tobytes(), name


def test_batches_are_shared_by_arms_only(on_one):
    asked = on_one[1]["asked"]  # [record, seed, arm, ...]
    assert asked.shape[:3] == (6, 3, 2)
    np.testing.assert_array_equal(asked[:, :, 0], asked[:, :, 1])
    assert (asked[:, 0] != asked[:, 1]).any()
    assert (asked[0] != asked[1]).any()


def cluster(number, out, *argv, devices=(2, 2)):
    """Start `number` processes of one run; devices: number of devices of each process."""
    return [
        start(*argv, "--out", out, env={**on_devices(devices[process]), **variables})
        for process, variables in enumerate(processes_of_one_run(number))
    ]


def test_two_processes_train_one_run(tmp_path, on_one):
    first, second = (end(process) for process in cluster(2, tmp_path / "run", *SETTINGS))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "4 x cpu" in first.out
    assert [line for line in second.out.splitlines() if not line.startswith("[Gloo]")] == []
    assert_close(load(tmp_path / "run" / "metrics.npz"), on_one[0])


def test_two_processes_train_several_variants(tmp_path):
    out = tmp_path / "run"
    first, second = (end(process) for process in cluster(2, out, *SETTINGS, "--variants", "main,dh"))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert {path.parent.name for path in out.rglob("results.json")} == {"run", "main", "dh"}


def test_bad_input_ends_every_process(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").write_text("else")
    first, second = (end(process) for process in cluster(2, tmp_path / "run", *SETTINGS))
    assert (first.status, second.status) == (2, 2)
    assert "contains files but no run" in first.err
    assert "the first process could not start" in second.err


def test_distributed_without_a_cluster_names_the_missing_variable(tmp_path):
    ended = end(start("--distributed", "--out", tmp_path / "run"))
    assert ended.status == 2
    assert "JAX_COORDINATOR_ADDRESS" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


# Long enough to be still training when a process is killed.
LONGER = ["--seeds", 3, "--steps", 6000, "--record_every", 50, "--exact_every", 3000, "--checkpoint_every", "0.01"]


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """Return the arrays of the longer run, uninterrupted, on one device."""
    out = tmp_path_factory.mktemp("longer") / "run"
    ended = end(start(*LONGER, "--out", out, env=on_devices(1)))
    assert ended.status == 0, ended.err
    return load(out / "metrics.npz")


@pytest.mark.parametrize("dies", [0, 1])
def test_killed_process_stops_the_other_and_the_run_resumes_on_other_devices(tmp_path, longer, dies):
    out = tmp_path / "run"
    processes = cluster(2, out, *LONGER)
    folder = out / "checkpoints"
    assert wait_until(functools.partial(any_step, folder), processes[0])
    os.kill(processes[dies].pid, signal.SIGKILL)
    other = end(processes[1 - dies], timeout=60)
    assert end(processes[dies]).status == -signal.SIGKILL
    assert other.status not in (0, None)
    # Our message, or that of jax's coordination service if it notices first and ends the process.
    assert "another process of this run has ended" in other.err or "another task died" in other.err
    assert not (out / "results.json").exists()
    resumed = end(start(*LONGER, "--out", out, "--resume", env=on_devices(3)))
    assert resumed.status == 0, resumed.err
    assert "resuming at step" in resumed.out
    assert_close(load(out / "metrics.npz"), longer, tolerance=1e-3)
    assert json.loads((out / "results.json").read_text())["seeds"] == [0, 1, 2]


def test_processes_with_different_numbers_of_devices_are_refused(tmp_path):
    first, second = (end(process) for process in cluster(2, tmp_path / "run", *SETTINGS, devices=(1, 2)))
    assert (first.status, second.status) == (2, 2)
    assert "[1, 2] devices" in first.err
    assert not (tmp_path / "run").exists()


def any_step(checkpoints):
    return checkpoints.is_dir() and any(entry.name.isdigit() for entry in checkpoints.iterdir())


def last_line(ended):
    """Return the last line of standard error, without the lines of gloo."""
    return [line for line in ended.err.splitlines() if not line.startswith("[Gloo]")][-1]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return the folder of two runs of different widths, stopped after their first checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    for width in (4, 8):
        out = folder / str(width)
        process = start(*LONGER, "--width", width, "--out", out, env=on_devices(2))
        assert wait_until(functools.partial(any_step, out / "checkpoints"), process)
        process.send_signal(signal.SIGINT)
        assert "stopped at step" in end(process).out
    return folder


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_two_processes_resume_from_the_checkpoint_of_the_first(tmp_path, stopped, longer, place):
    out = shutil.copytree(stopped / "4", tmp_path / "run")
    first, second = (end(process) for process in cluster(2, out, *LONGER, "--width", 4, "--resume", "--records_on", place))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "resuming at step" in first.out
    assert_close(load(out / "metrics.npz"), longer, tolerance=1e-3)


def test_every_process_refuses_a_checkpoint_of_another_run(tmp_path, stopped):
    out = shutil.copytree(stopped / "4", tmp_path / "run")
    shutil.rmtree(out / "checkpoints")
    shutil.copytree(stopped / "8" / "checkpoints", out / "checkpoints")
    both = [end(process) for process in cluster(2, out, *LONGER, "--width", 4, "--resume")]
    assert [ended.status for ended in both] == [2, 2]
    for ended in both:
        assert "error: --resume: checkpoint" in last_line(ended)
        assert "Traceback" not in ended.err
