"""A member sharded over several devices or processes gives the results of one device."""

import socket

import numpy as np
import pytest
from processes import TEXT_SCRIPT, end, start, start_python
from text_runs import arguments, metrics

pytestmark = pytest.mark.slow

# About 37 packed rows, a number that the devices do not divide.
EQUAL = ["--batch_size", "60", "--learning_rate", ".001"]
MEMBERS = """
import sys
import jax
import numpy as np
from tiejax import training
from tiejax.lab.runs import resume
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble, named_arrays
from tiejax.lab.studies.text_mlm.settings import STUDY
from tiejax.lab.studies.text_mlm.text import prepare
settings = resume.read(STUDY, sys.argv[2:]).settings
text, plan = prepare(settings, Console(quiet=True))
jax.config.update("jax_default_matmul_precision", "highest")
ensemble = build_ensemble(settings, text, plan)
members, records = training.train(ensemble, settings.seed_list)[:2]
table = np.asarray(members.state.params["embed"]["embedding"])
runner = training.compile_ensemble(ensemble, settings.seed_list, members)
placed = runner.to_devices(members).state[0][0].params["embed"]["embedding"]
part = placed.sharding.shard_shape(placed.shape)
np.savez(sys.argv[1], mesh=plan.mesh, rows=plan.rows, table=table, part=part, **named_arrays(records, settings, text))
"""


def on_devices(data, devices, *more):
    out = data / f"on_{devices}_{'_'.join(map(str, more)).replace('-', '').replace('/', '')}.npz"
    argv = arguments(data, "--steps", 50, *EQUAL, "--out", data / "nothing", *more)
    ended = end(start_python("-c", MEMBERS, out, *argv, env={"JAX_NUM_CPU_DEVICES": str(devices)}))
    assert ended.status == 0, ended.err
    with np.load(out) as found:
        return dict(found)


@pytest.fixture(scope="session")
def on_one_device(data):
    return on_devices(data, 1, "--seeds", 1, "--mesh", 1)


def assert_close(ours, wanted):
    for name in ("train_loss", "validation_loss", "validation_accuracy", "distance_input", "distance_output", "table", "step"):
        np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_eight_devices_train_one_member_as_one_does(data, on_one_device):
    """Rows, parameters and optimizer state in eight shards: results agree to 1e-5 after 50 steps."""
    one = on_one_device
    eight = on_devices(data, 8, "--seeds", 1, "--mesh", 8)
    assert (int(one["mesh"]), int(eight["mesh"])) == (1, 8)
    assert int(eight["rows"]) == int(one["rows"])
    assert np.prod(eight["part"]) * 8 == np.prod(one["part"])
    assert_close(eight, one)


def test_two_processes_work_as_one(data, on_one_device):
    """Two processes with one device each train every member on half of its rows, and the first writes the run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = data / "together"
    argv = arguments(data, "--seeds", 1, "--steps", 50, *EQUAL, "--out", out)

    def process(number):
        where = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
        return start(*argv, script=TEXT_SCRIPT, env={**where, "JAX_NUM_CPU_DEVICES": "1"})

    ended = [end(one) for one in [process(0), process(1)]]
    assert [one.status for one in ended] == [0, 0], ended
    assert [line for line in ended[1].out.splitlines() if "Gloo" not in line] == []
    assert "2 per member" in ended[0].out
    one, ours = on_one_device, metrics(out)
    for name in ("train_loss", "validation_loss", "distance_input", "distance_output", "step"):
        np.testing.assert_allclose(ours[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
