"""Members: split and joined arrays, unrolled training, and short representations."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import training, tying
from tiejax.training import EnsembleState, Scanned, Unrolled, Vmapped
from tiejax.training.members import join_members, join_on_host, split_members, split_on_host
from tiejax.training.sources import ExampleFeed

SEEDS, ARMS = 4, 3
STATE = {
    "table": np.arange(SEEDS * ARMS * 10, dtype=np.float32).reshape(SEEDS, ARMS, 5, 2),
    "step": np.arange(SEEDS * ARMS, dtype=np.int32).reshape(SEEDS, ARMS),
}


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_split_on_host_deals_seeds_to_devices_in_order(devices):
    members = split_on_host(STATE, devices)
    assert [len(members), len(members[0])] == [SEEDS // devices, ARMS]
    for device in range(devices):
        for place in range(SEEDS // devices):
            for arm in range(ARMS):
                seed = device * (SEEDS // devices) + place
                for name, leaf in members[place][arm].items():
                    np.testing.assert_array_equal(leaf[device], STATE[name][seed, arm])
    jax.tree.map(np.testing.assert_array_equal, join_on_host(members), STATE)


def test_split_and_join_members():
    members = split_members(jax.tree.map(jnp.asarray, STATE))
    np.testing.assert_array_equal(members[3][1]["table"], STATE["table"][3, 1])
    assert int(members[2][0]["step"]) == STATE["step"][2, 0]
    jax.tree.map(np.testing.assert_array_equal, join_members(members), STATE)


def ensemble(members):
    """A table p that moves towards a target: p -= .1 (p - target), so after t steps p = target + .9^t (p_0 - target)."""
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


def test_unrolled_members_are_never_joined_in_a_step():
    """An array of both arms appears by its shape in the compiled text of vmapped members, but not of unrolled ones."""
    found = {}
    for members in (Vmapped(), Unrolled()):
        model = ensemble(members)
        runner = training.compile_ensemble(model, [3, 5], model.start([3, 5]))
        found[type(members)] = re.findall(r"f32\[(?:\d+,)?2,37,11\]", runner.executable.as_text())
    assert found[Vmapped]
    assert not found[Unrolled]


def test_unrolled_members_against_the_closed_form():
    model = ensemble(Unrolled())
    trained = training.train(model, [3, 5], conditions=[1, 2])
    start = np.asarray(model.start([3, 5]).state.params["table"])
    target = np.array([1, 2])[:, None, None, None]
    np.testing.assert_allclose(trained.members.state.params["table"], target + 0.9**7 * (start - target), rtol=0, atol=1e-6)
    steps = trained.records["record"]["step"]
    assert steps.tolist() == [0, 3, 6, 7]
    wanted = target[..., 0, 0] + 0.9 ** steps[:, None, None] * (start[..., 0, 0] - target[..., 0, 0])
    np.testing.assert_allclose(trained.records["record"]["first"], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("members", [Vmapped(), Scanned(), Unrolled()])
def test_all_ways_of_training_give_equal_members(members):
    one, other = (training.train(ensemble(how), [3, 5], conditions=[1, 2]).members for how in (Vmapped(), members))
    np.testing.assert_allclose(one.state.params["table"], other.state.params["table"], rtol=1e-6)


def test_short_representations():
    model = ensemble(Vmapped())
    trained = training.train(model, [3, 5], conditions=[1, 2])
    members = "EnsembleState(seeds=2, arms=2, cursor=8, leaves=1, 0.0 MB)"  # 2 * 2 * 37 * 11 * 4 bytes
    assert repr(trained.members) == members
    assert repr(trained).startswith(f"Trained({members}, records={{'record': '4 records'}}, finished=True, compile_s=")
    assert len(repr(trained)) < 250
    big = EnsembleState(jax.ShapeDtypeStruct((8, 2, 1000, 1000), jnp.float32), jnp.int32(500))
    assert repr(big) == "EnsembleState(seeds=8, arms=2, cursor=500, leaves=1, 64.0 MB)"


def test_representation_of_states_without_arrays():
    """As in error messages of jax, which print trees of shapes, of partition specs, or of traced values."""
    shapes = jax.eval_shape(lambda: ensemble(Vmapped()).start([3]))
    assert repr(shapes) == "EnsembleState(seeds=1, arms=2, cursor=?, leaves=1, 0.0 MB)"
    assert repr(EnsembleState([[{"table": 1.0}]], 0)) == "EnsembleState(leaves=1)"
    traced = []
    jax.jit(lambda members: traced.append(repr(members)))(ensemble(Vmapped()).start([3]))
    assert traced == ["EnsembleState(seeds=1, arms=2, cursor=?, leaves=1, 0.0 MB)"]


@pytest.mark.parametrize("form", [list, tuple])
@pytest.mark.parametrize("members", [Vmapped(), Unrolled()])
def test_a_batch_may_be_a_list(form, members):
    """A list is not taken for split members: every member sees both arrays of its own seed."""
    x = np.arange(8.0, dtype=np.float32)
    ensemble = dataclasses.replace(
        ensemble_of(3),
        sample=lambda seed_key, step, fed: fed,
        loss=lambda params, batch, key: (jnp.sum(params["w"]) * jnp.mean(batch[1] - batch[0]), {}),
        recorders={
            "r": training.Recorder(1, lambda params, batch, *_: {"x": batch[0].mean(), "gap": (batch[1] - batch[0]).mean()})
        },
        source=ExampleFeed(form([x, 100 + x]), 2),
        members=members,
    )
    found = training.train(ensemble, [0, 1]).records["r"]
    np.testing.assert_array_equal(found["gap"], np.full((4, 2, 1), 100))
    chosen = [ensemble.source.open([(seed, 0)], range(1), 1, 0) for seed in (0, 1)]
    expected = [next(windows)[0][0].mean(axis=-1)[:4] for windows in chosen]
    np.testing.assert_allclose(found["x"][..., 0].T, expected)


def ensemble_of(steps):
    """Members that move towards batches of their step, with a record every third step."""

    def loss(params, batch, key):
        value = jnp.sum((params["w"] - batch) ** 2)
        return value, {"loss": value}

    return training.Ensemble(
        init=lambda key: {"w": jax.random.normal(key, (4,))},
        sample=lambda seed_key, step, fed: jnp.sin(step + jnp.arange(4.0)),
        loss=loss,
        optimizer=optax.sgd(0.1),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=steps,
        recorders={"record": training.Recorder(3, lambda params, batch, seed_key, step: {"w": params["w"][0]})},
    )


@pytest.mark.parametrize(
    ("steps", "seeds", "conditions", "other"),
    [(10, [1, 2], None, "steps"), (5, [1, 2], None, "steps"), (7, [3, 4], None, "seeds"), (7, [1, 2], [0, 1], "conditions")],
)
def test_a_training_is_continued_with_its_own_seeds_and_steps(tmp_path, steps, seeds, conditions, other):
    """A finished training has visited its last step to record it, so that it cannot be made longer."""

    def checkpoints():
        return training.Checkpoints(tmp_path / "checkpoints", [], pytest.fail)

    whole = training.train(ensemble_of(7), [1, 2], checkpoints())
    with pytest.raises(training.CheckpointMismatch, match=f"belongs to a training with other {other}; continue with the same"):
        training.train(ensemble_of(steps), seeds, checkpoints(), resume=True, conditions=conditions)
    with pytest.raises(ValueError, match="has those of a training; continue it with resume=True, or choose another"):
        training.train(ensemble_of(7), [1, 2], checkpoints())
    again = training.train(ensemble_of(7), [1, 2], checkpoints(), resume=True)
    np.testing.assert_array_equal(again.members.state.params["w"], whole.members.state.params["w"])


def test_a_loop_that_is_left_early_has_the_members_of_its_last_chunk_and_goes_on(tmp_path):
    whole = training.train(ensemble_of(9), [1, 2])
    begun = training.Training(ensemble_of(9), [1, 2])
    begun.compile()
    for chunk in begun.chunks(chunk_s=1e-9):
        if chunk.step >= 4:
            break
    left = begun.result()
    assert not left.finished
    assert int(left.members.cursor) == chunk.step
    first = training.train(ensemble_of(chunk.step), [1, 2])
    np.testing.assert_array_equal(left.members.state.params["w"], first.members.state.params["w"])
    assert left.records["record"]["step"].tolist() == list(range(0, chunk.step, 3))
    for _ in begun.chunks():
        pass
    ended = begun.result()
    np.testing.assert_array_equal(ended.members.state.params["w"], whole.members.state.params["w"])
    assert all(0 <= one.idle_share <= 1 for one in (left, ended))
    for name, values in whole.records["record"].items():
        np.testing.assert_array_equal(ended.records["record"][name], values)


def test_a_training_that_is_interrupted_within_a_chunk_does_not_go_on(monkeypatch):
    """Its members are lost with the chunk; those before it are in a checkpoint, if at all."""
    begun = training.Training(ensemble_of(9), [1])
    begun.compile()
    for chunk in begun.chunks(chunk_s=1e-9):
        if chunk.step == 2:
            break

    def advance(runner, placed, until):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(begun._runner), "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        list(begun.chunks())
    for further in (begun.result, lambda: list(begun.chunks())):
        with pytest.raises(RuntimeError, match="the training was interrupted within a chunk; continue from a checkpoint"):
            further()


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"arm_ties": np.array([[False]])}, "arm_ties and phases"),
        ({"phases": [training.Phase(0, 5)]}, "phases"),
        ({"max_norm": 0.5}, "max_norm"),
        ({"ties": tying.Tie("a", "b", gradient="source")}, "ties"),
        ({"ties": tying.Tie("a", "b", transform=(lambda x: x, lambda x: x))}, "ties"),
        (
            {"optimizer": optax.trace(0.9)},
            "parameters or states of the optimizer",
        ),  # as many arrays as `optax.scale_by_rms`, of the same shapes
    ],
)
def test_a_training_is_continued_with_its_own_ties(tmp_path, changes, other):
    def tied(**changes):
        fields = {
            "init": lambda key: {"a": jax.random.normal(key, (4,)), "b": jnp.zeros(4)},
            "loss": lambda params, batch, key: (jnp.sum((params["a"] * params["b"] - batch) ** 2), {}),
            "ties": tying.Tie("a", "b"),
            "arm_ties": np.array([[True]]),
            "recorders": {},
            "optimizer": optax.scale_by_rms(),
        }
        return dataclasses.replace(ensemble_of(7), **fields | changes)

    def checkpoints():
        return training.Checkpoints(tmp_path / "checkpoints", tying.Tie("a", "b"), pytest.fail)

    training.train(tied(), [1], checkpoints())
    with pytest.raises(training.CheckpointMismatch, match=f"belongs to a training with other {other}; continue with the same"):
        training.train(tied(**changes), [1], checkpoints(), resume=True)


def named(*names, steps=6):
    """Members of which the first parameter decays and the second keeps its value; the names also give their order."""
    initial = {names[0]: jnp.ones(1), names[1]: jnp.full(1, 5.0)}
    changes = {"init": lambda key: initial, "loss": lambda params, *_: (jnp.sum(params[names[0]] ** 2), {}), "recorders": {}}
    return dataclasses.replace(ensemble_of(steps), **changes)


def test_a_training_is_continued_with_its_own_names_of_parameters(tmp_path):
    """Sorted otherwise, the two parameters would be exchanged."""

    def checkpoints():
        return training.Checkpoints(tmp_path / "checkpoints", [], pytest.fail)

    training.train(named("enc", "dec"), [1], checkpoints())
    with pytest.raises(
        training.CheckpointMismatch, match="with other parameters or states of the optimizer; continue with the same"
    ):
        training.train(named("encoder", "head"), [1], checkpoints(), resume=True)


def test_a_checkpoint_without_newer_facts_is_resumed(tmp_path):
    """As those of versions that did not save the names of leaves and the ties."""
    whole, checkpoints = training.train(ensemble_of(9), [1, 2]), training.Checkpoints(tmp_path / "old", [], pytest.fail)
    begun = training.Training(ensemble_of(9), [1, 2])
    begun.compile()
    next(chunk for chunk in begun.chunks(chunk_s=1e-9) if chunk.step == 4)
    left = begun.result()
    checkpoints.save(4, left.members, left.records, {"seeds": [1, 2], "steps": 9})
    again = training.train(ensemble_of(9), [1, 2], checkpoints, resume=True)
    assert again.steps_here == 5
    np.testing.assert_array_equal(again.members.state.params["w"], whole.members.state.params["w"])


def test_a_training_whose_recorder_has_another_field_is_not_resumed(tmp_path):
    def with_fields(names):
        record = training.Recorder(3, lambda params, batch, seed_key, step: dict.fromkeys(names, params["w"][0]))
        return dataclasses.replace(ensemble_of(7), recorders={"record": record})

    def checkpoints():
        return training.Checkpoints(tmp_path / "checkpoints", [], pytest.fail)

    begun = training.Training(with_fields("a"), [1], checkpoints())
    begun.compile()
    stops = iter([False, False, True])
    list(begun.chunks(lambda: next(stops), chunk_s=1e-9))
    with pytest.raises(training.CheckpointMismatch, match="the checkpoint has other records than this training: records of"):
        training.train(with_fields("ab"), [1], checkpoints(), resume=True)
