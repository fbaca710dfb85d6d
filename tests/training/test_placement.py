"""Placement: members on several devices train as on one, and functions are mapped over members."""

import numpy as np
import optax
import pytest
from processes import end, start_python

from tiejax import training, tying
from tiejax.training.placement import member_map

# Leaves that are split over the devices (tables, kernel), and leaves that are replicated (bias, too small to split).
TRAIN = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tiejax import training, tying
jax.config.update("jax_enable_x64", True)
TIE, DEVICES, STEPS = tying.Tie("input/table", "output/table"), int(sys.argv[2]), 20

def init(key, stored=False):
    table, kernel, bias, third = jax.random.split(key, 4)
    params = {
        "input": {"table": jax.random.normal(table, (128, 40))},
        "output": {"table": jax.random.normal(third, (128, 40)) / 8, "bias": jax.random.normal(bias, (128,))},
        "kernel": jax.random.normal(kernel, (40, 120)) / 8,
    }
    return tying.store(params, [TIE]) if stored else params

def loss(params, rows, key, stored=False):
    params = tying.view(params, [TIE]) if stored else params
    states = jnp.tanh(params["input"]["table"][rows[:, 0]] @ params["kernel"])[:, :40]
    scores = states @ params["output"]["table"].T + params["output"]["bias"]
    nats = -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(scores), rows[:, 1:], axis=1))
    return nats / 8, {}

def sample(seed_key, step, fed):
    rows = jax.random.randint(jax.random.fold_in(seed_key.key, step), (8, 2), 0, 128)
    part = 0 if DEVICES == 1 else jax.lax.axis_index(training.DATA)
    return jax.lax.dynamic_slice_in_dim(rows, part * (8 // DEVICES), 8 // DEVICES)

def ensemble(stored, max_norm, members=training.Vmapped()):
    def measure(params, batch, seed_key, step):
        value = loss(params, batch, None, stored)[0]
        return {"loss": value if DEVICES == 1 else training.total(value), "finite": training.all_finite(params)}

    return training.Ensemble(
        init=lambda key: init(key, stored),
        sample=sample,
        loss=lambda params, batch, key: loss(params, batch, key, stored),
        optimizer=optax.sgd(0.05, momentum=0.9),
        ties=[] if stored else [TIE],
        arm_ties=np.zeros((1, 0), bool) if stored else np.array([[False], [True]]),
        steps=STEPS,
        recorders={"record": training.Recorder(4, measure)},
        max_norm=max_norm,
        members=members,
        devices=DEVICES,
    )

found = {}
for name, case in {
    "switched": ensemble(False, 0.7),
    "unrolled": ensemble(False, 0.7, training.Unrolled()),
    "scanned": ensemble(False, 0.7, training.Scanned()),
    "stored": ensemble(True, 0.7),
    "free": ensemble(False, None),
}.items():
    members, records = training.train(case, [3, 4])[:2]
    for path, leaf in jax.tree_util.tree_leaves_with_path(members.state.params):
        found[name + jax.tree_util.keystr(path)] = leaf
    found[name + "/loss"] = records["record"]["loss"]
np.savez(sys.argv[1], **found)
"""


def trained(file, devices):
    ended = end(start_python("-c", TRAIN, file, devices, env={"JAX_NUM_CPU_DEVICES": str(devices)}))
    assert ended.status == 0, ended.err
    with np.load(file) as found:
        return dict(found)


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("one") / "found.npz", 1)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("two") / "found.npz", 2)


@pytest.mark.slow
def test_clipped_members_on_two_devices_equal_those_on_one(on_one, on_two):
    """Tables are split, the bias is replicated: in float64, 20 clipped steps agree to 1e-12."""
    assert on_one.keys() == on_two.keys()
    for name, values in on_one.items():
        np.testing.assert_allclose(on_two[name], values, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("found", ["on_one", "on_two"])
def test_stored_tie_is_clipped_like_switched_tie(found, request):
    found = request.getfixturevalue(found)
    for leaf in ("['input']['table']", "['output']['bias']", "['kernel']"):
        tied = found[f"switched{leaf}"][:, 1]
        np.testing.assert_allclose(found[f"stored{leaf}"][:, 0], tied, rtol=1e-12, atol=1e-12, err_msg=leaf)
    assert "stored['output']['table']" not in found
    np.testing.assert_array_equal(found["switched['output']['table']"][:, 1], found["switched['input']['table']"][:, 1])


@pytest.mark.slow
def test_clipping_has_an_effect(on_one):
    """Otherwise the other tests would not test clipping: without it, every arm ends with different parameters."""
    kernel = "['kernel']"
    assert (np.abs(on_one[f"switched{kernel}"] - on_one[f"free{kernel}"]).max(axis=(2, 3)) > 1e-3).all()


def test_transposes_need_one_device_per_member():
    with pytest.raises(ValueError, match="ties that move entries, such as a transpose, need one device per member"):
        training.Ensemble(
            init=lambda key: {},
            sample=lambda seed_key, step, fed: None,
            loss=lambda params, batch, key: (0.0, {}),
            optimizer=optax.sgd(0.1),
            ties=[tying.Tie("a", "b", transform="transpose")],
            arm_ties=np.array([[True]]),
            steps=1,
            recorders={},
            devices=2,
        )


def test_member_map_against_numpy():
    """Three seeds, of which the padding to all devices is dropped."""
    rng = np.random.default_rng(0)
    members = {"a": rng.standard_normal((3, 2, 4)).astype(np.float32), "b": rng.standard_normal((3, 2)).astype(np.float32)}
    shared = {"x": np.arange(4, dtype=np.float32)}
    found = member_map(lambda member, shared: {"y": member["a"] @ shared["x"] + member["b"]})(members, shared)
    np.testing.assert_allclose(found["y"], members["a"] @ shared["x"] + members["b"], rtol=1e-6)
    assert isinstance(found["y"], np.ndarray)
