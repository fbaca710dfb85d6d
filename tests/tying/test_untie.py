"""Untying and retying during training. Oracles: equations by hand, and the other form of the same tie."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tiejax import training, tying
from tiejax.tying import Tie, TieError

WIDTH, SIZE = 3, 5
TRANSPOSED = Tie("in/table", "out/table", "transpose")
TIES = [TRANSPOSED]
RATE = 0.05


def start():
    rng = np.random.default_rng(0)
    return {
        "in": {"table": jnp.asarray(rng.normal(size=(SIZE, WIDTH)))},
        "out": {"table": jnp.asarray(rng.normal(size=(WIDTH, SIZE))), "bias": jnp.asarray(rng.normal(size=SIZE))},
    }


def loss(params, step):
    """The two uses of the table send different gradients, which change at every step."""
    x = jnp.sin(jnp.arange(4 * SIZE).reshape(4, SIZE) + step)
    return jnp.mean(jnp.square(jnp.tanh(x @ params["in"]["table"]) @ params["out"]["table"] + params["out"]["bias"] - x))


def adamw(counts="leaf"):
    return training.make_optimizer("adamw", lambda count: RATE / (1 + count), 0.1, eps=1e-8, counts=counts)


def stored_once(optimizer, until, untie_at, policy, new="target", retie_at=None, keep="mean"):
    """Train with one table up to step `untie_at`, with two from then on, and with one again from step `retie_at`."""
    stored = tying.store(start(), TIES)
    full = tying.view(stored, TIES)
    opt_state, uses, tied = optimizer.init(stored), optimizer.init(tying.only_tied(full, TIES)), True
    for step in range(until):
        if step == untie_at:
            stored, opt_state = tying.untie(optimizer, stored, opt_state, TIES, policy, new, uses)
            tied = False
        if step == retie_at:
            stored, opt_state = tying.retie(optimizer, stored, opt_state, TIES, keep)
            tied = True
        if tied:
            own = tying.gradients_by_use(loss, stored, TIES, step)
            full = tying.view(stored, TIES)
        else:
            own, full = jax.grad(loss)(stored, step), stored
        _, uses = optimizer.update(tying.only_tied(own, TIES), uses, tying.only_tied(full, TIES))
        updates, opt_state = optimizer.update(tying.collect(own, TIES) if tied else own, opt_state, stored)
        stored = optax.apply_updates(stored, updates)
    return (tying.view(stored, TIES) if tied else stored), opt_state


def ensemble(optimizer, steps, phases, tied=True):
    """Return an ensemble of this model with switched ties and one arm per phase."""

    def init(key):
        shift = jax.random.uniform(jax.random.fold_in(key, 1))
        return jax.tree.map(lambda leaf: leaf + shift, start())

    return training.Ensemble(
        init=init,
        sample=lambda seed_key, step, fed: step + seed_key.condition,
        loss=lambda params, batch, key: (loss(params, batch), {}),
        optimizer=optimizer,
        ties=TIES,
        arm_ties=np.full((len(phases), 1), tied),
        steps=steps,
        recorders={"record": training.Recorder(4, lambda params, batch, seed_key, step: params["in"])},
        phases=phases,
    )


def switched(optimizer, until, phase):
    """Train one member of such an ensemble from the initial values of `stored_once`."""
    one = dataclasses.replace(ensemble(optimizer, until, [phase]), init=lambda key: start())
    trained = training.train(one, [0])
    return jax.tree.map(lambda leaf: leaf[0, 0], trained.members.state)


def assert_equal_trees(one, other, tolerance=1e-12):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance, err_msg=str(path))


CASES = [("copy", "target"), ("zero", "target"), ("zero", "source"), ("zero-keep-count", "target"), ("split", "target")]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "new"), CASES)
def test_both_forms_agree(x64, policy, new):
    """A table stored once and untied, and two switched tables, before and after the split."""
    once = stored_once(adamw(), 11, 6, policy, new)
    twice = switched(adamw(), 11, training.Phase(0, 6, policy, new))
    assert_equal_trees(once, (twice.params, twice.opt_state))
    assert np.abs(np.asarray(once[0]["in"]["table"].T - once[0]["out"]["table"])).max() > 0.01


@pytest.mark.parametrize("keep", ["mean", "source", "target"])
def test_both_forms_agree_when_the_tie_begins_again(x64, keep):
    once, state = stored_once(adamw(), 11, 4, "copy", retie_at=8, keep=keep)
    twice = switched(adamw(), 11, training.Phase(8, 4, keep=keep))
    assert_equal_trees(once, twice.params)
    assert_equal_trees(state[0].mu["in"], twice.opt_state[0].mu["in"])
    np.testing.assert_array_equal(twice.params["in"]["table"].T, twice.params["out"]["table"])
    at_begin = switched(adamw(), 8, training.Phase(8, 4)).params
    # The tie begins from the leaves after 8 updates.
    joined, _ = tying.retie_switched(optax.identity(), at_begin, (), TIES, keep)
    first, second = np.asarray(at_begin["in"]["table"]), np.asarray(at_begin["out"]["table"]).T
    expected = {"mean": (first + second) / 2, "source": first, "target": second}[keep]
    np.testing.assert_allclose(joined["in"]["table"], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("counts", ["all", "leaf"])
def test_untying_at_step_0_is_never_tied_and_at_the_end_always_tied(x64, counts):
    optimizer = adamw(counts)
    never = tying.view(tying.store(start(), TIES), TIES)
    state = optimizer.init(never)
    always, always_state = tying.store(start(), TIES), optimizer.init(tying.store(start(), TIES))
    for step in range(9):
        updates, state = optimizer.update(jax.grad(loss)(never, step), state, never)
        never = optax.apply_updates(never, updates)
        grads = jax.grad(lambda stored, step=step: loss(tying.view(stored, TIES), step))(always)
        updates, always_state = optimizer.update(grads, always_state, always)
        always = optax.apply_updates(always, updates)
    for end, expected in ((0, never), (9, tying.view(always, TIES)), (training.NEVER, tying.view(always, TIES))):
        assert_equal_trees(switched(optimizer, 9, training.Phase(0, end)).params, expected)
    assert_equal_trees(stored_once(optimizer, 9, 0, "copy")[0], never)


def moments(policy, new="target", until=6):
    """Return the optimizer state right after untying at step `until`, and by hand the moments of both and of each use."""
    optimizer = adamw()
    stored = tying.store(start(), TIES)
    opt_state, uses = optimizer.init(stored), optimizer.init(tying.only_tied(tying.view(stored, TIES), TIES))
    gradients = []
    for step in range(until):
        own = tying.gradients_by_use(loss, stored, TIES, step)
        gradients.append((np.asarray(own["in"]["table"]), np.asarray(own["out"]["table"])))
        full = tying.view(stored, TIES)
        _, uses = optimizer.update(tying.only_tied(own, TIES), uses, tying.only_tied(full, TIES))
        updates, opt_state = optimizer.update(tying.collect(own, TIES), opt_state, stored)
        stored = optax.apply_updates(stored, updates)
    _, after = tying.untie(optimizer, stored, opt_state, TIES, policy, new, uses)

    def decayed(values, rate):
        found = np.zeros_like(values[0])
        for value in values:
            found = rate * found + (1 - rate) * value
        return found

    total = [a + b.T for a, b in gradients]
    shared = decayed(total, 0.9), decayed([g**2 for g in total], 0.999)
    first = decayed([a for a, _ in gradients], 0.9), decayed([a**2 for a, _ in gradients], 0.999)
    second = decayed([b for _, b in gradients], 0.9), decayed([b**2 for _, b in gradients], 0.999)
    return after[0], shared, first, second


EMPTY = (0.0, 0.0)


@pytest.mark.parametrize(
    ("policy", "new", "source_state", "target_state", "counts"),
    [
        ("copy", "target", "shared", "shared", (6, 6)),
        ("zero", "target", "shared", "empty", (6, 0)),
        ("zero", "source", "empty", "shared", (0, 6)),
        ("zero-keep-count", "target", "shared", "empty", (6, 6)),
        ("split", "target", "first", "second", (6, 6)),
    ],
)
def test_moments_after_each_policy(x64, policy, new, source_state, target_state, counts):
    adam, shared, first, second = moments(policy, new)
    wanted = {"shared": shared, "first": first, "empty": EMPTY}
    wanted_out = {"shared": tuple(part.T for part in shared), "second": second, "empty": EMPTY}
    for moment, part in enumerate((adam.mu, adam.nu)):
        np.testing.assert_allclose(part["in"]["table"], wanted[source_state][moment], rtol=0, atol=1e-14)
        np.testing.assert_allclose(part["out"]["table"], wanted_out[target_state][moment], rtol=0, atol=1e-14)
    assert (int(adam.count["in"]["table"]), int(adam.count["out"]["table"])) == counts
    assert int(adam.count["out"]["bias"]) == 6


def test_counts_per_leaf_are_the_same_adam_until_one_restarts(x64):
    grads = [jax.grad(loss)(start(), step) for step in range(5)]
    found = []
    for counts in ("all", "leaf"):
        optimizer, params = adamw(counts), start()
        state = optimizer.init(params)
        for own in grads:
            updates, state = optimizer.update(own, state, params)
            params = optax.apply_updates(params, updates)
        found.append(params)
    assert_equal_trees(*found, tolerance=1e-15)


def test_zero_restarts_the_bias_correction_and_keeping_the_count_spikes(x64):
    """Adam's first update of a leaf with gradient g and zero moments is g / |g|; with a count of 1,000 it is larger."""
    sizes = {}
    for policy in ("zero", "zero-keep-count"):
        optimizer = training.make_optimizer("adamw", optax.constant_schedule(1.0), 0.0, eps=0.0, counts="leaf")
        params = tying.view(tying.store(start(), TIES), TIES)
        state = optimizer.init(params)
        many = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1000), state[0].count)
        state = (state[0]._replace(count=many, nu=jax.tree.map(jnp.ones_like, state[0].nu)), *state[1:])
        _, state = tying.untie_switched(optimizer, params, state, TIES, policy)
        updates, _ = optimizer.update(jax.grad(loss)(params, 0), state, params)
        sizes[policy] = np.abs(np.asarray(updates["out"]["table"]))
    np.testing.assert_allclose(sizes["zero"], 1.0, rtol=1e-9)
    # m = .1 g, v = .001 g^2, corrected for 1,001 steps.
    expected = 0.1 / np.sqrt(0.001 / (1 - 0.999**1001)) / (1 - 0.9**1001)
    np.testing.assert_allclose(sizes["zero-keep-count"], expected, rtol=1e-9)


OTHERS = {
    "adamw": optax.adamw(1e-2),
    "clipped, scheduled": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 10))),
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "lion": optax.lion(1e-2),
    "accumulated": optax.MultiSteps(optax.adamw(1e-2), 2).gradient_transformation(),
    "no state": optax.sgd(1e-2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_state_of_a_leaf_is_found_in_any_optax_state(x64, name):
    """`copy` against a run with switched leaves; retying the equal leaves then restores the stored parameters and state."""
    optimizer = OTHERS[name]
    stored, full = tying.store(start(), TIES), tying.view(tying.store(start(), TIES), TIES)
    opt_state, full_state = optimizer.init(stored), optimizer.init(full)
    for step in range(4):
        own = tying.gradients_by_use(loss, stored, TIES, step)
        updates, opt_state = optimizer.update(tying.collect(own, TIES), opt_state, stored)
        stored = optax.apply_updates(stored, updates)
        # Clipping inside the optimizer counts a tied pair twice.
        updates, full_state = optimizer.update(tying.symmetrise(own, TIES, True), full_state, full)
        full = optax.apply_updates(full, updates)
    params, state = tying.untie(optimizer, stored, opt_state, TIES)
    assert jax.tree.structure(state) == jax.tree.structure(full_state)
    if name != "clipped, scheduled":
        assert_equal_trees((params, state), (full, full_state))
    again, again_state = tying.retie(optimizer, params, state, TIES)
    assert_equal_trees((again, again_state), (stored, opt_state))


def test_ties_end_and_begin_between_the_updates_of_several_steps():
    """Each use has gradients of 1: each leaf moves by 1 once its tie has ended; a mean of both kinds moved it by 1.5."""
    tie, optimizer, ones = Tie("a", "b"), optax.MultiSteps(optax.sgd(1.0), 2), {"a": jnp.ones(1), "b": jnp.ones(1)}
    stored = tying.store(jax.tree.map(jnp.zeros_like, ones), tie)
    state = optimizer.init(stored)
    for policy in ("copy", "zero"):
        params, opt_state = tying.untie(optimizer, stored, state, tie, policy)
        for _ in range(2):
            updates, opt_state = optimizer.update(ones, opt_state, params)
            params = optax.apply_updates(params, updates)
        assert {name: leaf.tolist() for name, leaf in params.items()} == {"a": [-1], "b": [-1]}
    _, between = optimizer.update(tying.collect(ones, tie), state, stored)
    _, both = optimizer.update(ones, optimizer.init(params), params)
    changes = {
        "untie": lambda state: tying.untie(optimizer, stored, state, tie, "zero"),
        "retie": lambda state: tying.retie(optimizer, params, state, tie),
        "untie_switched": lambda state: tying.untie_switched(optimizer, params, state, tie, "zero"),
        "retie_switched": lambda state: tying.retie_switched(optimizer, params, state, tie),
    }
    for name, change in changes.items():
        with pytest.raises(TieError, match=r"mini_step of the optimizer state is not 0: MultiSteps is between two updates"):
            change(between if name == "untie" else both)
        if name.startswith("untie"):
            with pytest.raises(TieError, match=r"policy 'zero' cannot restart the mean .* where mini_step .* known to be 0"):
                jax.jit(change)(between if name == "untie" else both)
    shapes = jax.eval_shape(lambda: params)
    found = tying.retie(optimizer, shapes, jax.eval_shape(optimizer.init, shapes), tie, keep="source")
    assert jax.tree.leaves(found[1])[0].shape == ()  # trees of shapes have no step


@pytest.mark.parametrize("keep", ["mean", "source", "target"])
def test_leaves_whose_switched_tie_begins_can_be_donated(keep):
    """Also where the target has the values of the source: in another buffer."""
    optimizer, tie = optax.adam(0.1), Tie("a", "b")
    params = {"a": jnp.arange(4.0), "b": jnp.ones(4)}
    params, state = tying.retie_switched(optimizer, params, optimizer.init(params), tie, keep)
    step = jax.jit(lambda params, state: jax.tree.map(lambda leaf: leaf + 1, (params, state)), donate_argnums=(0, 1))
    expected = (np.asarray(params["a"]) + 1).tolist()
    moved, _ = step(params, state)
    assert moved["a"].tolist() == moved["b"].tolist() == expected


def test_an_average_that_may_be_of_parameters_is_not_scaled():
    """`optax.ema`, used on its own, averages parameters: that of the target is half of the source's."""
    params, tie, ema = {"a": jnp.full(2, 4.0), "b": jnp.full(2, 2.0)}, Tie("a", "b", transform=tying.Scale(0.5)), optax.ema(0.5)
    stored = tying.store(params, tie)
    with pytest.raises(TieError, match=r"ema/a of the optimizer state \(EmaState\) may hold moments, which are not scaled, or"):
        tying.untie(ema, stored, ema.init(stored), tie)
    with pytest.raises(TieError, match=r"ema/a of the optimizer state \(EmaState\) may hold moments"):
        tying.copy_to_targets(ema.init(params), params, tie, True)
    halves = Tie("a", "b")
    assert tying.untie(ema, stored, ema.init(stored), halves)[1].ema["b"].tolist() == [0, 0]


def test_errors_of_policies_and_foreign_states():
    optimizer = optax.adamw(1e-2)
    stored = tying.store(start(), TIES)
    opt_state = optimizer.init(stored)
    with pytest.raises(
        TieError, match=r"policy 'zero' cannot restart out/table: 0/count .* is that of all leaves .*zero-keep-count"
    ):
        tying.untie(optimizer, stored, opt_state, TIES, "zero")
    with pytest.raises(TieError, match="policy 'split' needs use_states: an optimizer state of each use"):
        tying.untie(optimizer, stored, opt_state, TIES, "split")
    with pytest.raises(TieError, match=r"the optimizer state has no .*: it belongs to another optimizer"):
        tying.untie(optax.sgd(1e-2, momentum=0.9), stored, opt_state, TIES)


ENDS = [(0, "copy"), (7, "copy"), (10, "zero"), (13, "zero-keep-count"), (13, "split"), (training.NEVER, "copy")]
PHASES = [training.Phase(0, end, policy) for end, policy in ENDS]


def test_members_with_different_phases_share_an_executable_and_resume_across_the_split(x64):
    """Interrupted before, at and after a split, results agree bit for bit; a member alone equals itself among others."""
    many = ensemble(adamw(), 24, PHASES)
    runner, found = training.compile_ensemble(many, [0, 1], many.start([0, 1])), []
    for stops in ((24, 25), (7, 8, 24, 25), (1, 10, 13, 14, 25)):
        members = runner.to_devices(many.start([0, 1]))
        for until in stops:
            members, _, _ = runner.advance(members, until)
            on_host = runner.to_host(members)
            many.check(on_host)
            members = runner.to_devices(on_host)
        found.append(on_host)
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, other, found[0])
    params = found[0].state.params
    apart = np.abs(params["in"]["table"] - params["out"]["table"].swapaxes(-1, -2)).max(axis=(0, 2, 3))
    assert apart[-1] == 0
    assert (apart[:-1] > 1e-3).all()
    alone = training.train(ensemble(adamw(), 24, PHASES[2:3]), [1]).members.state.params
    np.testing.assert_allclose(alone["out"]["table"][0, 0], params["out"]["table"][1, 2], rtol=0, atol=1e-12)


def test_tied_leaves_that_differ_are_rejected():
    many = ensemble(adamw(), 24, PHASES)
    members = many.start([0])
    many.check(members)
    many.check(members._replace(cursor=jnp.int32(7)))
    out = members.state.params["out"]
    out = {**out, "table": out["table"].at[0, 1].add(1)}
    wrong = members._replace(state=members.state._replace(params={**members.state.params, "out": out}))
    with pytest.raises(TieError, match="arm 1"):
        many.check(wrong._replace(cursor=jnp.int32(7)))
    many.check(wrong._replace(cursor=jnp.int32(8)))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_the_mean_of_equal_leaves_is_their_value(dtype):
    leaf = jnp.asarray(np.random.default_rng(0).normal(size=1000), dtype)
    params = {"a": leaf, "b": leaf, "c": leaf}
    stored, _ = tying.retie(optax.sgd(1.0), params, optax.sgd(1.0).init(params), [Tie("a", "b"), Tie("a", "c")])
    np.testing.assert_array_equal(stored["a"], leaf)


def test_the_mean_of_large_numbers_is_finite():
    params = {"a": jnp.float16([4e4]), "b": jnp.float16([3e4])}
    stored, _ = tying.retie(optax.sgd(1.0), params, optax.sgd(1.0).init(params), Tie("a", "b"))
    np.testing.assert_allclose(stored["a"], [3.5e4], rtol=1e-3)


def test_of_two_targets_of_one_source_none_is_kept():
    params = {"a": jnp.ones(2), "b": 2 * jnp.ones(2), "c": 3 * jnp.ones(2)}
    with pytest.raises(TieError, match=r"keep: target is ambiguous for a, which b, c read"):
        tying.retie(optax.sgd(1.0), params, optax.sgd(1.0).init(params), [Tie("a", "b"), Tie("a", "c")], keep="target")


def test_a_mask_of_the_stored_tree_cannot_be_untied():
    tie, params = Tie("e", "h"), {"e": jnp.ones(2), "h": jnp.ones(2)}
    stored = tying.store(params, tie)
    optimizer = optax.masked(optax.adam(1e-3), {"e": True, "h": None})
    with pytest.raises(TieError, match="give it a function of the parameters instead"):
        tying.untie(optimizer, stored, optimizer.init(stored), tie)


def test_integers_have_no_mean():
    params, optimizer = {"a": jnp.int8([1, 2]), "b": jnp.int8([3, 6])}, optax.sgd(0.1)
    with pytest.raises(TieError, match="tie a -> b: the leaves differ, and int8 has no mean; use keep='source' or"):
        tying.retie(optimizer, params, optimizer.init(params), Tie("a", "b"))
    equal = params | {"b": params["a"]}
    assert tying.retie(optimizer, equal, optimizer.init(equal), Tie("a", "b"))[0]["a"].tolist() == [1, 2]
    assert tying.retie(optimizer, params, optimizer.init(params), Tie("a", "b"), keep="target")[0]["a"].tolist() == [3, 6]


def test_arrays_of_numpy_keep_64_bits():
    """Values that 32 bits cannot represent."""
    whole = {"a": np.array([2**40 + 1]), "b": None, "c": np.array([1 / 3])}
    params = tying.untie_parameters(whole, Tie("a", "b"))
    assert (params["a"].tolist(), params["b"].tolist(), params["c"].tolist()) == ([2**40 + 1], [2**40 + 1], [1 / 3])
    params["b"][0] = 0
    assert whole["a"].tolist() == params["a"].tolist() == [2**40 + 1]
    for gradient in ("source", (0.5, 0.25)):
        assert tying.view(whole, Tie("a", "b", gradient=gradient))["b"].tolist() == [2**40 + 1]
    table = {"a": np.array([1.0, 1 / 3]), "b": np.array(1 / 7)}
    joined = tying.retie(optax.sgd(0.1), table, optax.sgd(0.1).init(table), Tie("a", "b", tying.Slice(0)), keep="target")[0]
    assert joined["a"].tolist() == [1 / 7, 1 / 3]


def test_integers_are_not_scaled():
    with pytest.raises(TieError, match="Scale: expected floating-point or complex numbers, got int32"):
        tying.view({"a": jnp.arange(3), "b": None}, Tie("a", "b", tying.Scale(0.5)))


@pytest.mark.parametrize("keep", ["mean", "source", "target"])
def test_equal_random_keys_are_tied_again(keep):
    optimizer, key = optax.adam(0.1), jax.random.key(3)
    full = {"a": {"k": key, "w": jnp.ones(2)}, "b": {"k": key, "w": jnp.ones(2)}}
    state = optimizer.init({name: {"k": None, "w": block["w"]} for name, block in full.items()})
    stored, _ = tying.retie(optimizer, full, state, Tie("a/*", "b/*"), keep=keep)
    assert stored["a"]["k"] == key
    other = full | {"b": {"k": jax.random.key(4), "w": jnp.ones(2)}}
    if keep == "mean":
        with pytest.raises(TieError, match="has no mean"):
            tying.retie(optimizer, other, state, Tie("a/*", "b/*"))
