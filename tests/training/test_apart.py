"""Members as arrays of their own: each is the member that its place says, and no step of unrolled ones joins them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import training
from tiejax.training.apart import apart, apart_on_host, together, together_from_host

SEEDS, ARMS = 4, 3
STATE = {
    "table": np.arange(SEEDS * ARMS * 10, dtype=np.float32).reshape(SEEDS, ARMS, 5, 2),
    "step": np.arange(SEEDS * ARMS, dtype=np.int32).reshape(SEEDS, ARMS),
}


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_every_device_has_the_next_seeds(devices):
    members = apart_on_host(STATE, devices)
    assert [len(members), len(members[0])] == [SEEDS // devices, ARMS]
    for device in range(devices):
        for place in range(SEEDS // devices):
            for arm in range(ARMS):
                seed = device * (SEEDS // devices) + place
                for name, leaf in members[place][arm].items():
                    np.testing.assert_array_equal(leaf[device], STATE[name][seed, arm])
    jax.tree.map(np.testing.assert_array_equal, together_from_host(members), STATE)


def test_on_a_device_they_are_taken_apart_and_put_together():
    members = apart(jax.tree.map(jnp.asarray, STATE))
    np.testing.assert_array_equal(members[3][1]["table"], STATE["table"][3, 1])
    assert int(members[2][0]["step"]) == STATE["step"][2, 0]
    jax.tree.map(np.testing.assert_array_equal, together(members), STATE)


def ensemble(members):
    """Rows of a table move towards targets: p -= .1 (p - target), so that after t steps p = target + .9^t (p_0 - target)."""
    return training.Ensemble(
        init=lambda key: {"table": jax.random.normal(key, (37, 11))},
        sample=lambda seed_key, step, fed: seed_key.condition,
        loss=lambda params, batch, key: (jnp.sum((params["table"] - batch) ** 2) / 2, {}),
        optimizer=optax.sgd(0.1),
        ties=[],
        arm_ties=np.zeros((2, 0), bool),
        steps=7,
        recorders={"record": training.Recorder(3, lambda params, *_: {"first": params["table"][0, 0]})},
        members=members,
    )


def test_no_step_of_unrolled_members_makes_an_array_of_several():
    """Where one is made, as of vmapped ones, the compiled text has the shape of two arms; so has nothing here."""
    found = {}
    for members in ("vmapped", "unrolled"):
        made = ensemble(members)
        runner = training.compile_ensemble(made, [3, 5], made.start([3, 5]))
        found[members] = re.findall(r"f32\[(?:\d+,)?2,37,11\]", runner.executable.as_text())
    assert found["vmapped"]
    assert not found["unrolled"]


def test_unrolled_members_train_to_where_they_must():
    made = ensemble("unrolled")
    trained = training.train(made, [3, 5], conditions=[1, 2])
    start = np.asarray(made.start([3, 5]).state.params["table"])
    target = np.array([1, 2])[:, None, None, None]
    np.testing.assert_allclose(trained.members.state.params["table"], target + 0.9**7 * (start - target), rtol=0, atol=1e-6)
    steps = trained.records["record"]["step"]
    assert steps.tolist() == [0, 3, 6, 7]
    wanted = target[..., 0, 0] + 0.9 ** steps[:, None, None] * (start[..., 0, 0] - target[..., 0, 0])
    np.testing.assert_allclose(trained.records["record"]["first"], wanted, rtol=0, atol=1e-6)


def test_what_unrolled_members_do_not_have_is_refused():
    with pytest.raises(ValueError, match="unrolled"):
        training.Ensemble(**{**vars(ensemble("unrolled")), "at_once": 1})
