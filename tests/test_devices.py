"""Any number of devices, and several real processes: the same batches, the same results."""

import json
import os
import signal
import socket

import numpy as np
import pytest
from processes import SCRIPT, end, start, start_python, wait_until

SETTINGS = ["--seeds", 3, "--steps", 500, "--record_every", 50, "--exact_every", 100, "--half_period", 200]

# Writes each step's batch of every seed, as it was drawn on its own device.
BATCHES = """
import dataclasses, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from experiments import exor
from tiejax.training import Recorder, train
config = exor.Config(seeds=3, steps=6, record_every=1, exact_every=6).resolved()
ensemble = exor.build_ensemble(config)
batch = Recorder(1, lambda params, batch, subject, step: batch._asdict())
ensemble = dataclasses.replace(ensemble, recorders={"batch": batch})
np.savez(sys.argv[2], **train(ensemble, config.seed_list).records["batch"])
"""


def on_devices(number):
    return {"JAX_NUM_CPU_DEVICES": str(number)}


def metrics(out):
    with np.load(out / "metrics.npz") as found:
        return dict(found)


def assert_close(out, expected):
    """Losses and distances to rounding, 1e-5, over the whole run."""
    ours, wanted = metrics(out), metrics(expected)
    assert ours.keys() == wanted.keys()
    for name in ("train_loss", "distance_input", "distance_output", "exact_cross_entropy", "step", "seeds"):
        np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run on one device."""
    out = tmp_path_factory.mktemp("alone") / "run"
    ended = end(start(*SETTINGS, "--out", out, env=on_devices(1)))
    assert ended.status == 0, ended.err
    assert metrics(out)["train_loss"].shape == (2, 3, 11)
    return out


@pytest.mark.parametrize("number", [2, 4, 8])
def test_results_do_not_depend_on_the_number_of_devices(tmp_path, alone, number):
    """Three seeds divide none of these numbers: the padding is dropped."""
    ended = end(start(*SETTINGS, "--out", tmp_path / "run", env=on_devices(number)))
    assert ended.status == 0, ended.err
    assert f"{number} x cpu" in ended.out
    assert_close(tmp_path / "run", alone)


def test_batches_do_not_depend_on_the_number_of_devices(tmp_path):
    drawn = []
    for number in (1, 4):
        file = tmp_path / f"{number}.npz"
        ended = end(start_python("-c", BATCHES, SCRIPT.parents[1], file, env=on_devices(number)))
        assert ended.status == 0, ended.err
        with np.load(file) as found:
            drawn.append(dict(found))
    assert drawn[0]["counts"].shape[:3] == (7, 3, 2)  # [step, seed, variant, ...]
    for name in ("counts", "asked"):
        assert drawn[0][name].tobytes() == drawn[1][name].tobytes()
        # The pair of a seed shares its batch, seeds and steps do not.
        np.testing.assert_array_equal(drawn[0][name][:, :, 0], drawn[0][name][:, :, 1])
    asked = drawn[0]["asked"]
    assert (asked[:, 0] != asked[:, 1]).any()
    assert (asked[0] != asked[1]).any()


def cluster(number, out, *argv):
    """Start the processes of one run, with two devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return [
        start(
            *argv,
            "--out",
            out,
            env={
                **on_devices(2),
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(number),
                "JAX_PROCESS_ID": str(process),
            },
        )
        for process in range(number)
    ]


def test_two_processes_are_one_run(tmp_path, alone):
    first, second = (end(process) for process in cluster(2, tmp_path / "run", *SETTINGS))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "4 x cpu" in first.out
    assert [line for line in second.out.splitlines() if not line.startswith("[Gloo]")] == []
    assert_close(tmp_path / "run", alone)


def test_bad_input_ends_every_process(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").write_text("else")
    first, second = (end(process) for process in cluster(2, tmp_path / "run", *SETTINGS))
    assert (first.status, second.status) == (2, 2)
    assert "holds files but no run" in first.err
    assert "the first process refused" in second.err


def test_distributed_without_a_cluster_says_what_is_missing(tmp_path):
    ended = end(start("--distributed", "--out", tmp_path / "run"))
    assert ended.status == 2
    assert "JAX_COORDINATOR_ADDRESS" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_that_dies_stops_the_other_and_the_run_resumes_on_other_devices(tmp_path, alone, dies):
    out = tmp_path / "run"
    longer = [*SETTINGS, "--checkpoint_every", "0.01"]
    processes = cluster(2, out, *longer)
    folder = out / "checkpoints"
    assert wait_until(lambda: folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir()), processes[0])
    os.kill(processes[dies].pid, signal.SIGKILL)
    other = end(processes[1 - dies], timeout=60)
    assert end(processes[dies]).status == -signal.SIGKILL
    assert other.status != 0
    assert "another process of this run has ended" in other.err
    assert not (out / "results.json").exists()
    resumed = end(start(*longer, "--out", out, "--resume", env=on_devices(3)))
    assert resumed.status == 0, resumed.err
    assert "resuming at step" in resumed.out
    assert_close(out, alone)
    assert json.loads((out / "results.json").read_text())["seeds"] == [0, 1, 2]
