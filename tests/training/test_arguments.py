"""Seeds, conditions and ties of an ensemble: errors before anything is compiled."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from tiejax.training import Ensemble, Phase, Scanned, Vmapped, make_step, train
from tiejax.training.keys import check_seeds
from tiejax.tying import Scale, Slice, Tie, TieError

TIES = [Tie("a", "b"), Tie("a", "c")]


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Switch off the type checks of the tests, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def ensemble(**changes):
    fields = {
        "init": lambda key: {name: jax.random.normal(jax.random.fold_in(key, n), (2,)) for n, name in enumerate("abc")},
        "sample": lambda seed_key, step, fed: jnp.float32(step),
        "loss": lambda params, batch, key: (sum(jnp.sum(jnp.square(leaf - batch)) for leaf in params.values()), {}),
        "optimizer": optax.sgd(0.1),
        "ties": TIES,
        "arm_ties": np.array([[False, False], [True, True]]),
        "steps": 2,
        "recorders": {},
    }
    return Ensemble(**fields | changes)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 2, 1], "seeds: expected distinct seeds, but 1 is repeated; its members would be the same ones twice"),
        (np.array([3, 3]), "seeds: expected distinct seeds, but 3 is repeated"),
        (5, r"seeds: expected a list of integers, such as range\(10\), got 5"),
        ([], r"seeds: expected a list of integers, such as range\(10\), got \[\]"),
        ([0.5], r"seeds: expected a list of integers, .*, got \[0.5\]"),
        ([True], r"seeds: expected a list of integers, .*, got \[True\]"),
        ("12", "seeds: expected a list of integers, .*, got '12'"),
        ([[1], [2]], r"seeds: expected a list of integers, .*, got \[\[1\], \[2\]\]"),
        ([jax.random.key(0)], "seeds: expected a list of integers"),
        (None, "seeds: expected a list of integers, .*, got None"),
        ([0, -1], r"seeds: expected integers from 0 to 2\*\*32 - 1, got -1"),
        ([2**32], r"seeds: expected integers from 0 to 2\*\*32 - 1, got 4294967296"),
        ([2**70], r"seeds: expected integers from 0 to 2\*\*32 - 1, got 1180591620717411303424"),
    ],
)
def test_seeds_that_cannot_be_trained(seeds, message):
    with pytest.raises(ValueError, match=message):
        train(ensemble(), seeds)


def test_conditions():
    check_seeds([1, 1], [0, 1])
    check_seeds(range(3), [0, 0, 0])
    check_seeds([2**32 - 1])
    check_seeds(np.arange(3, dtype=np.uint8))
    with pytest.raises(ValueError, match="conditions: 1 for 2 seeds; expected one per seed"):
        train(ensemble(), [1, 2], conditions=[0])
    with pytest.raises(ValueError, match="seeds: expected distinct seeds, but 7 is repeated"):
        train(ensemble(), [7, 7, 7], conditions=[0, 1, 0])


@pytest.mark.parametrize(
    ("arm_ties", "message"),
    [
        (np.array([True, False]), r"arm_ties: expected booleans \[arm, tie\], .* got bool of shape \(2,\)"),
        ([[0, 0], [1, 1]], r"arm_ties: expected booleans \[arm, tie\], .* got int64 of shape \(2, 2\)"),
        ([[True], [True, False]], r"arm_ties: expected booleans \[arm, tie\], .* got \[\[True\], \[True, False\]\]"),
        (True, r"arm_ties: expected booleans \[arm, tie\], .* got bool of shape \(\)"),
        (np.zeros((0, 2), bool), r"arm_ties: expected booleans \[arm, tie\], .* got bool of shape \(0, 2\)"),
        (np.ones((2, 3), bool), "arm_ties: expected one column for each of the 2 resolved ties, or one for all, got 3"),
        (np.ones((2, 0), bool), "arm_ties: expected one column for each of the 2 resolved ties, or one for all, got 0"),
    ],
)
def test_arm_ties_of_a_wrong_shape_or_type(arm_ties, message):
    with pytest.raises(ValueError, match=message):
        ensemble(arm_ties=arm_ties).start([0])


def test_ties_that_do_not_fit():
    with pytest.raises(TieError, match="ties: expected a Tie or a list of them, got str 'a'"):
        ensemble(ties="a")
    with pytest.raises(TieError, match="tie a -> d: no leaf d"):
        ensemble(ties=Tie("a", "d"), arm_ties=[[True]]).start([0])
    with pytest.raises(ValueError, match="devices: ties that move entries, such as a transpose, need one device per member"):
        ensemble(ties=Tie("a", "b", transform=Slice(0)), arm_ties=[[True]], devices=2)


def test_one_tie_and_lists_of_arms():
    one = ensemble(ties=Tie("a", "b"), arm_ties=[[False], [True]], phases=[Phase(), Phase()])
    params = one.start([0, 1]).state.params
    np.testing.assert_array_equal(params["b"][:, 1], params["a"][:, 1])
    assert (params["b"][:, 0] != params["a"][:, 0]).all()
    one.check(one.start([0, 1]))


def test_one_column_for_all_ties():
    """Training, and the check of a resumed checkpoint, which slices members before their leaves."""
    whole, column = ensemble(), ensemble(arm_ties=[[False], [True]])
    for one, other in zip(jax.tree.leaves(train(whole, [4])), jax.tree.leaves(train(column, [4])), strict=True):
        if isinstance(one, jax.Array | np.ndarray):
            np.testing.assert_array_equal(one, other)
    members = column.start([4])
    column.check(members)
    params = members.state.params | {"c": members.state.params["c"] + 1}
    with pytest.raises(TieError, match="tie a -> c: the leaves of arm 1 differ although they are tied"):
        column.check(members._replace(state=members.state._replace(params=params)))
    sliced = ensemble(
        init=lambda key: {"a": jax.random.normal(key, (3, 2)), "b": jnp.zeros(2)},
        ties=Tie("a", "b", transform=Slice(1)),
        arm_ties=[[True]],
    )
    sliced.check(sliced.start([0, 1]))


def test_arms_do_not_part_a_chain():
    chain, fan = [Tie("a", "b"), Tie("b", "c")], [Tie("a", "b"), Tie("a", "c")]
    with pytest.raises(TieError, match=r"^arm_ties: tie b -> c is a link of a chain, and is on without tie a -> b"):
        ensemble(ties=chain, arm_ties=[[True, True], [False, True]]).start([0])
    arm_ties = [[False, False], [True, False], [True, True]]
    found, expected = (train(ensemble(ties=ties, arm_ties=arm_ties), [4]).members.state.params for ties in (chain, fan))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_arm_ties_are_copied():
    given = np.array([[False], [True]])
    one = ensemble(arm_ties=given)
    given[:] = True
    assert one.arm_ties.tolist() == [[False], [True]]


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan")])
def test_a_norm_that_clips_everything_is_refused(max_norm):
    with pytest.raises(ValueError, match="max_norm: expected a number > 0, or None to clip nothing"):
        ensemble(max_norm=max_norm)
    with pytest.raises(ValueError, match="max_norm: expected a number > 0, or None to clip nothing"):
        make_step(optax.sgd(0.1), ensemble().loss, (), max_norm)


def test_numbers_of_other_libraries_become_those_of_python():
    found = ensemble(steps=np.int64(2), max_norm=jnp.float32(1))
    assert (type(found.steps), type(found.max_norm)) == (int, float)


def test_at_least_one_seed_at_once():
    for kind in (Vmapped, Scanned):
        with pytest.raises(ValueError, match="at_once: expected at least 1 seed, or None for all, got 0"):
            kind(0)


def test_members_to_start_from_that_are_not_of_the_ensemble_are_refused():
    """The state of another optimizer, one that was not made for each member, and parameters of another dtype."""
    adam = ensemble(optimizer=optax.adam(0.1))
    own, momentum = adam.start([4]).state, ensemble(optimizer=optax.sgd(0.1, momentum=0.9)).start([4]).state
    half = own._replace(params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), own.params))
    for start, message in (
        (
            own._replace(opt_state=optax.adam(0.1).init(own.params)),
            r"opt_state/0/count: expected int32 \(1, 2\), .* int32 \(\); the",
        ),
        (momentum, r"opt_state/0/count: expected int32 \(1, 2\), as Ensemble.start returns, got nothing; the state of"),
        (half, r"params/a: expected float32 \(1, 2, 2\), as Ensemble.start returns, got bfloat16 \(1, 2, 2\)$"),
    ):
        with pytest.raises(ValueError, match=f"^start: {message}"):
            train(adam, [4], start=start)
    found, expected = train(adam, [4], start=own), train(adam, [4])
    jax.tree.map(np.testing.assert_array_equal, found.members.state.params, expected.members.state.params)


def test_members_to_start_from_whose_tied_leaves_differ_are_refused():
    untied = ensemble(arm_ties=[[False], [False]]).start([4]).state
    with pytest.raises(TieError, match="tie a -> b: the leaves of arm 1 differ although they are tied"):
        train(ensemble(), [4], start=untied)
    train(ensemble(phases=[Phase(), Phase(1, 0)]), [4], start=untied)  # tied from step 1 on


@pytest.mark.parametrize("seed", range(4))
def test_members_that_an_ensemble_starts_from_are_tied_up_to_rounding(seed):
    scaled = ensemble(ties=Tie("a", "b", Scale(0.3)), arm_ties=np.array([[True]]))
    train(scaled, [seed], start=scaled.start([seed]).state)
